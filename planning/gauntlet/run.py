"""Runs one policy through one run, and reports a policy that fails: the autoscaler keeps the number then, so a policy
that always fails would get the score of a number that nobody chose.
"""

from autoscaling.policies.policy import ReplicaProfile, ScalingPolicy
from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import ScenarioRun
from planning.scoring import Score, score
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.scaling import SimulatedScaling


def replica_profile_of(run: ScenarioRun) -> ReplicaProfile:
    """What a policy knows beforehand: the engine, its calibrated costs, and the first start-up time."""
    serving = run.serving
    limits = serving.limits.with_prefixes(run.workload.chunk_tokens)
    return ReplicaProfile(limits, serving.policy.decode_weight, serving.cost, run.start_up_s[0])


def outcome_of(
    run: ScenarioRun, policy: ScalingPolicy, target: float, bounds: Bounds | None = None
) -> SimulationOutcome:
    """`bounds`: instead of the run's."""
    scaling = SimulatedScaling(
        Autoscaler(policy, bounds or run.bounds),
        run.until_s,
        dict.fromkeys(_classes(run), target),
        start_up_s=run.start_up_s,
        faults=run.faults,
    )
    serving = run.serving
    settings = CellSettings(
        run.replicas,
        serving.limits.with_prefixes(run.workload.chunk_tokens),
        serving.policy,
        start_up_s=run.start_up_s[-1],
        fleet=run.fleet,
        scaling=scaling,
    )
    return CellSimulator(settings, serving.cost, run.workload).run()


def score_of(run: ScenarioRun, out: SimulationOutcome, target: float) -> Score:
    lanes = [lane.name for lane in run.serving.policy.lanes]
    load = run.load if run.followed is None else run.followed
    return score(out, run.workload.ttft_slo_s, lanes, run.until_s, target, load, run.usd_per_replica_hour)


def _classes(run: ScenarioRun) -> set[str]:
    column = run.workload.traffic_class
    return {column[index] for index in range(len(column))}


class PolicyFailedError(RuntimeError):
    """A policy failed at every decision of a run; the message names the policy, the scenario and the error."""


def failure_of(out: SimulationOutcome, policy: str, scenario: str) -> str | None:
    """A message about a policy that failed at some decisions; None if it did not. Raises PolicyFailedError if it failed
    at all of them."""
    errors = [one.error for one in out.scalings if one.error is not None]
    if not errors:
        return None
    if all(one.desired is None for one in out.scalings):
        raise PolicyFailedError(
            f"policy {policy!r} failed at every decision of a run of scenario {scenario!r}: {errors[0]}"
        )
    return (
        f"policy {policy!r} failed at some decisions of scenario {scenario!r}, where the number did not change: "
        f"{errors[0]}"
    )
