"""`python -m benchmarks.tune`: tunes a bad spec on one day, and judges what comes out on another, against the best
known there.

    regret = replica-hours of the proposal on the other day / the fewest known with which as many requests are in time
    there - 1

The best known comes from a much longer search on that other day itself: it looks for the cheapest settings that keep at
least the share that the proposal kept: equal attainment, so that hours alone compare. Time is that of the processor:
one core, however busy the machine is. The case is the spec beside this file, with a 70B model in bf16 on four A100 by
data sheets; the traffic is ServeGen's deepseek-r1 day, thinned, and the same with the rates of other days and models in
its stead.

`--pairs 20` asks another question: does the promise hold? Twenty short searches, each on two hours, and one run of
each proposal on two hours that it has not seen: the same hours of another day of the same model (of deepseek-r1, of
which there is one day, the hours thereafter). The number of settings is given, not the time, so the result does not
depend on the machine. The days that `benchmarks.policies` judges by stay unseen.
"""

import csv
import gzip
import math
import time
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.harness import JsonFile, console, run_facts, write_json
from cluster.spec import ClusterSpec, load_spec
from deployments.engine_model.cost_file import CostFile, read_cost_file
from deployments.garbage import calm_garbage_collector
from planning.simulator.workload import workload_of
from planning.tune.case import TuningCase, case_of, own_and_defaults, space_of
from planning.tune.choice import Ground, choose
from planning.tune.gains import gains
from planning.tune.search import Budget, Search
from planning.tune.trial import Candidate, TrialResult, TuningTrial
from planning.tune.trial_runner import TrialRunner
from planning.workload.scaling import LengthLimits, window
from planning.workload.servegen import ServeGenClient, drawn_trace, read_tables
from planning.workload.trace import Trace

SPEC = Path(__file__).with_name("tune.yaml")
START_UP_S = 120.0


def costs() -> CostFile:
    """A roofline (`raylane costs`) of Llama 3.1 70B in bf16 on four A100. A file: results stay comparable while
    rooflines improve."""
    return read_cost_file(Path(__file__).with_name("tune.costs.json"))


def case(trace: Trace, spec: ClusterSpec | None = None) -> TuningCase:
    """The spec's model on that traffic."""
    spec = spec or load_spec(SPEC)
    model = spec.models[0]
    engine = costs().engine
    limits = LengthLimits(model.settings.max_model_len, engine.kv_tokens, engine.block_tokens, fit=True)
    return case_of(spec, model, costs(), workload_of(trace, spec, model, limits), START_UP_S)


DAY_S = 86_400.0
_STEP_S = 600.0
_MODEL = "deepseek-r1"
_RATES = "servegen_aggregate_rates_600s.csv.gz"


def recorded_day(traces: Path, requests: int, seed: int) -> Trace:
    """About so many requests of the recorded day: its rates by ten minutes, its clients' bursts and lengths."""
    clients = _clients(traces)
    rates = day_rates(traces, _MODEL, 0)
    scale = requests / (rates.sum() * _STEP_S)
    return drawn_trace(clients, 0.0, DAY_S, scale, np.random.default_rng(seed), 10 * requests)


@lru_cache
def _clients(traces: Path) -> dict[str, ServeGenClient]:
    return read_tables(traces, _MODEL)


def other_day(traces: Path, model: str, day: int, requests: int, seed: int) -> Trace:
    """Another day's rates by ten minutes, with the bursts and lengths of the recorded day: each request comes when as
    large a share of that day's requests is expected to have come as had come of its own."""
    trace = recorded_day(traces, requests, seed)
    own, desired = (
        np.concatenate(([0.0], np.cumsum(rates / rates.sum())))
        for rates in (day_rates(traces, _MODEL, 0), day_rates(traces, model, day))
    )
    edges = np.arange(len(own)) * _STEP_S
    share = np.interp(trace.arrived_s, edges, own)
    return trace.at(np.interp(share, desired, edges))


def day_rates(traces: Path, model: str, day: int) -> NDArray[np.float64]:
    """Requests a second by ten minutes, gaps filled by lines."""
    folder = traces / "servegen_mid" if model == "m-mid" else traces
    with gzip.open(folder / _RATES, "rt", encoding="utf-8") as lines:
        rows = [(float(row["t"]), float(row["rate_rps"])) for row in csv.DictReader(lines) if row["model"] == model]
    at_s, rates = np.array(rows).T
    return np.asarray(np.interp(day * DAY_S + np.arange(0.0, DAY_S, _STEP_S), at_s, rates))


_CLASS = "interactive"


