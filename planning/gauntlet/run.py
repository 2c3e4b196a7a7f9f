"""One policy through one play; and what is said of a policy that raises: the autoscaler keeps the number then, so a policy that
never answers has a score too, of a number that nobody chose.
"""

from autoscaling.laws.law import Law, Plant
from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Play
from planning.scoring import Score, score
from planning.simulator.cell import Cell, CellSettings
from planning.simulator.outcome import Outcome
from planning.simulator.scaling import Scaling


def plant_of(play: Play) -> Plant:
    """What a law may know beforehand: the engine, its calibrated costs, and how long a start is thought to take."""
    serving = play.serving
    return Plant(serving.limits, serving.policy.decode_weight, serving.cost, play.start_up_s[0])


def outcome_of(play: Play, law: Law, target: float, bounds: Bounds | None = None) -> Outcome:
    """What becomes of the requests, and of the replicas. `bounds`: instead of the play's."""
    scaling = Scaling(
        Autoscaler(law, bounds or play.bounds),
        play.until_s,
        dict.fromkeys(_classes(play), target),
        start_up_s=play.start_up_s,
        faults=play.faults,
    )
    serving = play.serving
    settings = CellSettings(play.replicas, serving.limits, serving.policy, start_up_s=play.start_up_s[-1], fleet=play.fleet, scaling=scaling)
    return Cell(settings, serving.cost, play.workload).run()


def score_of(play: Play, out: Outcome, target: float) -> Score:
    lanes = [lane.name for lane in play.serving.policy.lanes]
    load = play.load if play.followed is None else play.followed
    return score(out, play.workload.ttft_slo_s, lanes, play.until_s, target, load, play.usd_per_replica_hour)


def _classes(play: Play) -> set[str]:
    column = play.workload.traffic_class
    return {column[index] for index in range(len(column))}


class LawFailedError(RuntimeError):
    """A law that answered not once in a play; the message names the law, the scenario and what it raised."""


def failure_of(out: Outcome, law: str, scenario: str) -> str | None:
    """What to tell of a law that raised at times, None of one that did not. Raises LawFailedError for one that did nothing else."""
    errors = [one.error for one in out.scalings if one.error is not None]
    if not errors:
        return None
    if all(one.wanted is None for one in out.scalings):
        raise LawFailedError(f"law {law!r} failed at every decision of a play of scenario {scenario!r}: {errors[0]}")
    return f"law {law!r} failed at some decisions of scenario {scenario!r}, where the number of replicas stayed: {errors[0]}"
