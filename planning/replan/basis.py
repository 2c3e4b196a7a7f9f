"""What a re-plan is made from: the placement problem that stays, and what is observed now. Plain facts, checked once.

Rates are requests a second, prices US dollars a replica-hour, times of day Unix seconds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from planning.capacity.problem import Problem, Quota, Site

Demand = Mapping[tuple[str, str], float]
"""Requests a second by (`LaneDemand.title`, region of origin). What is handed over counts where it arrived."""


class SiteKey(NamedTuple):
    """A group in a region. `group`: its `Model.group_key`."""

    region: str
    group: str

    def __str__(self) -> str:
        return f"{self.group} in {self.region}"


@dataclass(frozen=True, slots=True)
class ReplanBasis:
    """What stays until the spec or the worksheet changes. Raises ValueError that names what contradicts itself.

    `problem` has one hour. Of its demand only lanes and origins count, since the rates are observed; each site has one
    price kind, whose price holds while no other is observed. `sites` names its sites, in its order; `minimums` and
    `maximums` are the replicas that the spec allows there.

    `peaks`: requests/s of the busiest hour, by (model, origin), and of all origins by (model, ""). The loss of a region
    must be survived where one of these curves is at least `limits.binding` of its peak; always, where there is none.
    """

    problem: Problem
    sites: tuple[SiteKey, ...]
    minimums: tuple[int, ...]
    maximums: tuple[int, ...]
    peaks: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.problem.hours != 1:
            raise ValueError(f"problem: {self.problem.hours} hours; allowed: 1, the one that is re-planned")
        lengths = {len(self.problem.sites), len(self.sites), len(self.minimums), len(self.maximums)}
        if len(lengths) > 1 or len(set(self.sites)) < len(self.sites):
            raise ValueError("sites, minimums, maximums: allowed: one for each site of the problem, each named once")
        for key, site, lowest, highest in zip(
            self.sites, self.problem.sites, self.minimums, self.maximums, strict=True
        ):
            if len(site.prices) != 1:
                raise ValueError(f"{key}: prices = {list(site.prices)}; allowed: the one kind that its pool has")
            if site.region != key.region:
                raise ValueError(f"{key}: its site is in {site.region}; allowed: the same region")
            if not 0 <= lowest <= highest:
                raise ValueError(f"{key}: minimum = {lowest}, maximum = {highest}; allowed: 0 <= minimum <= maximum")

    def site(self, key: SiteKey) -> Site:
        """The problem's site of that name. Raises ValueError where there is none."""
        return self.problem.sites[self.sites.index(key)]

    def gpus(self, quota: Quota, counts: Mapping[SiteKey, int]) -> int:
        """GPUs of a quota that so many replicas take."""
        return sum(
            counts.get(key, 0) * site.gpus
            for key, site in zip(self.sites, self.problem.sites, strict=True)
            if quota.covers(site, next(iter(site.prices)))
        )

    def more(self, key: SiteKey, counts: Mapping[SiteKey, int]) -> int | None:
        """How many more replicas of a site the quotas allow beside those; None: no quota covers it."""
        site = self.site(key)
        quotas = [quota for quota in self.problem.quotas if quota.covers(site, next(iter(site.prices)))]
        free = ((quota.free(0) - self.gpus(quota, counts)) // site.gpus for quota in quotas)
        return max(0, min(free)) if quotas else None

    @property
    def usd_per_hour(self) -> dict[SiteKey, float]:
        """Of one replica of each site."""
        return {key: next(iter(site.prices.values())) for key, site in zip(self.sites, self.problem.sites, strict=True)}


@dataclass(frozen=True, slots=True)
class SiteState:
    """`applied` replicas were asked of the platform; `ready` of them take work. `room`: no more than so many could be
    had when more were asked for (its autoscaler says `unschedulable`); None: nothing is known to be missing."""

    applied: int
    ready: int
    room: int | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """One moment. `demand` is what is expected until the next re-plans, at its highest. `usd_per_hour`: prices that
    differ from the basis'. `lost`: regions that have not answered for long; nothing is known of them."""

    unix_s: float
    demand: Demand
    states: Mapping[SiteKey, SiteState]
    usd_per_hour: Mapping[SiteKey, float] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for what, figures in (("demand", self.demand), ("usd_per_hour", self.usd_per_hour)):
            for key, value in figures.items():
                if not (math.isfinite(value) and value >= 0):
                    raise ValueError(f"{what} of {', '.join(key)} = {value}; allowed: a finite number, 0 or more")


@dataclass(frozen=True, slots=True)
class ReplanSettings:
    """How fast a re-plan moves, and how much it takes to make it move.

    `step`, `step_share`: from re-plan to re-plan the floor of a site changes by at most the larger of so many replicas
    and this share of them, unless the demand, or the loss of a region, is not covered otherwise. `margin`: a replica
    moves for its price where that saves more than this share of what it costs there. `hop_share`: a request that is
    served outside its region counts as dearer by this share of the cheapest replica's work, beside what the transfer
    costs; larger than `margin`, so that what was moved for want of room comes home again. `hold_s`: floors fall to what
    the highest demand expected in so long needs. `slack_share`: so much more than the floor, and at least one replica,
    an autoscaler may add by itself before the next re-plan. `retry_s`: capacity that could not be had is asked for
    again after so long, then after twice as long, up to `longest_retry_s`.
    """

    step: int = 2
    step_share: float = 0.25
    margin: float = 0.1
    hop_share: float = 0.15
    hold_s: float = 900.0
    slack_share: float = 0.25
    retry_s: float = 600.0
    longest_retry_s: float = 7_200.0

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ValueError(f"step = {self.step}; allowed: 1 and more")
        for name in ("step_share", "margin", "hop_share", "hold_s", "slack_share"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} = {getattr(self, name)}; allowed: a finite number, 0 or more")
        if not 0 < self.retry_s <= self.longest_retry_s:
            raise ValueError(
                f"retry_s = {self.retry_s}, longest_retry_s = {self.longest_retry_s}; allowed: 0 < retry_s <= longest"
            )

    def steps(self, replicas: int) -> int:
        """By how many replicas a floor may change at once."""
        return max(self.step, math.ceil(self.step_share * replicas))
