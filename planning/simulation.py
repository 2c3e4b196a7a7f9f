"""A spec, a model of it and traffic, ready to be simulated: once as they are, or again with something changed. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoscaling.forecast.forecaster import make_forecaster
from autoscaling.from_spec import FIXED, ScalingSetup
from autoscaling.scaler.decision import ScalingDecision
from autoscaling.signals.signals import PastStart
from cluster.spec import ClusterSpec, Model, Region
from deployments.accounting.tariffs import usd_per_replica_hour
from deployments.engine_model.cost_file import CostFile
from deployments.engine_model.cost_model import CostModel, slowed
from deployments.engine_model.fits import cost_of
from deployments.scheduling.policy import binding_of, policy_of
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.groups import SimulatedGroup
from planning.simulator.outcome import ClassShare, Figures, SimulationOutcome, class_shares, figures_of
from planning.simulator.sampler import Sampler
from planning.simulator.scaling import SimulatedScaling
from planning.simulator.starts import StartPlan
from planning.simulator.workload import Workload
from planning.tune.case import setup_with_starts


def scaling_of(setup: ScalingSetup, until_s: float, start_unix_s: float = 0.0) -> SimulatedScaling:
    """The spec's policy within its bounds. Second 0 of the traffic is at `start_unix_s`, and a forecast has seen
    nothing before it. Raises PolicyError."""
    return SimulatedScaling(
        setup.autoscaler(),
        until_s,
        setup.attainment,
        start_unix_s,
        make_forecaster(setup.forecast),
        setup.overflow(),
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


@dataclass(frozen=True, slots=True)
class SimulatedView:
    """A group of the model, or the model without groups (`model` is the view), in a region. `replicas`: how many run,
    or run at first. `starts`: how long starts take by phases, where known; `usd_per_hour`: the price of a replica."""

    model: Model
    cost: CostModel
    setup: ScalingSetup
    replicas: int
    starts: StartPlan | None = None
    usd_per_hour: float = 0.0

    def replicas_at(self, unix_s: float) -> int:
        """How many run at first, where the policy decides from that moment on: at least what the schedule has then."""
        bounds = self.setup.bounds
        return self.replicas if bounds.schedule is None else max(self.replicas, bounds.at(unix_s).minimum)

    def in_words(self, scales: bool) -> str:
        """How many replicas there are, and who decides it."""
        if not scales or self.setup.policy.name == FIXED:
            return f"{self.replicas} replica{'' if self.replicas == 1 else 's'}"
        bounds, schedule = self.setup.bounds, self.model.replicas.schedule
        by_time = "" if schedule is None else f", bounds by schedule ({schedule.in_words()})"
        return f"{bounds.minimum} to {bounds.maximum} replicas, scaled by {self.setup.policy.name!r}{by_time}"


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """A group of a run: the policy that scales it, its replica-hours and their cost, the replicas on average and at
    most, the changes of their number by reason, the requests that ran there, and the share of those in time (NaN: none
    ran)."""

    group: str
    policy: str
    replica_hours: float
    usd: float
    mean_replicas: float
    max_replicas: int
    changes: Mapping[str, int]
    requests: int
    in_time: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """With `scales` the spec's policy decides on replicas, else their number stays. `views`: one for each group of the
    model. `start_unix_s`: when the traffic begins (Unix time), for bounds by time of day and forecasts. `region`: None:
    the model's first one."""

    spec: ClusterSpec
    model: Model
    views: tuple[SimulatedView, ...]
    work: Workload
    scales: bool
    start_unix_s: float = 0.0
    region: Region | None = None

    @property
    def cost(self) -> CostModel:
        """Of the only group, or of the first one."""
        return self.views[0].cost

    @property
    def setup(self) -> ScalingSetup:
        """Of the only group, or of the first one."""
        return self.views[0].setup

    @property
    def replicas(self) -> int:
        """Of all groups, at first."""
        return sum(view.replicas for view in self.views)

    @property
    def lanes(self) -> list[str]:
        """The names of the spec's lanes, the shortest first."""
        return [lane.name for lane in self.spec.lanes]

    @property
    def itl_s(self) -> dict[str, float]:
        """The time between tokens that classes of the spec aim at, by name."""
        return {one.name: one.itl_ms / 1e3 for one in self.spec.classes if one.itl_ms is not None}

    def scaling(self, view: SimulatedView) -> SimulatedScaling | None:
        """The group's policy and its bounds, new; None where the number of replicas is fixed. Raises PolicyError."""
        return scaling_of(view.setup, float(self.work.arrived_s[-1]), self.start_unix_s) if self.scales else None

    def in_words(self) -> str:
        """How many replicas there are, and who decides it."""
        if len(self.views) == 1:
            return self.views[0].in_words(self.scales)
        return "; ".join(f"{view.model.group}: {view.in_words(self.scales)}" for view in self.views)

    def at_costs(self, factor: float) -> "Simulation":
        """The same with engines that take so many times as long; policies go on believing the spec's costs."""
        return replace(self, views=tuple(replace(view, cost=slowed(view.cost, factor)) for view in self.views))

    def with_more(self, replicas: int) -> "Simulation | None":
        """The same with so many replicas more (fewer, where negative): the number that always runs, or both bounds of
        what the policy decides. None where that is not possible, or the model has several groups."""
        if len(self.views) > 1:
            return None
        count, bounds = self.replicas + replicas, self.setup.bounds
        if self.scales:
            if bounds.minimum + replicas < min(1, bounds.minimum) or bounds.maximum + replicas < 1:
                return None
            schedule = None if bounds.schedule is None else bounds.schedule.moved(replicas)
            moved = replace(
                bounds, minimum=bounds.minimum + replicas, maximum=bounds.maximum + replicas, schedule=schedule
            )
            return self._with_view(replicas=max(0, count), setup=replace(self.setup, bounds=moved))
        return self._with_view(replicas=count) if count >= 1 else None

    def _with_view(self, **changes: Any) -> "Simulation":
        return replace(self, views=(replace(self.views[0], **changes),))

    def run(
        self, progress: Callable[[float], None] = lambda share: None, sampler: Sampler | None = None
    ) -> SimulationOutcome:
        """Runs all of the traffic; `progress` is given the share of the requests that have arrived."""
        sample = None if sampler is None else sampler.take
        return CellSimulator(self.cell_settings(), self.cost, self.work, progress, sample).run()

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

    def group_figures(self, out: SimulationOutcome) -> tuple[GroupFigures, ...]:
        """A run by group, to the last arrival."""
        in_time = np.nan_to_num(out.ttft_s, nan=np.inf) <= self.work.ttft_slo_s
        if len(self.views) == 1:
            every = np.ones(len(out.lifetimes), dtype=np.bool_)
            return (self._group_figures(self.views[0], out, in_time, every, out.scalings),)
        groups = np.array([life.group for life in out.lifetimes])
        return tuple(
            self._group_figures(one, out, in_time, groups == one.model.group, out.scalings_of.get(one.model.group, ()))
            for one in self.views
        )

    def _group_figures(
        self,
        view: SimulatedView,
        out: SimulationOutcome,
        in_time: NDArray[np.bool_],
        own: NDArray[np.bool_],
        decisions: Sequence[ScalingDecision],
    ) -> GroupFigures:
        """`own`: which of the replicas are the group's."""
        until_s = float(self.work.arrived_s[-1])
        lives = [one for one, chosen in zip(out.lifetimes, own.tolist(), strict=True) if chosen]
        hours = sum(max(0.0, min(one.ended_s, until_s) - min(one.started_s, until_s)) for one in lives) / 3600
        ran = np.isin(out.replica, np.flatnonzero(own))
        changed = Counter(one.reason for one in decisions if one.changes)
        begins = [(one.started_s, 1) for one in lives if one.started_s <= until_s]
        ends = [(min(one.drained_s, one.ended_s), -1) for one in lives if one.started_s <= until_s]
        return GroupFigures(
            view.model.group,
            view.setup.policy.name if self.scales else FIXED,
            hours,
            hours * view.usd_per_hour,
            3600 * hours / until_s if until_s else 0.0,
            max(accumulate(change for _, change in sorted(begins + ends)), default=0),
            dict(changed.most_common()),
            int(ran.sum()),
            float(in_time[ran].mean()) if ran.any() else nan,
        )

    def cell_settings(self) -> CellSettings:
        """What the cell runs."""
        groups = tuple(self._group(view) for view in self.views)
        first, policy = groups[0], policy_of(self.spec, self.model, self.region or self.spec.regions_of(self.model)[0])
        if policy.contexts:
            policy = replace(policy, contexts={one.name: one.max_model_len for one in groups})
        return CellSettings(
            first.replicas,
            first.limits,
            policy,
            binding_of(self.spec),
            first.max_model_len,
            self.spec.gateway.timeouts.queue_wait_s,
            first.start_up_s,
            patience_s={one.name: self.spec.patience_s(one) for one in self.spec.classes},
            scaling=first.scaling,
            starts=first.starts,
            groups=groups if len(groups) > 1 else (),
            impatient=frozenset(one.name for one in self.spec.classes if self.model.fallback_of(one.name)),
            spare={one.name: one.spare for one in self.spec.tenants if one.spare},
        )

    def _group(self, view: SimulatedView) -> SimulatedGroup:
        limits = view.setup.replica_profile.limits.with_prefixes(self.work.chunk_tokens)
        return SimulatedGroup(
            view.replicas_at(self.start_unix_s) if self.scales else view.replicas,
            limits,
            view.cost,
            min(view.model.settings.max_model_len, limits.kv_tokens),
            view.setup.replica_profile.start_up_s,
            self.scaling(view),
            view.starts,
            view.model.group,
        )


