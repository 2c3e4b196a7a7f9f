"""A drill in the simulator of several cells: the same faults, the same requests, the same columns as live.

Clients ask by the same lists of endpoints as live ones (`planning/simulator/clients.py`). One whose answer breaks after
its head sends its request again. Which answers break is known only after a run, so there are two: the first one shows
it, the second one has the repeated requests as well. Both are the same until the break, since all that a cell draws
depends on what came before, and a repeated request has a later number than those.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoscaling.from_spec import cost_of
from cluster.spec import ClusterSpec, Model
from deployments.accounting.tariffs import usd_per_replica_hour
from deployments.engine_model.cost_file import CostFile
from deployments.engine_model.cost_model import slowed
from planning.capacity.rates import cell_of
from planning.drill.drill import Drill, DrillTraffic, RequestShape, StartTimes
from planning.drill.findings import DrillSlo, findings_of
from planning.drill.record import ENDS, DrillRecord, SendEnd
from planning.rehearsal import simulated_capacity
from planning.simulator.cell_plan import CellPlan
from planning.simulator.cells import GIVE_UP_AGES, CellsSimulator
from planning.simulator.cells_outcome import CellsOutcome
from planning.simulator.clients import ClientLists
from planning.simulator.faults import FaultKind
from planning.simulator.workload import plain_workload
from planning.tune.case import setup_with_starts

_SAMPLE_ROUNDS = 8
"""A cell's capacity is measured with so many requests for each of its clients."""
_HOUR_S = 3_600.0
NEAR_COSTS = (0.96, 0.98, 1.02, 1.04)
"""A machine is so much faster or slower from one run to the next (docs/simulator.md, Rehearsing)."""


@dataclass(frozen=True, slots=True)
class DrillCase:
    """The model that is drilled, with its engines' costs. `rtt_s`: the round trip between any two cells.
    `slowness`: engines take so many times as long as the costs say. `patience_s`: of clients, with one request.
    `starts`: how long a cell takes to start, where that was seen; None: its replicas as the model's profile says."""

    spec: ClusterSpec
    model: Model
    costs: CostFile
    rtt_s: Mapping[frozenset[str], float]
    slowness: float = 1.0
    patience_s: float = 120.0
    starts: StartTimes | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """The regions in which the model runs."""
        return tuple(region.name for region in self.spec.regions_of(self.model))

    @property
    def slo(self) -> DrillSlo:
        """Of the spec's first class."""
        first = self.spec.classes[0]
        return DrillSlo(first.ttft_ms / 1e3, first.attainment)

    def plans(self) -> list[CellPlan]:
        """What each cell runs."""
        alone = self._alone()
        cost = slowed(cost_of(self.model, self.costs), self.slowness)
        settings = cell_of(alone, self.model, self.costs, max(1, self.model.replicas.count))
        setup, starts = setup_with_starts(self.spec, self.model, self.costs, None, ())
        settings = replace(settings, start_up_s=setup.replica_profile.start_up_s, starts=starts)
        if self.starts is not None:
            settings = replace(settings, start_up_s=self.starts.replicas_s, starts=None)
        return [CellPlan(name, settings, cost) for name in self.cells]

    def at_costs(self, factor: float) -> "DrillCase":
        """The same with engines that take so many times as long."""
        return replace(self, slowness=factor)

    def capacity(self, shape: RequestShape) -> float:
        """Requests a second that one cell gets through when there is always something to do."""
        plan = self.plans()[0]
        clients = 2 * plan.settings.replicas * plan.settings.limits.sequences
        rng = np.random.default_rng(0)
        count = _SAMPLE_ROUNDS * clients
        prompt, output = shape.prompt.sample(count, rng), shape.output.sample(count, rng)
        return simulated_capacity(
            plan.settings, plan.cost, plain_workload(np.zeros(count), prompt, output, shape.slo_s), clients
        )

    def usd(self, replica_s: Mapping[str, float]) -> float | None:
        """What replicas cost at the prices of their pools or instances; None where none has one."""
        regions = [self.spec.region(name) for name in replica_s]
        prices = {
            region.name: float(
                usd_per_replica_hour(self.spec, self.model, self.spec.pool_of(self.model, region), region)
            )
            for region in regions
        }
        if not any(prices.values()):
            return None
        return sum(prices[name] * seconds for name, seconds in replica_s.items()) / _HOUR_S

    def run(self, drill: Drill | None, traffic: DrillTraffic) -> CellsOutcome:
        """The cells with that traffic, and with the faults, if any."""
        faults = () if drill is None else drill.faults
        if self.starts is not None:
            faults = tuple(replace(one, boot_s=self.starts.boot_s) for one in faults)
        heartbeat_s = self.spec.gateway.heartbeat_s
        clients = ClientLists(traffic.clients, self.patience_s, heartbeat_s)
        return CellsSimulator(
            self._alone(), self.plans(), traffic.work, traffic.homes, self.rtt_s, faults, clients
        ).run()

    def _alone(self) -> ClusterSpec:
        return self.spec.model_copy(update={"models": (self.model,)})


