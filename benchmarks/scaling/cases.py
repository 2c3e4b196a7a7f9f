"""Days and hours on which a policy should rest: a service whose upstream has failed, a day with half an hour without
traffic, one request a minute."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from autoscaling.policies.policy import ReplicaProfile
from autoscaling.scaler.decision import Bounds
from planning.gauntlet.recorded import TracesError
from planning.gauntlet.registry import SCENARIOS
from planning.gauntlet.run import replica_profile_of
from planning.gauntlet.scenario import Draw, ScenarioRun
from planning.gauntlet.scenarios.servegen import DAY_S, HELD_OUT_DAYS, SMALL, day_of
from planning.gauntlet.serving import CHAT, STEP_S, LoadCurve
from planning.gauntlet.traffic import CHATS, LoadStream, drawn, rate_of

MID, MID_FOLDER, MID_MEAN = "m-mid", "servegen_mid", 1_640.0
MID_FROM_S = 9 * DAY_S + 15 * 3_600
"""Day 10, 15:00: next to nothing comes until 17:00."""
QUIET_S = (12 * 3_600.0, 12.5 * 3_600.0)
HOUR_S = 3_600.0
TRICKLE_S = 3 * 3_600.0
_EVEN = 400.0
"""The shape of gaps that differ by a twentieth."""
MEAN_OF_SMALL = 520.0


@dataclass(frozen=True, slots=True, eq=False)
class ScalingCase:
    """A run, the attainment that it asks for, and what the policy knows of a replica."""

    run: ScenarioRun
    target: float
    replica_profile: ReplicaProfile


def scenario_case(name: str, traces: Path | None, number: int) -> ScalingCase:
    """A held-out run of one of the gauntlet's scenarios."""
    scenario = SCENARIOS[name]
    return _case(scenario.runs(Draw(number, False, traces)), scenario.target)


def mid_day(traces: Path | None, number: int) -> ScalingCase:
    """ServeGen's m-mid from 15:00 of day 10 on, for 24 hours."""
    folder = _folder(traces)
    run = day_of(folder, folder / MID_FOLDER, MID, MID_MEAN, MID_FROM_S, np.random.default_rng([10, number]))
    return _case(run, 0.99)


def quiet_half_hour(traces: Path | None, number: int) -> ScalingCase:
    """A day of the small chat model, from noon on without any request for half an hour."""
    folder = _folder(traces)
    run = day_of(folder, folder, SMALL, MEAN_OF_SMALL, HELD_OUT_DAYS[0] * DAY_S, np.random.default_rng([30, number]))
    return _case(without_arrivals(run, *QUIET_S), 0.99)


def trickle(traces: Path | None, number: int, minimum: int, measured: bool) -> ScalingCase:
    """A request a minute for three hours, every other run at even distances. `measured`: whether the policy knows what
    a replica costs."""
    rng = np.random.default_rng([60, number])
    load = 1 / 60 / rate_of(CHAT, CHATS)
    stream = LoadStream(CHATS, [(0, load)], shape=_EVEN if number % 2 else 1.0)
    work, expected = drawn(CHAT, [stream], TRICKLE_S, rng)
    run = ScenarioRun(CHAT, work, expected, Bounds(minimum, 8), minimum, TRICKLE_S)
    case = _case(run, 0.95)
    return case if measured else replace(case, replica_profile=replace(case.replica_profile, cost=None))


def out_of_reach(traces: Path | None, number: int, slo_s: float) -> ScalingCase:
    """A steady load of 1.2 replicas for an hour, with an SLO of a first token within `slo_s`."""
    work, expected = drawn(CHAT, [LoadStream(CHATS, [(0, 1.2)])], HOUR_S, np.random.default_rng([70, number]))
    work = replace(work, ttft_slo_s=np.full(len(work), slo_s))
    return _case(ScenarioRun(CHAT, work, expected, Bounds(1, 8), 2, HOUR_S), 0.95)


def without_arrivals(run: ScenarioRun, from_s: float, to_s: float) -> ScenarioRun:
    """The run without the requests that arrive between these times."""
    work, load = run.workload, run.load.replicas
    kept = np.flatnonzero((work.arrived_s < from_s) | (work.arrived_s >= to_s))
    at_s = np.arange(len(load)) * STEP_S
    return replace(
        run,
        workload=replace(work.take(kept, work.arrived_s[kept]), changes=work.changes, session=None),
        load=LoadCurve(np.where((at_s >= from_s) & (at_s < to_s), 0.0, load)),
    )


RESTING: Mapping[str, Callable[[Path | None, int], ScalingCase]] = {
    "m-mid-outage": mid_day,
    "quiet-half-hour": quiet_half_hour,
    "trickle-1": partial(trickle, minimum=1, measured=True),
    "trickle-2": partial(trickle, minimum=2, measured=True),
    "trickle-1-unmeasured": partial(trickle, minimum=1, measured=False),
    "trickle-2-unmeasured": partial(trickle, minimum=2, measured=False),
    "slo-50ms": partial(out_of_reach, slo_s=0.05),
    "slo-200ms": partial(out_of_reach, slo_s=0.2),
    "outage": partial(scenario_case, "outage"),
}

RECORDED = ("m-mid-outage", "quiet-half-hour")
"""Those that want recorded traffic, and take half a minute each."""


def _case(run: ScenarioRun, target: float) -> ScalingCase:
    return ScalingCase(run, target, replica_profile_of(run))


def _folder(traces: Path | None) -> Path:
    if traces is None:
        raise TracesError("recorded traffic: no folder is given")
    return traces