def searched(tuned: TuningCase, budget: Budget, own: Candidate | None, seed: int) -> list[TuningTrial]:
    """A search; its seconds are processor time."""
    spec = load_spec(SPEC)
    first, defaults = own_and_defaults(spec, spec.models[0])
    began_s = time.process_time()
    runner = TrialRunner(tuned, time.process_time)
    search = Search(
        runner,
        space_of(tuned, first, defaults),
        tuned.setup.attainment,
        budget,
        time.process_time,
        seed=seed,
    )
    trials = search.run(own or first, defaults)
    looked = sum(trial.draft is not None for trial in trials)
    outcome = sum(trial.finished for trial in trials)
    took = (time.process_time() - began_s) / 60
    console.print(f"{looked} settings tried, {outcome} run in full, in {took:.1f} minutes of one core", style="dim")
    return trials


def judged(runner: TrialRunner, candidate: Candidate) -> TrialResult:
    """A run of the whole day."""
    return runner.exact(candidate, float("inf"), to_the_end=True)


def fewest(trials: list[TuningTrial], attainment: float) -> TuningTrial:
    """The cheapest of the runs that kept that share."""
    able = [
        trial
        for trial in trials
        if trial.finished and trial.exact is not None and trial.exact.attainment >= attainment - 1e-9
    ]
    return min(able, key=lambda trial: trial.exact.replica_hours if trial.exact is not None else 0.0)


HOURS = 2
SEARCHED = 8
"""Settings that the search of a pair looks at."""
PROMISED = 0.95
"""The SLO: on some slices the bad spec, too, misses 99 %, whatever its settings, and `tune` promises nothing."""
NEEDED = 0.9
"""Of the promises: the least share that has to be kept."""
_REQUESTS = 26_000
"""In a day: three replicas at noon."""
_DAYS = {"m-small": (0, 3, 4, 5, 6, 7, 8), "m-mid": (0, 4), _MODEL: (0,)}
"""On which choices rested before (docs/decisions/0049-four-knobs-and-a-learned-capacity.md)."""


@dataclass(frozen=True, slots=True)
class DaySlice:
    """Two hours of a day of ServeGen's rates, from `hour` on."""

    model: str
    day: int
    hour: int

    def __str__(self) -> str:
        return f"{self.model} {self.day}, {self.hour}:00"

    def trace(self, traces: Path, seed: int) -> Trace:
        """The slice's requests, drawn with that seed."""
        whole = other_day(traces, self.model, self.day, _REQUESTS, seed)
        return window(whole, 3600.0 * self.hour, 3600.0 * (self.hour + HOURS))


