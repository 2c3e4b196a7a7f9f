"""`python -m benchmarks.tune TRACES`: does the promise of `raylane tune` hold on traffic that it has not seen?

Twenty short searches from a bad spec (`tune.yaml`: a 70B model in bf16 on four A100 by data sheets), each on two hours
of ServeGen's traffic; and one run of each proposal on two hours that it has not seen: the same hours of another day of
the same model (of deepseek-r1, of which there is one day, the hours thereafter). The number of settings is given, not
the time, so the result does not depend on the machine. The days that `benchmarks.policies` judges by stay unseen.
"""

import csv
import gzip
import math
import time
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.harness import JsonFile, console, run_facts, write_json
from cluster.spec import load_spec
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


def case(trace: Trace) -> TuningCase:
    """The spec's model on that traffic."""
    spec, file = load_spec(SPEC), costs()
    model = spec.models[0]
    limits = LengthLimits(model.settings.max_model_len, file.engine.kv_tokens, file.engine.block_tokens, fit=True)
    return case_of(spec, model, file, workload_of(trace, spec, model, limits), START_UP_S)


DAY_S = 86_400.0
_STEP_S = 600.0
_MODEL = "deepseek-r1"
_RATES = "servegen_aggregate_rates_600s.csv.gz"


@lru_cache
def _clients(traces: Path) -> dict[str, ServeGenClient]:
    return read_tables(traces, _MODEL)


def day_of(traces: Path, model: str, day: int, requests: int, seed: int) -> Trace:
    """About so many requests: a day's rates by ten minutes, with the bursts and lengths of the recorded day's clients.
    Each request comes when as large a share of that day's requests is expected to have come as had come of its own."""
    recorded, rates = day_rates(traces, _MODEL, 0), day_rates(traces, model, day)
    scale = requests / (recorded.sum() * _STEP_S)
    trace = drawn_trace(_clients(traces), 0.0, DAY_S, scale, np.random.default_rng(seed), 10 * requests)
    own, desired = (np.concatenate(([0.0], np.cumsum(one / one.sum()))) for one in (recorded, rates))
    share = np.interp(trace.arrived_s, np.arange(len(own)) * _STEP_S, own)
    return trace.at(np.interp(share, desired, np.arange(len(own)) * _STEP_S))


def day_rates(traces: Path, model: str, day: int) -> NDArray[np.float64]:
    """Requests a second by ten minutes, gaps filled by lines."""
    folder = traces / "servegen_mid" if model == "m-mid" else traces
    with gzip.open(folder / _RATES, "rt", encoding="utf-8") as lines:
        rows = [(float(row["t"]), float(row["rate_rps"])) for row in csv.DictReader(lines) if row["model"] == model]
    at_s, rates = np.array(rows).T
    return np.asarray(np.interp(day * DAY_S + np.arange(0.0, DAY_S, _STEP_S), at_s, rates))


_CLASS = "interactive"


def searched(tuned: TuningCase, seed: int) -> list[TuningTrial]:
    """A search of `SEARCHED` settings from the bad spec's on."""
    spec = load_spec(SPEC)
    own, defaults = own_and_defaults(spec, spec.models[0])
    runner, clock = TrialRunner(tuned, time.process_time), time.process_time
    budget, space = Budget(math.inf, SEARCHED), space_of(tuned, own, defaults)
    return Search(runner, space, tuned.setup.attainment, budget, clock, seed=seed).run(own, defaults)


def judged(runner: TrialRunner, candidate: Candidate) -> TrialResult:
    """A run of the whole day."""
    return runner.exact(candidate, float("inf"), to_the_end=True)


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
        whole = day_of(traces, self.model, self.day, _REQUESTS, seed)
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
    trials = searched(tuned, number)
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


def main(
    traces: Annotated[Path, typer.Argument(help="The folder with ServeGen's tables.")],
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of slices: one to tune on, one to judge on.")] = 20,
    json_file: JsonFile = None,
) -> None:
    """Tune on some hours, judge on others. Exit status 1 where too few promises are kept."""
    calm_garbage_collector()
    found = []
    for number in range(pairs):
        one = promise(traces, number)
        found.append(one)
        console.print(
            f"{one.tuned:>20} -> {one.unseen:20} {one.ground:8} {one.attained_tuned:8.2%} -> {one.attained:8.2%} "
            f"(bad spec {one.attained_before:8.2%}) in {one.hours:6.1f} instead of {one.hours_before:6.1f} h; "
            f"{one.taken_back} changes taken back{'' if one.kept else '  MISSED' if one.made else '  nothing promised'}"
        )
    made, kept = sum(one.made for one in found), sum(one.kept for one in found)
    hours, before = sum(one.hours for one in found), sum(one.hours_before for one in found)
    console.print(
        f"of {pairs} pairs {made} had a promise, which {kept} kept; {hours:.0f} instead of {before:.0f} replica-hours"
    )
    write_json({**run_facts(), "kept": kept, "pairs": [asdict(one) for one in found]}, json_file)
    if kept < NEEDED * made:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
