"""All scenarios, in one table: what happens to a model's replicas, and the SLO meanwhile. The same number draws the
same run, for every policy. To add one, write a function that draws its traffic, and a row.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from zlib import crc32

import numpy as np

from autoscaling.scaler.decision import Bounds
from benchmarks.policies.engines import CHAT, REASONING, Serving
from benchmarks.policies.faults import NO_FAULTS, Faults, FeedOutage, ReplicaFailure, Write
from benchmarks.policies.run import ScenarioRun
from benchmarks.policies.traffic import (
    CHATS,
    HEAVY,
    QUESTIONS,
    STEP_S,
    Knots,
    LoadStream,
    drawn,
    fitted,
    load_of,
    load_of_recorded,
    rate_of,
    rate_of_recorded,
    recorded,
    workload_of,
)
from planning.simulator.workload import Workload
from planning.tune.case import LoadCurve
from planning.workload.arrivals import FloatArray
from planning.workload.changes import ChangeKind, TraceChange
from planning.workload.scaling import load_scaled, window
from planning.workload.servegen import LENGTHS, RATES, WINDOW_S, ServeGenClient, ServeGenError, drawn_trace, read_tables
from planning.workload.trace import Trace, TraceError


@dataclass(frozen=True, slots=True)
class Draw:
    """Which run of a scenario. `traces`: the folder of recorded traffic."""

    number: int
    rng: np.random.Generator
    traces: Path | None


@dataclass(frozen=True, slots=True, eq=False)
class ScenarioTraffic:
    """What is drawn: of a stream of `CHATS` on `CHAT`, its `knots`; of any other traffic, `work` and `load`. `swings`:
    the load changes faster than replicas start, so they can follow its mean alone."""

    knots: Knots = ()
    streams: tuple[LoadStream, ...] = ()
    work: Workload | None = None
    load: LoadCurve | None = None
    serving: Serving = CHAT
    until_s: float | None = None
    swings: bool = False
    faults: Faults = NO_FAULTS
    blind_s: tuple[float, float] | None = None
    slow_s: float | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """`complaint`: whose problem it represents. `target`: the attainment that the SLO asks for. `maximum`: of replicas;
    `replicas`: at the start. `reads`: the recorded files that it needs. `long`: a run takes many seconds, so it runs
    only if it is named."""

    name: str
    title: str
    complaint: str
    target: float
    traffic: Callable[[Draw], ScenarioTraffic]
    maximum: int
    replicas: int
    until_s: float = 1_800.0
    start_up_s: float = 60.0
    reads: tuple[str, ...] = ()
    long: bool = False

    def run(self, number: int, traces: Path | None = None) -> ScenarioRun:
        """Raises TraceError for recorded traffic that cannot be read."""
        # As "silent" its runs were first drawn: with another name they would be others.
        seed = crc32({"unresponsive": "silent"}.get(self.name, self.name).encode())
        rng = np.random.default_rng([seed, number, 0])
        found = self.traffic(Draw(number, rng, traces))
        until_s = found.until_s or self.until_s
        work, load = found.work, found.load
        if work is None or load is None:
            work, load = drawn(CHAT, found.streams or [LoadStream(found.knots)], until_s, rng)
        level = LoadCurve(np.full_like(load.replicas, load.replicas.mean()), STEP_S)
        return ScenarioRun(
            found.serving,
            work,
            load,
            self.target,
            Bounds(1, self.maximum),
            self.replicas,
            until_s,
            self.start_up_s,
            level if found.swings else None,
            found.faults,
            found.blind_s,
            found.slow_s,
        )


def _burst(draw: Draw) -> ScenarioTraffic:
    first, second = draw.rng.uniform(420, 600), draw.rng.uniform(1_100, 1_300)
    high, higher = draw.rng.uniform(3.2, 3.8), draw.rng.uniform(4.2, 4.8)
    one = ((first, 1.6), (first, higher), (first + 240, higher), (first + 240, 1.6))
    return ScenarioTraffic(((0, 1.6), *one, (second, 1.6), (second, high), (second + 180, high), (second + 180, 1.6)))


def _oscillation(draw: Draw) -> ScenarioTraffic:
    shift = draw.rng.uniform(0, 60)
    knots: list[tuple[float, float]] = []
    for minute in range(-1, 31):
        level = 4.0 if minute % 2 else 1.0
        knots += [(shift + 60 * minute, level), (shift + 60 * minute + 60, level)]
    return ScenarioTraffic([knot for knot in knots if knot[0] >= 0], swings=True)


def _flapping(draw: Draw) -> ScenarioTraffic:
    return ScenarioTraffic([(0, (0.85, 1.75, 2.65)[draw.number % 3] + draw.rng.uniform(0, 0.15))])


def _phantom(draw: Draw) -> ScenarioTraffic:
    """One full replica becomes unresponsive, and counts as full until it is given up and replaced."""
    at_s = draw.rng.uniform(560, 590)
    return ScenarioTraffic(
        [(0, 3.5), (600, 3.5), (620, 0.5)],
        faults=Faults((FeedOutage(2, at_s, at_s + 900, phantom=True),), failures=(ReplicaFailure(at_s + 900, 2),)),
    )


def _unresponsive(draw: Draw) -> ScenarioTraffic:
    at_s = draw.rng.uniform(200, 280)
    return ScenarioTraffic([(0, 1.5), (300, 1.5), (900, 4.0)], faults=Faults((FeedOutage(1, at_s, at_s + 600),)))


def _two_writers(draw: Draw) -> ScenarioTraffic:
    """Now and then something else sets the number, mostly one too low."""
    numbers = ((350, 3), (700, 3), (1_000, 7), (1_350, 3))
    writes = tuple(Write(at_s + draw.rng.uniform(-40, 40), replicas) for at_s, replicas in numbers)
    return ScenarioTraffic([(0, 2.8), (450, 3.1), (900, 2.6), (1_350, 3.1)], faults=Faults(writes=writes))


def _manual_edit(draw: Draw) -> ScenarioTraffic:
    writes = (Write(draw.rng.uniform(450, 510), 8), Write(draw.rng.uniform(1_170, 1_230), 1))
    return ScenarioTraffic([(0, 2.2)], faults=Faults(writes=writes))


def _spikes(draw: Draw) -> ScenarioTraffic:
    knots: list[tuple[float, float]] = [(0, 1.5)]
    for middle in range(240, 1_800, 300):
        at_s = middle + draw.rng.uniform(-60, 60)
        knots += [(at_s, 1.5), (at_s, 3.0), (at_s + 45, 3.0), (at_s + 45, 1.5)]
    return ScenarioTraffic(knots, swings=True)


def _steps(levels: tuple[tuple[float, float], ...], draw: Draw) -> ScenarioTraffic:
    """Loads in replicas, each from a second on."""
    knots: list[tuple[float, float]] = []
    for at_s, level in levels:
        knots += [(at_s, knots[-1][1] if knots else level), (at_s, level)]
    return ScenarioTraffic(knots)


def _blind(draw: Draw) -> ScenarioTraffic:
    """Policies see nothing for ten minutes; a minute after these begin the load more than doubles."""
    return replace(_steps(((0, 4.0), (3_660, 9.0)), draw), blind_s=(3_600.0, 4_200.0))


def _half_speed(draw: Draw) -> ScenarioTraffic:
    return replace(_steps(((0, 4.2),), draw), slow_s=3_600.0)


def _idle(draw: Draw) -> ScenarioTraffic:
    return ScenarioTraffic(streams=(LoadStream([(0, draw.rng.uniform(0.04, 0.1))], shape=0.5),))


def _outage(draw: Draw) -> ScenarioTraffic:
    """A load of five replicas, then a stray request now and then for 22 to 28 minutes, then five again."""
    back_s = 600.0 + draw.rng.uniform(1_320, 1_680)
    return ScenarioTraffic([(0, 5.0), (600.0, 5.0), (600.0, 0.002), (back_s, 0.002), (back_s, 5.0)])


def _heavy_prompts(draw: Draw) -> ScenarioTraffic:
    """The same number of requests, for a quarter of an hour with prompts sixteen times as long."""
    rate = 1.1 * rate_of(CHAT, QUESTIONS) * draw.rng.uniform(0.95, 1.05)
    from_s = draw.rng.uniform(480, 600)
    to_s, gone_s = from_s + 800, 1.0
    light, much = rate / rate_of(CHAT, QUESTIONS), rate / rate_of(CHAT, HEAVY)
    around = [(0, light), (from_s, light), (from_s + gone_s, 0), (to_s, 0), (to_s + gone_s, light)]
    between = [(0, 0), (from_s, 0), (from_s + gone_s, much), (to_s, much), (to_s + gone_s, 0)]
    return ScenarioTraffic(streams=(LoadStream(around, QUESTIONS), LoadStream(between, HEAVY)))


def _ramp(draw: Draw) -> ScenarioTraffic:
    per_s, one = ((0, 2.0), (300, 2.0), (600, 10.0), (1_200, 10.0), (1_500, 1.0)), rate_of(CHAT, CHATS)
    return ScenarioTraffic([(at_s, rate / one) for at_s, rate in per_s])


def _overload(draw: Draw) -> ScenarioTraffic:
    at_s = draw.rng.uniform(450, 600)
    return ScenarioTraffic([(0, 2.0), (at_s, 2.0), (at_s + 60, 5.5), (at_s + 360, 5.5), (at_s + 420, 1.0)])


def _recorded(
    draw: Draw, file: str, serving: Serving, document_tokens: int, slo_s: tuple[float, float]
) -> ScenarioTraffic:
    """The second half of a recording, without a random seventh of its requests."""
    whole = recorded(file_in(draw.traces, file))
    until_s = whole.span_s / 2
    trace = window(whole, until_s, whole.span_s)
    sample = trace.take(np.flatnonzero(draw.rng.random(len(trace)) < 6 / 7))
    left_out = TraceChange(ChangeKind.THINNED, len(trace) - len(sample), len(trace), "left out at random")
    work = workload_of(fitted(sample.changed(left_out), 1.0, 16_000, 1_500), document_tokens, slo_s)
    return ScenarioTraffic(work=work, load=load_of_recorded(serving, work, until_s), serving=serving, until_s=until_s)


_DAY_S = 86_400.0
_LENGTHS_OF = "deepseek-r1"
_MEANS = {"m-small": 520.0, "m-mid": 1_640.0, _LENGTHS_OF: 16.0}
"""Requests a second."""
_FOLDERS = {"m-mid": "servegen_mid"}
JUDGED = (("m-mid", 2), ("m-mid", 6), ("m-mid", 12), ("m-small", 1), ("m-small", 11))
"""On which no choice rested (docs/decisions/0049-four-knobs-and-a-learned-capacity.md)."""


def _day(draw: Draw, days: tuple[tuple[str, int], ...]) -> ScenarioTraffic:
    """A day (a model and a number) of ServeGen's description (rates and gaps by client, windows of ten minutes), scaled
    from the model's mean to 0.54 requests a second, with the lengths of the reasoning model's day, on a slow engine."""
    folder = file_in(draw.traces, RATES).parent
    model, day = days[draw.number % len(days)]
    from_s, scale = day * _DAY_S, 0.54 / _MEANS[model]
    try:
        clients, lengths = _tables(folder / _FOLDERS.get(model, ""), model), _lengths(folder)
        trace = drawn_trace(clients, from_s, from_s + _DAY_S, scale, draw.rng, 200_000)
    except (ServeGenError, OSError) as error:
        raise TraceError(f"{folder}: {error}") from error
    like = draw.rng.integers(0, len(lengths), len(trace))
    trace = replace(
        trace, prompt_tokens=lengths.prompt_tokens[like], output_tokens=lengths.output_tokens[like], tenant=None
    )
    work = workload_of(fitted(trace, 1.0, 8_000, 4_000), 5_000, (5.0, 15.0))
    per_window = np.zeros(int(_DAY_S / WINDOW_S))
    for client in clients.values():
        for one in client.windows:
            number = int((one.at_s - from_s) // WINDOW_S)
            if 0 <= number < len(per_window):
                per_window[number] += one.rate * WINDOW_S * scale
    before = np.concatenate([[0.0], np.cumsum(per_window)])

    def expected(at_s: FloatArray) -> FloatArray:
        until: FloatArray = np.interp(at_s, np.arange(len(before)) * WINDOW_S, before)
        return until

    load = load_of(expected, rate_of_recorded(REASONING, work), _DAY_S)
    return ScenarioTraffic(work=work, load=load, serving=REASONING)


@lru_cache
def _tables(folder: Path, model: str) -> dict[str, ServeGenClient]:
    return read_tables(folder, model)


@lru_cache
def _lengths(folder: Path) -> Trace:
    return drawn_trace(_tables(folder, _LENGTHS_OF), 0.0, _DAY_S, 0.01, np.random.default_rng(11), 200_000)


def file_in(traces: Path | None, name: str) -> Path:
    """A recorded file; a name without its ending is that of any file that begins with it. Raises TraceError."""
    found = [] if traces is None else [traces / name, *sorted(traces.glob(f"{name}.*"))]
    for file in found:
        if file.is_file():
            return file
    raise TraceError(f"{name}: not in {traces or 'a folder, because none is given'}")


_SILENCE = ((0, 5.0), (3_600, 0.0), (7_200, 5.0))
_FIVE = ((0, 1.0), (3_600, 5.0))
_TWICE = ((0, 2.0), (3_600, 4.0))
_CHAT, _CODE = "azure2023_conv.csv.gz", "azure2023_code.csv.gz"
_CHAT_HOUR = partial(_recorded, file=_CHAT, serving=CHAT, document_tokens=2_500, slo_s=(2.0, 10.0))
_CODE_HOUR = partial(_recorded, file=_CODE, serving=REASONING, document_tokens=5_000, slo_s=(5.0, 10.0))
_CHAT_DAYS = partial(_day, days=tuple(("m-small", day) for day in (3, 4, 5, 6, 7, 8)))
_R1_DAY = partial(_day, days=((_LENGTHS_OF, 0),))
_S = (RATES, LENGTHS)

_ALL = (
    # name, title, whose complaint, target, traffic, most replicas, replicas at the start
    Scenario(
        "burst", "A burst whose queue the gauges do not show", "Dynamo #10528", 0.95, _burst, 12, 3, start_up_s=30
    ),
    Scenario("oscillation", "A load that swings every minute", "Ray #63279", 0.97, _oscillation, 12, 3),
    Scenario("flapping", "A constant load near a whole number", "Ray #18925, Dynamo #9294", 0.98, _flapping, 8, 3),
    Scenario("phantom", "Requests that exist only in the counts", "Ray #61551", 0.97, _phantom, 8, 5),
    Scenario("unresponsive", "A replica is silent as load grows", "AIBrix #1032", 0.95, _unresponsive, 10, 3, 1_500),
    Scenario("two_writers", "Two writers of one number", "AIBrix #1661", 0.97, _two_writers, 10, 4, start_up_s=30),
    Scenario("manual_edit", "An operator's edit", "Dynamo #4420", 0.95, _manual_edit, 10, 3, start_up_s=30),
    Scenario("spikes", "Spikes shorter than a start", "Ray #43034", 0.97, _spikes, 10, 3, start_up_s=120),
    Scenario("idle", "Almost no traffic", "llm-d autoscaling #380", 0.98, _idle, 8, 4),
    Scenario("trickle", "A request a minute", "", 0.95, partial(_steps, ((0, 0.004),)), 8, 1, 10_800),
    Scenario("silence", "Silence of an hour", "", 0.95, partial(_steps, _SILENCE), 24, 6, 10_800, long=True),
    Scenario("times_five", "Load times five", "", 0.95, partial(_steps, _FIVE), 24, 2, 9_000, long=True),
    Scenario("slow_starts", "Starts of ten minutes", "", 0.9, partial(_steps, _TWICE), 24, 3, 10_800, 600, long=True),
    Scenario("blind", "Ten minutes without signals", "", 0.85, _blind, 24, 5, 6_900, long=True),
    Scenario("half_speed", "One of five replicas at half speed", "", 0.95, _half_speed, 24, 5, 9_000, long=True),
    Scenario("outage", "The upstream fails and returns", "a recorded day", 0.93, _outage, 12, 6, 3_000),
    Scenario("heavy_prompts", "Prompts 16 times as long", "Ray-LLM #133", 0.95, _heavy_prompts, 12, 2, start_up_s=30),
    Scenario("ramp", "2 to 10 to 1 requests a second", "llm-d's SLO policy, its own ramp", 0.95, _ramp, 8, 2),
    Scenario("overload", "More load than replicas", "Ray #65193, Dynamo #6145", 0.5, _overload, 4, 3),
    Scenario("azure_chat", "Azure 2023: chat", "a recording", 0.99, _CHAT_HOUR, 16, 4, reads=(_CHAT,)),
    Scenario("azure_code", "Azure 2023: code completion", "a recording", 0.99, _CODE_HOUR, 16, 8, reads=(_CODE,)),
    Scenario("servegen_week", "ServeGen: chat", "a recording", 0.99, _CHAT_DAYS, 16, 4, _DAY_S, 90, _S, long=True),
    Scenario("servegen_r1", "ServeGen: reasoning", "a recording", 0.99, _R1_DAY, 16, 4, _DAY_S, 90, _S, long=True),
    *(
        Scenario(
            f"judged_{number}",
            f"ServeGen: {model}, day {day}",
            "a recording",
            0.99,
            partial(_day, days=((model, day),)),
            24,
            4,
            _DAY_S,
            90,
            _S,
            long=True,
        )
        for number, (model, day) in enumerate(JUDGED, 1)
    ),
)
SCENARIOS: Mapping[str, Scenario] = {one.name: one for one in _ALL}


def scenario_of_file(
    path: Path, *, load_scale: float, length_scale: float, slo_s: float, target: float, start_up_s: float
) -> Scenario:
    """Recorded traffic, or a traffic file, as it is: on `CHAT`, with one SLO for all requests. Raises TraceError."""
    traffic = partial(_of_file, path=path, load_scale=load_scale, length_scale=length_scale, slo_s=slo_s)
    found = traffic(Draw(0, np.random.default_rng(0), None))
    assert found.load is not None
    peak = math.ceil(float(found.load.replicas.max()))
    first = max(1, math.ceil(found.load(0.0)))
    return Scenario(path.name, "as it is", "", target, traffic, 2 * peak + 2, first, start_up_s=start_up_s)


def _of_file(draw: Draw, path: Path, load_scale: float, length_scale: float, slo_s: float) -> ScenarioTraffic:
    trace = fitted(load_scaled(recorded(path), load_scale), length_scale, 16_000, 1_500)
    if not len(trace):
        raise TraceError(f"{path}: no requests with --load-scale {load_scale:g}")
    work = workload_of(trace, 16_000, (slo_s, slo_s))
    until_s = max(60.0, trace.span_s)
    return ScenarioTraffic(work=work, load=load_of_recorded(CHAT, work, until_s), until_s=until_s)
