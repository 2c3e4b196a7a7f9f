"""Simulates a plan before it says that an SLO is met: each group in each region in the hours in which it has most to
do, with the costs as they are, and at both ends of their range.

Requests come as a Poisson process at the hour's rate. The first part of a run, in which the engines fill, and the last
are not judged (`planning/capacity/sampling.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from deployments.engine_model.cost_model import CostModel, slowed
from planning.capacity.rates import cell_of
from planning.capacity.sampling import judged_part
from planning.plans.answer import PlannedGroup, WorksheetPlan
from planning.plans.rates import working_point_of
from planning.plans.traffic import Band, RequestStream, workload_of_bands
from planning.simulator.cell import CellSimulator
from planning.simulator.outcome import SimulationOutcome

_REQUESTS, _MAX_REQUESTS = 2_000, 12_000
_TTFTS, _STAYS = 40.0, 15.0
"""A run lasts so many times the longest TTFT, and so many stays of a request in the engine: see
`planning/capacity/rates.py`."""


class SloVerdict(StrEnum):
    """Of a stream at a group: met at all costs that are likely; met at the stated costs, but not at all of them; or
    missed."""

    MET = "met"
    UNSURE = "unsure"
    MISSED = "missed"


@dataclass(frozen=True, slots=True)
class StreamCheck:
    """A stream's requests at a group in its busiest hour. `in_time`: the share whose first token came within the SLO,
    the round trip with it; `itl_in_time`: the share of answers within the SLO's time between tokens (None: no such
    SLO). Pairs are the lowest and highest of the runs at the ends of the costs. `ttft_s`: p50, p90, and the SLO's own
    quantile."""

    stream: str
    slo: float
    ttft_slo_s: float
    in_time: float
    in_time_range: tuple[float, float]
    itl_in_time: float | None
    ttft_s: tuple[float, float, float]
    ttft_range_s: tuple[float, float]
    requests: int

    @property
    def verdict(self) -> SloVerdict:
        kept = min(self.in_time, 1.0 if self.itl_in_time is None else self.itl_in_time)
        if kept < self.slo:
            return SloVerdict.MISSED
        return SloVerdict.MET if self.in_time_range[0] >= self.slo else SloVerdict.UNSURE


@dataclass(frozen=True, slots=True)
class GroupCheck:
    """A group in a region in its busiest hour."""

    group: PlannedGroup
    hour: int
    replicas: int
    streams: tuple[StreamCheck, ...]

    @property
    def missed(self) -> bool:
        return any(one.verdict is SloVerdict.MISSED for one in self.streams)


def checks_of(plan: WorksheetPlan, ranged: bool, report: Callable[[str], None]) -> tuple[GroupCheck, ...]:
    """All groups that serve requests. `ranged`: with the costs at both ends, too. `report` gets what is simulated."""
    found = []
    for group in plan.groups:
        for hour in hours_to_check(plan, group):
            report(f"simulating {group.name}, hour {hour}")
            found.append(_checked(plan, group, hour, ranged))
    return tuple(found)


def hours_to_check(plan: WorksheetPlan, group: PlannedGroup) -> tuple[int, ...]:
    """The hour in which the group's replicas have most to do, and of each stream that is not there then, the hour in
    which they have most to do of those in which it is."""
    streams = {band.name: band.stream.name for band in plan.case.bands}
    found: list[int] = []
    present: dict[str, set[int]] = {}
    for (band, _), rates in group.served.items():
        present.setdefault(streams[band], set()).update(hour for hour, rate in enumerate(rates) if rate > 0)
    everything = {hour for hours in present.values() for hour in hours}
    for hours in (everything, *present.values()):
        if hours and not hours & set(found):
            found.append(max(sorted(hours), key=group.pressure))
    return tuple(found)


def _checked(plan: WorksheetPlan, group: PlannedGroup, hour: int, ranged: bool) -> GroupCheck:
    bands = {band.name: band for band in plan.case.bands}
    parts = [
        (bands[band], rates[hour], plan.case.rtt_s(origin, group.region) or 0.0)
        for (band, origin), rates in group.served.items()
        if rates[hour] > 0
    ]
    seconds = _seconds(group, parts)
    cost, likely = group.offer.step_costs, group.offer.cost_range
    ends = (likely.low, likely.high) if ranged else ()
    runs = [_Run(plan, group, parts, seconds, hour, one) for one in (cost, *(slowed(cost, end) for end in ends))]
    streams = dict.fromkeys(band.stream for band, _, _ in parts)
    checks = (_of_stream(stream, runs) for stream in streams)
    return GroupCheck(group, hour, group.count(hour), tuple(one for one in checks if one is not None))


def _seconds(group: PlannedGroup, parts: list[tuple[Band, float, float]]) -> float:
    """Long enough for `_REQUESTS`, and for engines to fill and waits to show."""
    rate = sum(each for _, each, _ in parts)
    points = (working_point_of(group.offer, band) for band, _, _ in parts)
    stay_s = max((point.sequences / point.requests_per_s for point in points if point is not None), default=0.0)
    seconds = max(_REQUESTS / rate, _TTFTS * max(band.stream.ttft_s for band, _, _ in parts), _STAYS * stay_s)
    return min(seconds, _MAX_REQUESTS / rate)


class _Run:
    """One simulation, and which requests of it are judged."""

    def __init__(
        self,
        plan: WorksheetPlan,
        group: PlannedGroup,
        parts: list[tuple[Band, float, float]],
        seconds: float,
        hour: int,
        cost: CostModel,
    ) -> None:
        offer = group.offer
        self.work, self.part_of = workload_of_bands(parts, seconds, seed=hour)
        self.parts = parts
        cell = cell_of(offer.spec, offer.view, offer.cost, group.count(hour))
        limits = cell.limits.with_prefixes(self.work.chunk_tokens)
        self.out: SimulationOutcome = CellSimulator(replace(cell, limits=limits), cost, self.work).run()
        self.judged = np.zeros(len(self.work), dtype=np.bool_)
        self.judged[judged_part(len(self.work))] = True


def _of_stream(stream: RequestStream, runs: list[_Run]) -> StreamCheck | None:
    shares, itl_shares, quantiles = [], [], []
    count = 0
    for number, run in enumerate(runs):
        own = [place for place, (band, _, _) in enumerate(run.parts) if band.stream is stream]
        chosen = run.judged & np.isin(run.part_of, own)
        if not chosen.any():
            return None
        trips = np.array([rtt_s for _, _, rtt_s in run.parts])[run.part_of[chosen]]
        ttft_s = np.nan_to_num(run.out.ttft_s[chosen], nan=np.inf) + trips
        shares.append(float((ttft_s <= stream.ttft_s + 1e-9).mean()))
        quantiles.append(tuple(float(np.quantile(ttft_s, q, method="lower")) for q in (0.5, 0.9, stream.attainment)))
        if stream.itl_s is not None:
            tpot_s = run.out.tpot_s[chosen]
            answered = tpot_s[~np.isnan(tpot_s)]
            itl_shares.append(float((answered <= stream.itl_s).mean()) if len(answered) else 1.0)
        count = count if number else int(chosen.sum())
    p50, p90, own_s = quantiles[0]
    return StreamCheck(
        stream.name,
        stream.attainment,
        stream.ttft_s,
        shares[0],
        (min(shares), max(shares)),
        itl_shares[0] if itl_shares else None,
        (p50, p90, own_s),
        (min(one[2] for one in quantiles), max(one[2] for one in quantiles)),
        count,
    )
