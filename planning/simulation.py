"""A spec, a model of it and traffic, ready to be simulated: once as they are, or again with something changed. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

from autoscaling.forecast.forecaster import make_forecaster
from autoscaling.from_spec import ScalingSetup, cost_of
from autoscaling.signals.signals import PastStart
from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import CostFile
from deployments.engine_model.cost_model import CostModel, slowed
from deployments.scheduling.policy import binding_of, policy_of
from planning.scoring import Score, score
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.fleet import FleetEvent, FleetEventKind
from planning.simulator.outcome import ClassShare, Figures, SimulationOutcome, class_shares, figures_of
from planning.simulator.sampler import Sampler
from planning.simulator.scaling import SimulatedScaling
from planning.simulator.starts import StartPlan
from planning.simulator.workload import Workload
from planning.tune.case import load_on, setup_with_starts


def scaling_of(setup: ScalingSetup, until_s: float, start_unix_s: float = 0.0) -> SimulatedScaling:
    """The spec's policy within its bounds. Second 0 of the traffic is at `start_unix_s`, and a forecast has seen
    nothing before it. Raises PolicyError."""
    return SimulatedScaling(
        setup.autoscaler(),
        until_s,
        setup.attainment,
        start_unix_s,
        start_up_s=(setup.replica_profile.start_up_s,),
        forecaster=make_forecaster(setup.forecast),
    )


@dataclass(frozen=True, slots=True)
class RunFigures:
    """A run in figures: `lines` by lane, the last of all requests; attainment by class."""

    lines: tuple[Figures, ...]
    classes: tuple[ClassShare, ...]
    replica_hours: float
    itl_s: Mapping[float, float]
    prefix_hits: float
    """The share of the prefilled prompt tokens that prefix caches held; NaN where nothing was prefilled."""

    def as_json(self) -> dict[str, Any]:
        """Plain values, of all requests."""
        return self.lines[-1].as_json() | {
            "classes": [one.as_json() for one in self.classes],
            "replica_hours": self.replica_hours,
            "prefix_hits": None if isnan(self.prefix_hits) else self.prefix_hits,
        }


@dataclass(frozen=True, slots=True)
class Simulation:
    """`replicas`: how many run, or with `scales` how many run at first and the spec's policy decides from then on.
    `failures_s`: at each of these seconds one replica fails. `starts`: how long starts take by phases, where known.
    `start_unix_s`: when the traffic begins (Unix time), for bounds by time of day and forecasts."""

    spec: ClusterSpec
    model: Model
    cost: CostModel
    work: Workload
    setup: ScalingSetup
    replicas: int
    scales: bool
    failures_s: tuple[float, ...] = ()
    starts: StartPlan | None = None
    start_unix_s: float = 0.0

    @property
    def lanes(self) -> list[str]:
        """The names of the spec's lanes, the shortest first."""
        return [lane.name for lane in self.spec.lanes]

    @property
    def itl_s(self) -> dict[str, float]:
        """The time between tokens that classes of the spec aim at, by name."""
        return {one.name: one.itl_ms / 1e3 for one in self.spec.classes if one.itl_ms is not None}

    def scaling(self) -> SimulatedScaling | None:
        """The policy and its bounds, new; None where the number of replicas is fixed. Raises PolicyError."""
        return scaling_of(self.setup, float(self.work.arrived_s[-1]), self.start_unix_s) if self.scales else None

    def in_words(self) -> str:
        """How many replicas there are, and who decides it."""
        scaling = self.scaling()
        if scaling is None:
            return f"{self.replicas} replica{'' if self.replicas == 1 else 's'}"
        bounds, schedule = scaling.autoscaler.bounds, self.model.replicas.schedule
        by_time = "" if schedule is None else f", bounds by schedule ({schedule.in_words()})"
        return f"{bounds.minimum} to {bounds.maximum} replicas, scaled by {scaling.autoscaler.policy.name!r}{by_time}"

    def at_costs(self, factor: float) -> "Simulation":
        """The same with engines that take so many times as long; policies go on believing the spec's costs."""
        return replace(self, cost=slowed(self.cost, factor))

    def with_more(self, replicas: int) -> "Simulation | None":
        """The same with so many replicas more (fewer, where negative): the number that always runs, or both bounds of
        what the policy decides. None where that is not possible."""
        count, bounds = self.replicas + replicas, self.setup.bounds
        if self.scales:
            if bounds.minimum + replicas < min(1, bounds.minimum) or bounds.maximum + replicas < 1:
                return None
            schedule = None if bounds.schedule is None else bounds.schedule.moved(replicas)
            moved = replace(
                bounds, minimum=bounds.minimum + replicas, maximum=bounds.maximum + replicas, schedule=schedule
            )
            return replace(self, replicas=max(0, count), setup=replace(self.setup, bounds=moved))
        return replace(self, replicas=count) if count >= max(1, len(self.failures_s)) else None

    def run(
        self, progress: Callable[[float], None] = lambda share: None, sampler: Sampler | None = None
    ) -> SimulationOutcome:
        """Runs all of the traffic; `progress` is given the share of the requests that have arrived."""
        sample = None if sampler is None else sampler.take
        return CellSimulator(self._settings(), self.cost, self.work, progress, sample).run()

    def figures(self, out: SimulationOutcome) -> RunFigures:
        """A run in figures."""
        slo_s = self.work.ttft_slo_s
        return RunFigures(
            tuple(figures_of(out, slo_s, self.lanes, self.work.rejected)),
            class_shares(out, slo_s, self.work.traffic_class, self.itl_s),
            out.replica_s / 3600,
            out.itl_s,
            out.prefix_hits,
        )

    def scored(self, out: SimulationOutcome) -> Score:
        """The score of a run, to the last arrival."""
        until_s = float(self.work.arrived_s[-1])
        target = min(self.setup.attainment.values(), default=0.99)
        load = load_on(self.work, self.setup.replica_profile, self.cost, until_s)
        return score(out, self.work.ttft_slo_s, self.lanes, until_s, target, load)

    def scaled_figures(self, out: SimulationOutcome) -> dict[str, Any]:
        """The policy, the replicas that it took, and its decisions that changed something, by reason."""
        scored = self.scored(out)
        return {
            "policy": self.setup.policy.name,
            "replica_hours": scored.replica_hours,
            "mean_replicas": scored.mean_replicas,
            "max_replicas": max((one.requested for one in out.scalings), default=0),
            "changes": scored.changes,
            "flaps": scored.flaps,
            "reasons": dict(Counter(one.reason for one in out.scalings if one.changes).most_common()),
        }

    def _settings(self) -> CellSettings:
        scheduled = self.setup.bounds.at(self.start_unix_s).minimum if self.setup.bounds.schedule is not None else 0
        return CellSettings(
            max(self.replicas, scheduled) if self.scales else self.replicas,
            self.setup.replica_profile.limits.with_prefixes(self.work.chunk_tokens),
            policy_of(self.spec),
            binding_of(self.spec),
            self.model.settings.max_model_len,
            self.spec.gateway.timeouts.queue_wait_s,
            self.setup.replica_profile.start_up_s,
            _failures(self.failures_s),
            patience_s={one.name: self.spec.patience_s(one) for one in self.spec.classes},
            scaling=self.scaling(),
            starts=self.starts,
        )


def simulation_of(
    spec: ClusterSpec,
    model: Model,
    cost: CostFile,
    work: Workload,
    replicas: int,
    scales: bool,
    start_up_s: float | None = None,
    failures_s: Sequence[float] = (),
    past: Sequence[PastStart] = (),
    start_unix_s: float = 0.0,
) -> Simulation:
    """The simulation of a model in its first region. `past`: recorded starts, which say how long the phases take;
    `start_unix_s`: when the traffic begins. Raises ValueError for settings that make no bounds, and PolicyError."""
    setup, starts = setup_with_starts(spec, model, cost, start_up_s, past)
    engines, failures = cost_of(model, cost), tuple(failures_s)
    found = Simulation(spec, model, engines, work, setup, replicas, scales, failures, starts, start_unix_s)
    found.scaling()
    return found


def _failures(times_s: Sequence[float]) -> tuple[FleetEvent, ...]:
    return tuple(FleetEvent(at_s, FleetEventKind.FAIL, number) for number, at_s in enumerate(sorted(times_s)))
