"""`raylane simulate` of a model that scales: the spec's law in the simulator, and what it did in figures."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from autoscaling.forecast.forecaster import make_forecaster
from autoscaling.from_spec import ScalingSetup
from cli.console import console
from deployments.engine_model.cost_model import CostModel
from planning.scoring import Score, score
from planning.simulator.outcome import Outcome
from planning.simulator.scaling import Scaling
from planning.simulator.workload import Workload
from planning.tune.case import load_on

StartUp = Annotated[
    float | None,
    typer.Option(
        "--start-up", min=0, metavar="SECONDS", help="What a replica takes to start; default: as a simulated engine's section says, else 60."
    ),
]


def scaling_of(setup: ScalingSetup, until_s: float) -> Scaling:
    """The spec's law within its bounds. Second 0 of the traffic is midnight, and a forecast has seen nothing before it. Raises LawError."""
    forecaster = make_forecaster(setup.forecast)
    return Scaling(setup.autoscaler(), until_s, setup.attainment, start_up_s=(setup.plant.start_up_s,), forecaster=forecaster)


def in_words(scaling: Scaling) -> str:
    """The law, and within what it decides."""
    bounds = scaling.autoscaler.bounds
    return f"{bounds.least} to {bounds.most} replicas, scaled by {scaling.autoscaler.law.name!r}"


def scored(scaling: Scaling, out: Outcome, work: Workload, setup: ScalingSetup, cost: CostModel, lanes: Sequence[str]) -> Score:
    """The score of a run, to the last arrival."""
    target = min(setup.attainment.values(), default=0.99)
    return score(out, work.ttft_slo_s, lanes, scaling.until_s, target, load_on(work, setup.plant, cost, scaling.until_s))


def scaled_figures(scaling: Scaling, out: Outcome, scored: Score) -> dict[str, Any]:
    """The law, what it took, and its decisions that changed something, by reason."""
    return {
        "policy": scaling.autoscaler.law.name,
        "replica_hours": scored.replica_hours,
        "mean_replicas": scored.mean_replicas,
        "most_replicas": max((one.requested for one in out.scalings), default=0),
        "changes": scored.changes,
        "flaps": scored.flaps,
        "reasons": dict(Counter(one.reason for one in out.scalings if one.changes).most_common()),
    }


def show_scaling(told: Mapping[str, Any]) -> None:
    """One line of the figures."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in told["reasons"].items())
    console.print(
        f"replicas: {told['mean_replicas']:.2f} on average, {told['most_replicas']} at most, {told['replica_hours']:.2f} replica-hours; "
        f"{told['changes']} changes{f' ({reasons})' if reasons else ''}, {told['flaps']} flaps"
    )
