"""Simulates a plan before it says that an SLO is met: all groups of a model in a region together, with the lanes that
name them in order, as the written spec has them (`spec_groups.py`), in the hours in which one of them has most to do.

Requests come as a Poisson process at the hour's rate; the scheduler places each of them, so that the next group of the
lane helps one that is full. The first part of a run, in which the engines fill, and the last are not judged
(`planning/capacity/sampling.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from deployments.engine_model.cost_model import CostModel, slowed
from planning.capacity.rates import cell_of
from planning.capacity.sampling import judged_part
from planning.plans.answer import PlannedGroup, WorksheetPlan
from planning.plans.rates import working_point_of
from planning.plans.spec_groups import SpecGroup, lane_orders, spec_groups
from planning.plans.traffic import RequestStream, workload_of_bands
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.groups import SimulatedGroup
from planning.simulator.outcome import SimulationOutcome

_REQUESTS, _MAX_REQUESTS = 2_000, 12_000
_TTFTS, _STAYS = 40.0, 15.0
"""A run lasts so many times the longest TTFT, and so many stays of a request in the engine: see
`planning/capacity/rates.py`."""
_MANY = 0.1


class SloVerdict(StrEnum):
    """Of a stream in a region: met at all costs that are likely; met at the stated costs, but not at all of them; or
    missed."""

    MET = "met"
    UNSURE = "unsure"
    MISSED = "missed"


@dataclass(frozen=True, slots=True)
class GroupPart:
    """What became of the stream's requests that a group served (or, where none did, was to serve first): how many were
    judged, and the share that met all parts of the SLO that are asked of them."""

    group: str
    requests: int
    kept: float


@dataclass(frozen=True, slots=True)
class StreamCheck:
    """A stream's requests in a region in one hour. `in_time`: the share whose first token came within the SLO, the
    round trip with it, and `in_time_range` the lowest and highest of the runs at the ends of the costs; `itl_in_time`:
    the share of answers within the SLO's time between tokens (None: no such SLO). `ttft_s`: p50, p90, and the SLO's own
    quantile. `parts`: by group of the plan. `cut`: the share of answers that ended at the context of a group, since the
    scheduler cannot know how long they will be."""

    stream: str
    slo: float
    ttft_slo_s: float
    in_time: float
    in_time_range: tuple[float, float]
    itl_in_time: float | None
    ttft_s: tuple[float, float, float]
    requests: int
    parts: tuple[GroupPart, ...] = ()
    cut: float = 0.0

    @property
    def verdict(self) -> SloVerdict:
        kept = min(self.in_time, 1.0 if self.itl_in_time is None else self.itl_in_time)
        if kept < self.slo:
            return SloVerdict.MISSED
        return SloVerdict.MET if self.in_time_range[0] >= self.slo else SloVerdict.UNSURE


@dataclass(frozen=True, slots=True)
class CellCheck:
    """A model in a region in one hour: `replicas` by group of the plan."""

    model: str
    region: str
    hour: int
    replicas: Mapping[str, int]
    streams: tuple[StreamCheck, ...]

    @property
    def missed(self) -> bool:
        return any(one.verdict is SloVerdict.MISSED for one in self.streams)

    @property
    def late(self) -> frozenset[tuple[str, str]]:
        """The groups (model, group) at which a stream misses its SLO, with a tenth of its late requests at least."""
        found: set[tuple[str, str]] = set()
        for one in self.streams:
            late = {part.group: part.requests * (1 - part.kept) for part in one.parts}
            if one.verdict is SloVerdict.MISSED:
                own = (part.group for part in one.parts if part.kept < one.slo)
                found |= {(self.model, name) for name in own if late[name] >= _MANY * sum(late.values())}
        return frozenset(found)


def checks_of(plan: WorksheetPlan, ranged: bool, report: Callable[[str], None]) -> tuple[CellCheck, ...]:
    """All regions that serve requests of a model. `ranged`: with the costs at both ends of their range, too, where the
    SLOs are met. `report` gets what is simulated."""
    found = []
    for model, region in dict.fromkeys((group.offer.model, group.region) for group in plan.groups):
        own = [group for group in plan.groups if (group.offer.model, group.region) == (model, region)]
        for hour in hours_to_check(plan, own):
            cell = _Cell(plan, own, hour)
            report(f"simulating {model} in {region}, hour {hour}")
            runs = [cell.run(lambda group: group.offer.step_costs)]
            check = cell.check(runs)
            if ranged and not check.missed:
                report(f"simulating {model} in {region}, hour {hour}, with the costs at both ends")
                runs += [cell.run(_at_end(which)) for which in ("low", "high")]
                check = cell.check(runs)
            found.append(check)
    return tuple(found)


def _at_end(which: str) -> Callable[[PlannedGroup], CostModel]:
    return lambda group: slowed(group.offer.step_costs, getattr(group.offer.cost_range, which))


def hours_to_check(plan: WorksheetPlan, groups: Sequence[PlannedGroup]) -> tuple[int, ...]:
    """Of a model's groups in a region: the hour in which each group's replicas have most to do, and of each stream that
    is there in none of these hours, the one in which they have most to do of those in which it is."""
    streams = {band.name: band.stream.name for band in plan.case.bands}
    of_groups: list[tuple[PlannedGroup, set[int]]] = []
    of_streams: list[tuple[PlannedGroup, set[int]]] = []
    for group in groups:
        present: dict[str, set[int]] = {}
        for (band, _), rates in group.served.items():
            own = (hour for hour, rate in enumerate(rates) if rate > 0 and group.count(hour))
            present.setdefault(streams[band], set()).update(own)
        of_groups.append((group, {hour for hours in present.values() for hour in hours}))
        of_streams += [(group, hours) for hours in present.values()]
    found = dict.fromkeys(max(sorted(hours), key=group.pressure) for group, hours in of_groups if hours)
    for group, hours in of_streams:
        if hours and not hours & found.keys():
            found[max(sorted(hours), key=group.pressure)] = None
    return tuple(found)


class _Cell:
    """A model's groups in a region in one hour, and the requests that the plan sends there."""

    def __init__(self, plan: WorksheetPlan, groups: Sequence[PlannedGroup], hour: int) -> None:
        self._plan, self._groups, self._hour = plan, groups, hour
        self._model, self._region = groups[0].offer.model, groups[0].region
        every = spec_groups(plan.groups)
        self._members = [one for one in every if one.planned in groups and one.counts[hour]]
        self._orders = lane_orders(plan.case.spec, self._model, every, plan.case.bands)
        bands = {band.name: band for band in plan.case.bands}
        rates: dict[tuple[str, str], float] = {}
        for group in groups:
            for key, by_hour in group.served.items():
                if by_hour[hour] > 0:
                    rates[key] = rates.get(key, 0.0) + by_hour[hour]
        self._parts = [
            (bands[band], rate, plan.case.rtt_s(origin, self._region) or 0.0) for (band, origin), rate in rates.items()
        ]
        self.work, self._part_of = workload_of_bands(self._parts, self._seconds(), seed=hour)
        self._judged = np.zeros(len(self.work), dtype=np.bool_)
        self._judged[judged_part(len(self.work))] = True

    def _seconds(self) -> float:
        """Long enough for `_REQUESTS`, and for engines to fill and waits to show."""
        rate = sum(each for _, each, _ in self._parts)
        bands = {band.name: band for band, _, _ in self._parts}
        points = [
            working_point_of(group.offer, bands[band])
            for group in self._groups
            for (band, _), rates in group.served.items()
            if rates[self._hour] > 0
        ]
        stay_s = max((point.sequences / point.requests_per_s for point in points if point is not None), default=0.0)
        ttft_s = max(band.stream.ttft_s for band in bands.values())
        return min(max(_REQUESTS / rate, _TTFTS * ttft_s, _STAYS * stay_s), _MAX_REQUESTS / rate)

    def _settings(self, groups: tuple[SimulatedGroup, ...]) -> CellSettings:
        """Of one group alone, whose lanes need not name it; or of all."""
        first = self._members[0]
        cell = cell_of(first.offer.spec, first.offer.view, first.offer.cost, first.counts[self._hour])
        if len(groups) == 1:
            return replace(cell, limits=groups[0].limits)
        names = {group.name for group in groups}
        orders = {lane: tuple(name for name in order if name in names) for lane, order in self._orders.items()}
        contexts = {group.name: group.max_model_len for group in groups}
        return replace(cell, policy=replace(cell.policy, groups=orders, contexts=contexts), groups=groups)

    def run(self, costs: Callable[[PlannedGroup], CostModel]) -> SimulationOutcome:
        """One simulation, with these costs of each group."""
        groups = tuple(self._simulated(one, costs(one.planned)) for one in self._members)
        return CellSimulator(self._settings(groups), groups[0].cost, self.work).run()

    def _simulated(self, one: SpecGroup, cost: CostModel) -> SimulatedGroup:
        limits = one.offer.limits.with_prefixes(self.work.chunk_tokens)
        return SimulatedGroup(one.counts[self._hour], limits, cost, one.offer.context, name=one.name)

    def check(self, runs: Sequence[SimulationOutcome]) -> CellCheck:
        """What the runs show; the first one is at the stated costs."""
        streams = dict.fromkeys(band.stream for band, _, _ in self._parts)
        found = (self._of_stream(stream, runs) for stream in streams)
        replicas = {group.offer.group: count for group in self._groups if (count := group.count(self._hour))}
        return CellCheck(
            self._model, self._region, self._hour, replicas, tuple(one for one in found if one is not None)
        )

    def _of_stream(self, stream: RequestStream, runs: Sequence[SimulationOutcome]) -> StreamCheck | None:
        own = [place for place, (band, _, _) in enumerate(self._parts) if band.stream is stream]
        chosen = self._judged & np.isin(self._part_of, own)
        if not chosen.any():
            return None
        trips = np.array([rtt_s for _, _, rtt_s in self._parts])[self._part_of[chosen]]
        ttfts = [np.nan_to_num(run.ttft_s[chosen], nan=np.inf) + trips for run in runs]
        shares = [float((ttft_s <= stream.ttft_s + 1e-9).mean()) for ttft_s in ttfts]
        p50, p90, quantile_s = (_quantile(ttfts[0], share) for share in (0.5, 0.9, stream.attainment))
        in_time, tpot_s = ttfts[0] <= stream.ttft_s + 1e-9, runs[0].tpot_s[chosen]
        itl_in_time = None
        if stream.itl_s is not None:
            answered = tpot_s[~np.isnan(tpot_s)]
            itl_in_time = float((answered <= stream.itl_s).mean()) if len(answered) else 1.0
        served = self._served_by(runs[0])[chosen]
        contexts = np.array([group.offer.context for group in self._groups])[served]
        tokens = (self.work.prompt_tokens + self.work.output_tokens)[chosen]
        return StreamCheck(
            stream.name,
            stream.attainment,
            stream.ttft_s,
            shares[0],
            (min(shares), max(shares)),
            itl_in_time,
            (p50, p90, quantile_s),
            int(chosen.sum()),
            self._by_group(stream, served, in_time, tpot_s),
            float((tokens > contexts).mean()),
        )

    def _served_by(self, run: SimulationOutcome) -> NDArray[np.int64]:
        """The number of the group of the plan that served each request; of one that none served, the first of its
        lane."""
        numbers = {one.name: self._groups.index(one.planned) for one in self._members}
        of_replica = [numbers.get(life.group, numbers[self._members[0].name]) for life in run.lifetimes]
        lanes = [lane.name for lane in self._plan.case.spec.lanes]
        first = [next((numbers[name] for name in self._orders[lane] if name in numbers), 0) for lane in lanes]
        placed = run.replica >= 0
        served = np.array(of_replica, dtype=np.int64)[np.where(placed, run.replica, 0)]
        return np.where(placed, served, np.array(first, dtype=np.int64)[run.lane])

    def _by_group(
        self,
        stream: RequestStream,
        served: NDArray[np.int64],
        in_time: NDArray[np.bool_],
        tpot_s: NDArray[np.float64],
    ) -> tuple[GroupPart, ...]:
        found = []
        for number in np.unique(served).tolist():
            own = served == number
            shares = [float(in_time[own].mean())]
            answered = tpot_s[own][~np.isnan(tpot_s[own])]
            if stream.itl_s is not None and len(answered):
                shares.append(float((answered <= stream.itl_s).mean()))
            found.append(GroupPart(self._groups[number].offer.group, int(own.sum()), min(shares)))
        return tuple(found)


def _quantile(values: NDArray[np.float64], share: float) -> float:
    return float(np.quantile(values, share, method="lower"))
