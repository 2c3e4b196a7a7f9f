"""The curve of each policy in each scenario: attainment and replica-hours over the values of one setting."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path

import numpy as np

from autoscaling.policies.registry import entry_of
from autoscaling.policies.settings import PolicyError, Value
from benchmarks.policies.run import KNOWN_RATE, score_of
from benchmarks.policies.scenarios import Scenario
from benchmarks.policies.scoring import Score
from planning.plans.rates import end_with_parent

_COSTS = (3.0, 10.0, 30.0, 100.0, 1_000.0)
KNOWN_COSTS: Mapping[str, float] = {"backlog-exact": 1.0, "backlog-half": 0.5, "backlog-double": 2.0}
"""Policies that know the costs of the engine's steps, and by which factor wrong. No other policy has a cost file."""
CURVES: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "backlog": ("short_cost", _COSTS),
    "backlog-exact": ("short_cost", _COSTS),
    "backlog-half": ("short_cost", (30.0,)),
    "backlog-double": ("short_cost", (30.0,)),
    "hpa": ("target_waiting", (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)),
    "knative": ("target_utilisation", (0.45, 0.583, 0.7, 0.8, 0.9)),
    "ray_default": ("target_ongoing_requests", (2.0, 4.0, 8.0, 12.0, 16.0, 24.0)),
    "fixed": ("replicas", ()),
    KNOWN_RATE: ("factor", (1.0, 1.15, 1.3, 1.5, 2.0, 3.0, 4.0)),
}
"""The setting that is varied, and its values. Knative is set by hand as its documents say: the target is what an
engine holds, of which a share is aimed at, and steps down wait for ten minutes. `fixed`: numbers up to the scenario's
maximum, so the cheapest that meets the SLO is a fixed peak. The engines hold 12 and 16 sequences."""
_COUNTS = 16
_VALUES = 5


def curve_named(policy: str) -> tuple[str, tuple[float, ...]]:
    """The setting that is varied, and its values (none: numbers of replicas). Of a policy of another package: the first
    one of its `search`, over all of its range. Raises PolicyError where there is none."""
    if policy in CURVES:
        return CURVES[policy]
    search = entry_of(policy).search
    if not search:
        raise PolicyError(f"policy {policy!r}: its PolicyEntry names no setting to vary; needed: `search`")
    name, span = next(iter(search.items()))
    values = (np.geomspace if span.log else np.linspace)(span.low, span.high, _VALUES)
    return name, tuple(dict.fromkeys((values.round() if span.integer else values).tolist()))


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One value of the setting; means over the runs. `recovery_s`: the longest time below the SLO."""

    value: float
    attainment: float
    replica_hours: float
    flaps: float
    recovery_s: float = 0.0


Curve = Sequence[CurvePoint]


def values_of(scenario: Scenario, policy: str) -> tuple[float, ...]:
    counts = np.unique(np.linspace(1, scenario.maximum, _COUNTS).round())
    return curve_named(policy)[1] or tuple(counts.tolist())


def settings_of(policy: str, value: float, sequences: int = 12) -> dict[str, Value]:
    name = curve_named(policy)[0]
    by_hand: dict[str, Value] = {"target_concurrency": float(sequences), "scale_down_delay_s": 600.0}
    return {**(by_hand if policy == "knative" else {}), name: int(value) if value == int(value) else value}


def scores(scenario: Scenario, policy: str, number: int, traces: Path | None) -> list[Score]:
    """One run of a scenario with each value of a policy's setting, in a process of the pool."""
    run = scenario.run(number, traces)
    name, sequences = policy.partition("-")[0], run.serving.limits.sequences
    return [
        score_of(run, name, settings_of(policy, value, sequences), KNOWN_COSTS.get(policy))
        for value in values_of(scenario, policy)
    ]


def curve_of(values: Sequence[float], runs: Sequence[Sequence[Score]]) -> list[CurvePoint]:
    """The means over the runs, each of which has a score for each value."""
    figures = np.array(
        [[(one.attainment, one.replica_hours, one.flaps, one.recovery_s) for one in run] for run in runs]
    )
    return [CurvePoint(value, *row) for value, row in zip(values, figures.mean(axis=0).tolist(), strict=True)]


def pick(curve: Curve, target: float) -> CurvePoint:
    """The cheapest point that meets the SLO; if none does, the one that misses least."""
    meeting = [point for point in curve if point.attainment >= target]
    if meeting:
        return min(meeting, key=lambda point: (point.replica_hours, point.flaps))
    return max(curve, key=lambda point: (point.attainment, -point.replica_hours))


def hours_at(curve: Curve, target: float) -> float | None:
    """Replica-hours at exactly that attainment, on the line between the two points around it; those of the leanest
    point where all attain more. None: no point attains as much."""
    best: list[CurvePoint] = []
    for point in sorted(curve, key=lambda point: (point.replica_hours, -point.attainment)):
        if not best or point.attainment > best[-1].attainment:
            best.append(point)
    if best[-1].attainment < target:
        return None
    attained, hours = [point.attainment for point in best], [point.replica_hours for point in best]
    return float(np.interp(target, attained, hours))


def against(curve: Curve, reference: Curve) -> float | None:
    """Replica-hours as a share of the reference's, at equal attainment: the mean over the points of both curves whose
    attainment lies on both. None: there is none."""
    low = max(min(point.attainment for point in one) for one in (curve, reference))
    high = min(max(point.attainment for point in one) for one in (curve, reference))
    shared = [point.attainment for point in (*curve, *reference) if low <= point.attainment <= high]
    ratios = [(hours_at(curve, one) or 0.0) / (hours_at(reference, one) or 1.0) for one in shared]
    return sum(ratios) / len(ratios) if ratios else None


def compared(
    scenarios: Sequence[Scenario],
    policies: Sequence[str],
    runs: int,
    traces: Path | None,
    jobs: int,
    report: Callable[[int, int, str], None],
) -> dict[str, dict[str, list[CurvePoint]]]:
    """The curve of each policy in each scenario. `report` gets how many of how many jobs are done, and the last one.
    Raises PolicyFailedError, or TraceError."""
    wanted = [(one, policy, number) for one in scenarios for policy in policies for number in range(runs)]
    found: dict[tuple[str, str, int], list[Score]] = {}
    with ProcessPoolExecutor(min(jobs, len(wanted)), get_context("spawn"), end_with_parent) as pool:
        running = {pool.submit(scores, *job, traces): job for job in wanted}
        try:
            for done, future in enumerate(as_completed(running), start=1):
                one, policy, number = running[future]
                found[one.name, policy, number] = future.result()
                report(done, len(wanted), f"{one.name}: {policy}")
        except BaseException:
            for process in active_children():
                process.terminate()
            raise
    return {
        one.name: {
            policy: curve_of(values_of(one, policy), [found[one.name, policy, number] for number in range(runs)])
            for policy in policies
        }
        for one in scenarios
    }