def simulation_of(
    spec: ClusterSpec,
    model: Model,
    costs: Mapping[str, CostFile],
    work: Workload,
    replicas: int | None,
    scales: bool,
    start_up_s: float | None = None,
    past: Sequence[PastStart] = (),
    start_unix_s: float = 0.0,
    region: Region | None = None,
    usd_per_gpu_hour: float | None = None,
) -> Simulation:
    """The simulation of a model in `region`, or else in its first one. `costs`: by group. `replicas`: instead of the
    spec's count, of a model with one group. `past`: recorded starts, which say how long the phases take;
    `start_unix_s`: when the traffic begins; `usd_per_gpu_hour`: instead of the spec's price. Raises ValueError for
    settings that make no bounds, and PolicyError."""
    region = region or spec.regions_of(model)[0]
    views = []
    for view in spec.groups_of(model, region):
        file = costs[view.group]
        setup, starts = setup_with_starts(spec, view, file, start_up_s, past, region)
        count = view.replicas.count if replicas is None else replicas
        if usd_per_gpu_hour is None:
            price = float(usd_per_replica_hour(spec, view, spec.pool_of(view, region), region))
        else:
            price = usd_per_gpu_hour * view.settings.ranks
        views.append(SimulatedView(view, cost_of(view, file), setup, count, starts, price))
    found = Simulation(spec, model, tuple(views), work, scales, start_unix_s, region)
    for one in found.views:
        found.scaling(one)
    return found
