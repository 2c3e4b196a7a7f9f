"""ServeGen's days: the shape of a real service's day, with the long answers of a reasoning model.

ServeGen (Alibaba, 2025) describes two weeks of a small chat model by client, and one day of deepseek-r1. Both are
scaled to some 45,000 requests a day on a slow engine: three to four replicas on average and twice as many in the
evening. Rates and gaps are those of the description (10-minute counts, bursts by client). Lengths are those of
deepseek-r1's day, on all days, cut at 8,000 and 4,000 tokens. Policies are tuned on day 1 of the small model, which has
enough variety, and judged on days 4 to 9 and on deepseek-r1's own day. A good policy follows the day, keeps what the
noise needs, and removes no replica that it needs again before a new one would have started.
"""

import zlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.recorded import TracesError, fitted, rate_of_recorded, trace_file, workload_of
from planning.gauntlet.scenario import Draw, Scenario, ScenarioRun
from planning.gauntlet.serving import REASONING, LoadCurve, load_of
from planning.workload.arrivals import FloatArray
from planning.workload.servegen import LENGTHS, RATES, WINDOW_S, ServeGenClient, ServeGenError, drawn_trace, read_tables
from planning.workload.trace import Trace

DAY_S = 86_400.0
TRAINING_DAY, HELD_OUT_DAYS = 0, (3, 4, 5, 6, 7, 8)
SMALL, REASONER = "m-small", "deepseek-r1"
_PER_S = 0.54
"""Requests a second, over a whole day of either model's description."""
_MEAN_OF = {SMALL: 520.0, REASONER: 16.0}
_MAX = 200_000


@lru_cache
def _tables(folder: Path, model: str) -> dict[str, ServeGenClient]:
    try:
        return read_tables(folder, model)
    except zlib.error as error:
        raise ServeGenError(f"{folder}: a table of ServeGen cannot be unpacked: {error}") from error


@lru_cache
def _lengths(folder: Path) -> Trace:
    return drawn_trace(_tables(folder, REASONER), 0.0, DAY_S, 0.01, np.random.default_rng(11), _MAX)


def _run(draw: Draw, model: str, day: int, rng: np.random.Generator) -> ScenarioRun:
    folder = trace_file(draw, RATES).parent
    return day_of(folder, folder, model, _MEAN_OF[model], day * DAY_S, rng)


def day_of(folder: Path, rates: Path, model: str, mean: float, from_s: float, rng: np.random.Generator) -> ScenarioRun:
    """A day from that second on of the model whose rates lie in `rates` (`mean`: requests a second there), with the
    lengths of the reasoning model in `folder`. Raises TracesError."""
    try:
        clients, lengths = _tables(rates, model), _lengths(folder)
        scale = _PER_S / mean
        trace = drawn_trace(clients, from_s, from_s + DAY_S, scale, rng, _MAX)
    except ServeGenError as error:
        raise TracesError(str(error)) from error
    like = rng.integers(0, len(lengths), len(trace))
    trace = replace(
        trace, prompt_tokens=lengths.prompt_tokens[like], output_tokens=lengths.output_tokens[like], tenant=None
    )
    trace = fitted(trace, 1.0, 8_000, 4_000)
    work = workload_of(trace, 5_000, (5.0, 15.0))
    return ScenarioRun(
        REASONING,
        work,
        _load(clients, from_s, scale, rate_of_recorded(REASONING, work)),
        Bounds(1, 16),
        4,
        DAY_S,
        start_up_s=(90.0,),
    )


def _load(clients: dict[str, ServeGenClient], from_s: float, scale: float, per_replica: float) -> LoadCurve:
    per_window = np.zeros(int(DAY_S / WINDOW_S))
    for client in clients.values():
        for window in client.windows:
            number = int((window.at_s - from_s) // WINDOW_S)
            if 0 <= number < len(per_window):
                per_window[number] += window.rate * WINDOW_S * scale
    before = np.concatenate([[0.0], np.cumsum(per_window)])

    def expected(at_s: FloatArray) -> FloatArray:
        until: FloatArray = np.interp(at_s, np.arange(len(before)) * WINDOW_S, before)
        return until

    return load_of(expected, per_replica, DAY_S)


def _week(draw: Draw) -> ScenarioRun:
    day = TRAINING_DAY if draw.training else HELD_OUT_DAYS[draw.number % len(HELD_OUT_DAYS)]
    return _run(draw, SMALL, day, draw.rng("servegen_week"))


def _reasoner(draw: Draw) -> ScenarioRun:
    return _run(draw, REASONER, 0, draw.rng("servegen_r1"))


_WEEK = Scenario(
    "servegen_week",
    "ServeGen: days of a chat service",
    "a recorded day",
    0.99,
    _week,
    len(HELD_OUT_DAYS),
    (RATES, LENGTHS),
    long=True,
    day=True,
)
_REASONER = replace(
    _WEEK,
    name="servegen_r1",
    title="ServeGen: a day of deepseek-r1",
    runs=_reasoner,
    held_out=2,
    tuned_on="servegen_week",
)
SCENARIOS = (_WEEK, _REASONER)
