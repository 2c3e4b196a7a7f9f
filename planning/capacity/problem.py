"""The placement problem: lanes with their demand, sites that can serve them, and limits. Plain facts: a worksheet was
checked when it was read.

Rates are requests per second, times are seconds, prices are US dollars per replica-hour.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from cluster.spec.base import Name, no_truth_values
from cluster.spec.regions import GpuName


class PriceKind(StrEnum):
    """How capacity is paid for. RESERVED is bought for all hours; the others by the hour."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED = "reserved"

    @property
    def price_key(self) -> str:
        """The worksheet's key of such a price, in `gpu_prices`."""
        return f"{self}_usd_per_gpu_hour"


@dataclass(frozen=True, slots=True)
class LaneDemand:
    """The requests of one model that count as alike: a length band of a class.

    `demand`: requests/s by region of origin, one figure for each hour. `ttft_s`: the TTFT that clients see at most.
    `regions`: where they may be served (residency); None: everywhere.
    """

    name: str
    model: str
    demand: Mapping[str, tuple[float, ...]]
    ttft_s: float = math.inf
    regions: frozenset[str] | None = None

    @property
    def title(self) -> str:
        """The lane in words."""
        return f"{self.model}: {self.name}"


@dataclass(frozen=True, slots=True)
class Site:
    """A group that can run in a region.

    `rates`: requests/s that one replica serves of each lane when it serves that lane alone, within the lane's SLOs; a
    lane that is absent does not fit. Mixed lanes share a replica in proportion. `rates_from`: the same by (lane,
    origin), for origins whose round trip leaves less of the TTFT, and so a lower rate; 0: nothing. `prices`: by the
    kinds that can be had.
    """

    group: str
    model: str
    region: str
    gpu: str
    gpus: int
    rates: Mapping[str, float]
    prices: Mapping[PriceKind, float]
    rates_from: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def rate(self, lane: str, origin: str) -> float:
        """Requests/s that one replica serves of a lane's requests from an origin; 0: none."""
        return self.rates_from.get((lane, origin), self.rates.get(lane, 0.0))


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `gpus` GPUs of a type in a region at any hour; `price_kind` None: of all kinds together."""

    region: Name
    gpu: GpuName
    gpus: Annotated[int, Field(ge=0, le=1_000_000)]
    price_kind: PriceKind | None = None
    _no_truth_values = no_truth_values

    @property
    def title(self) -> str:
        """The quota in words."""
        return f"quota of {self.gpus} {self.gpu}{f' ({self.price_kind})' if self.price_kind else ''} in {self.region}"

    def covers(self, site: Site, kind: PriceKind) -> bool:
        """Whether replicas of that site, paid for so, count."""
        return (site.region, site.gpu) == (self.region, self.gpu) and self.price_kind in (None, kind)


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds for all sites.

    `utilisation`: share of a replica's rate that is planned for; the rest is headroom, and is used when a region is
    lost. `spot_share`: of a model's replicas in an hour at most. `failures`: replicas of a used site that may fail
    at once. `survive_region`: any one region may be lost in the hours that bind: those in which a model's demand, in
    total or from one region, is at least `binding` of its peak.
    """

    utilisation: float = 1.0
    spot_share: float = 1.0
    failures: int = 0
    survive_region: bool = False
    binding: float = 1.0


@dataclass(frozen=True, slots=True)
class Problem:
    """Demand, sites and limits.

    `rtt_s` and `usd_per_request`: by (origin, region). Without a round trip, an origin uses its own region only.
    `hours`: how many are placed.
    """

    lanes: tuple[LaneDemand, ...]
    sites: tuple[Site, ...]
    hours: int = 1
    quotas: tuple[Quota, ...] = ()
    limits: Limits = Limits()
    rtt_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    usd_per_request: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def of_model(self, model: str) -> "Problem":
        """The same for one model alone."""
        lanes = tuple(lane for lane in self.lanes if lane.model == model)
        return replace(self, lanes=lanes, sites=tuple(site for site in self.sites if site.model == model))

    @property
    def regions(self) -> tuple[str, ...]:
        """Those of the sites."""
        return tuple(sorted({site.region for site in self.sites}))

    @property
    def models(self) -> tuple[str, ...]:
        """Those of the lanes, in their order."""
        return tuple(dict.fromkeys(lane.model for lane in self.lanes))

    def rtt(self, origin: str, region: str) -> float:
        """The round trip (s); infinite where it is not known."""
        return self.rtt_s.get((origin, region), 0.0 if origin == region else math.inf)

    def serves(self, lane: LaneDemand, origin: str, site: Site) -> bool:
        """Whether requests of a lane from an origin may and can be served there: fit, residency, TTFT and network."""
        if site.model != lane.model or site.rate(lane.name, origin) <= 0:
            return False
        if lane.regions is not None and site.region not in lane.regions:
            return False
        rtt_s = self.rtt(origin, site.region)
        return math.isfinite(rtt_s) and rtt_s <= lane.ttft_s

    def binding_hours(self, model: str) -> tuple[int, ...]:
        """The hours in which the loss of a region must be survived."""
        curves: dict[str, list[float]] = {"": [0.0] * self.hours}
        for lane in self.lanes:
            if lane.model != model:
                continue
            for origin, rates in lane.demand.items():
                own = curves.setdefault(origin, [0.0] * self.hours)
                for hour, rate in enumerate(rates):
                    own[hour] += rate
                    curves[""][hour] += rate
        bound = set()
        for curve in curves.values():
            peak = max(curve, default=0.0)
            bound |= {hour for hour, rate in enumerate(curve) if peak > 0 and rate >= self.limits.binding * peak}
        return tuple(sorted(bound))