def simulated_recoveries(case: DrillCase, drill: Drill, traffic: DrillTraffic) -> tuple[float | None, ...]:
    """The time until the SLO holds again, with engines a little slower and faster: near the capacity, small causes have
    large effects, and a single run says little."""
    return tuple(
        findings_of(drill, simulate_drill(case.at_costs(factor), drill, traffic), case.slo).recovery_s
        for factor in NEAR_COSTS
    )


def simulate_drill(case: DrillCase, drill: Drill, traffic: DrillTraffic) -> DrillRecord:
    """What the clients see. Raises ValueError for cells that the case does not have."""
    first = case.run(drill, traffic)
    lost = np.flatnonzero(_broken(first) & (traffic.work.arrived_s < drill.at_s))
    if not len(lost):
        return _record(case, drill, traffic, first, np.zeros(len(traffic.work), dtype=np.bool_))
    again_s = drill.at_s + (_given_up_s(case) if drill.kind is FaultKind.PARTITION else 0.0)
    repeated, is_again = _with_repeated(traffic, lost, again_s)
    return _record(case, drill, repeated, case.run(drill, repeated), is_again)


def _broken(out: CellsOutcome) -> NDArray[np.bool_]:
    """Whose answers broke."""
    found: NDArray[np.bool_] = (out.reset | out.broken | ~np.isnan(out.ttft_s)) & np.isnan(out.finished_s)
    return found


def _given_up_s(case: DrillCase) -> float:
    peering = case.spec.peering
    return GIVE_UP_AGES * (peering.max_age_s if peering is not None else 0.0)


def _with_repeated(
    traffic: DrillTraffic, lost: NDArray[np.int64], again_s: float
) -> tuple[DrillTraffic, NDArray[np.bool_]]:
    """The traffic with these requests once more, at `again_s`; and which of its requests those are."""
    work = traffic.work
    place = int(np.searchsorted(work.arrived_s, again_s, "left"))
    order = np.concatenate([np.arange(place), lost, np.arange(place, len(work))])
    is_again = np.zeros(len(order), dtype=np.bool_)
    is_again[place : place + len(lost)] = True
    arrived_s = work.arrived_s[order]
    arrived_s[is_again] = again_s
    repeats = {place + number: first for number, first in enumerate(lost.tolist())}
    repeated = replace(work.take(order, arrived_s), repeats=repeats)
    return DrillTraffic(traffic.cells, repeated, traffic.homes[order], traffic.clients[order]), is_again


def _record(
    case: DrillCase, drill: Drill, traffic: DrillTraffic, out: CellsOutcome, is_again: NDArray[np.bool_]
) -> DrillRecord:
    arrived_s, answered = traffic.work.arrived_s, ~np.isnan(out.finished_s)
    begun = ~np.isnan(out.ttft_s)
    end = np.full(len(arrived_s), ENDS.index(SendEnd.REJECTED))
    end[out.broken | (begun & ~answered)] = ENDS.index(SendEnd.ERROR_EVENT)
    end[out.reset] = ENDS.index(SendEnd.RESET)
    end[out.reset & (arrived_s >= drill.at_s)] = ENDS.index(SendEnd.UNANSWERED)
    end[answered] = ENDS.index(SendEnd.ANSWERED)
    replica_s = {
        name: sum(min(life.ended_s, drill.length_s) - min(life.started_s, drill.length_s) for life in spend.lives)
        for name, spend in zip(case.cells, out.spends, strict=True)
    }
    return DrillRecord(
        case.cells,
        arrived_s,
        out.ttft_s,
        out.finished_s,
        traffic.homes,
        out.asked,
        np.where(answered, out.served, -1),
        end,
        is_again,
        np.zeros(len(arrived_s), dtype=np.bool_),
        replica_s,
        case.usd(replica_s),
    )