def pair(number: int) -> tuple[DaySlice, DaySlice]:
    """What is tuned on, and what the outcome is judged on."""
    rng = np.random.default_rng(number)
    model = list(_DAYS)[number % len(_DAYS)]
    hour, days = HOURS * int(rng.integers(24 // HOURS)), _DAYS[model]
    if len(days) == 1:
        return DaySlice(model, days[0], hour), DaySlice(model, days[0], (hour + HOURS) % 24)
    first, second = rng.choice(days, 2, replace=False).tolist()
    return DaySlice(model, first, hour), DaySlice(model, second, hour)


@dataclass(frozen=True, slots=True)
class Promise:
    """What came of a pair: replica-hours on the unseen slice with the bad spec and with the proposal, and the
    attainment on both slices."""

    tuned: str
    unseen: str
    ground: Ground
    attained_tuned: float
    attained: float
    attained_before: float
    hours: float
    hours_before: float
    taken_back: int

    @property
    def made(self) -> bool:
        """Whether anything was promised: some settings met the SLO."""
        return self.ground != Ground.NEAREST

    @property
    def kept(self) -> bool:
        return self.made and self.attained >= PROMISED


def promise(traces: Path, number: int) -> Promise:
    """Tunes on one slice, and judges on another."""
    first, second = pair(number)
    tuned, unseen = case(first.trace(traces, 2 * number)), case(second.trace(traces, 2 * number + 1))
    tuned = replace(tuned, setup=replace(tuned.setup, attainment={_CLASS: PROMISED}))
    trials = searched(tuned, Budget(math.inf, SEARCHED), None, number)
    own = trials[0].candidate
    assert own is not None
    slos, runner = tuned.setup.attainment, TrialRunner(tuned, time.process_time)
    found = gains(choose(trials, slos), own, trials, slos, lambda candidate: judged(runner, candidate))
    proposal = found.chosen.trial
    assert proposal.candidate is not None
    on_unseen = TrialRunner(unseen, time.process_time)
    after, before = judged(on_unseen, proposal.candidate), judged(on_unseen, own)
    return Promise(
        str(first),
        str(second),
        found.chosen.ground,
        proposal.whole.attained(_CLASS),
        after.attained(_CLASS),
        before.attained(_CLASS),
        after.replica_hours,
        before.replica_hours,
        sum(not gain.kept for gain in found.found),
    )


def promises(traces: Path, pairs: int, json_file: Path | None) -> None:
    """All pairs, a line each. Exit status 1 where too few keep their promise."""
    found = []
    for number in range(pairs):
        one = promise(traces, number)
        found.append(one)
        console.print(
            f"{one.tuned:>20} -> {one.unseen:20} {one.ground:8} {one.attained_tuned:8.2%} -> {one.attained:8.2%} "
            f"(bad spec {one.attained_before:8.2%}) in {one.hours:6.1f} instead of {one.hours_before:6.1f} h; "
            f"{one.taken_back} changes taken back{'' if one.kept else '  MISSED' if one.made else '  nothing promised'}"
        )
    kept, hours, before = (
        sum(one.kept for one in found),
        sum(one.hours for one in found),
        sum(one.hours_before for one in found),
    )
    made = sum(one.made for one in found)
    console.print(
        f"of {pairs} pairs {made} had a promise, which {kept} kept; {hours:.0f} instead of {before:.0f} replica-hours"
    )
    write_json({**run_facts(), "kept": kept, "pairs": [asdict(one) for one in found]}, json_file)
    if kept < NEEDED * made:
        raise typer.Exit(1)


def main(
    traces: Annotated[Path, typer.Argument(help="The folder with ServeGen's tables.")],
    minutes: Annotated[float, typer.Option(help="Of the measured search.")] = 10.0,
    best_minutes: Annotated[float, typer.Option(help="Of the search for the best known settings.")] = 60.0,
    requests: Annotated[int, typer.Option(min=1_000, help="Requests in a day.")] = 80_000,
    other: Annotated[
        str, typer.Option(help="The other day: MODEL:DAY, or `redrawn` for the same rates.")
    ] = "m-small:8",
    seed: Annotated[int, typer.Option(help="Of the measured search.")] = 0,
    pairs: Annotated[
        int | None, typer.Option(min=1, help="Instead: so many pairs of short slices, and how many keep the promise.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Tune on a day, judge on another."""
    calm_garbage_collector()
    if pairs is not None:
        promises(traces, pairs, json_file)
        return
    train = case(recorded_day(traces, requests, 1))
    model, _, day = other.partition(":")
    test = case(
        recorded_day(traces, requests, 2) if other == "redrawn" else other_day(traces, model, int(day), requests, 2)
    )
    console.print(f"tuning on {len(train.work):,} requests, judging on {len(test.work):,} of {other}")
    trials = searched(train, Budget(60 * minutes), None, seed)
    chosen = choose(trials, train.setup.attainment)
    proposal, own = chosen.trial.candidate, trials[0].candidate
    assert proposal is not None
    assert own is not None
    runner = TrialRunner(test, time.process_time)
    after, before = judged(runner, proposal), judged(runner, own)
    rows: dict[str, tuple[Candidate | None, TrialResult | None]] = {
        "tuned day, spec": (own, trials[0].exact),
        "tuned day, proposal": (proposal, chosen.trial.exact),
        "other day, spec": (own, before),
        "other day, proposal": (proposal, after),
    }
    for name, (_, outcome) in rows.items():  # at once: the long search may be ended
        _print(name, outcome)
    equal = replace(test, setup=replace(test.setup, attainment={_CLASS: min(0.9999, after.attained(_CLASS))}))
    known = [
        *searched(equal, Budget(60 * best_minutes), proposal, seed + 1),
        TuningTrial("proposal", proposal, exact=after),
    ]
    best = fewest(known, after.attainment)
    assert best.exact is not None
    regret = after.replica_hours / best.exact.replica_hours - 1
    rows["other day, best known"] = (best.candidate, best.exact)
    _print("other day, best known", best.exact)
    console.print(f"ground of the choice: {chosen.ground}; regret on the other day, at equal attainment: {regret:.1%}")
    reported: dict[str, Any] = {name: _reported(*row) for name, row in rows.items()}
    write_json(
        {
            **run_facts(),
            "minutes": minutes,
            "best_minutes": best_minutes,
            "other": other,
            "regret": regret,
            "runs": reported,
        },
        json_file,
    )


def _print(name: str, outcome: TrialResult | None) -> None:
    if outcome is not None:
        console.print(f"{name:24} {outcome.replica_hours:8.1f} replica-hours, {outcome.attainment:.3%} in time")


def _reported(candidate: Candidate | None, outcome: TrialResult | None) -> dict[str, Any]:
    settings = None if candidate is None else {**candidate.settings, "replicas.min": candidate.minimum}
    return {
        "settings": settings,
        "replica_hours": outcome and outcome.replica_hours,
        "attainment": outcome and outcome.attainment,
    }


if __name__ == "__main__":
    typer.run(main)
