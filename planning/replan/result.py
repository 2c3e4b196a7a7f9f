"""One re-plan: bounds for each group of each region, why, and what they cost; and what the next one continues from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autoscaling.policies.policy import Explained
from planning.replan.basis import Demand, SiteKey


class ReplanReason(Explained):
    """Why a site's target is what it is."""

    FIRST = "first", "the first plan, from what runs"
    STEADY = "steady", "nothing changes"
    DEMAND = "demand", "the expected demand needs this number"
    LOSS = "loss", "without it, the loss of another region would not be survived"
    PRICE = "price", "the same work is cheaper so, by more than the margin"
    ROOM = "room", "capacity could not be had, so it is planned elsewhere; or it is tried there again"
    REGION_LOST = "region_lost", "a region does not answer, so the others carry its demand"
    REGION_BACK = "region_back", "a region answers again"


class HeldBack(Explained):
    """Why a floor is not at its target yet."""

    STEP = "step", "the rest follows in the next re-plans"
    NOT_READY = "not_ready", "what replaces it is not ready yet"
    QUOTA = "quota", "the quota leaves no room for both during the move"


@dataclass(frozen=True, slots=True)
class SiteBounds:
    """The autoscaler of the site keeps at least `floor` and at most `ceiling` replicas; `before` was the last floor.
    `target`: where the floor goes. `usd_per_hour`: of one replica."""

    site: SiteKey
    before: int
    floor: int
    ceiling: int
    target: int
    reason: ReplanReason
    usd_per_hour: float
    held: HeldBack | None = None


class PlanCoverage(StrEnum):
    """What the planned replicas carry."""

    ALL = "all"
    """The demand, and the loss of any one region as far as the worksheet asks for that."""
    NOT_A_LOSS = "not_a_loss"
    """The demand, but not a loss that the worksheet asks to survive."""
    NOT_ALL = "not_all"
    """Not even the demand: `Replan.short` says what is missing."""


@dataclass(frozen=True, slots=True)
class ScarceSite:
    """No more than `room` replicas are asked for until `until_unix_s`; after that, more for a try, and where that
    fails, not for twice `wait_s`."""

    room: int
    until_unix_s: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class ReplanState:
    """What one re-plan leaves to the next. The first one begins with an empty state.

    `bounds`: the fewest and the most replicas of each site that were possible then. `expected`: the demand of the last
    re-plans within `hold_s`, with their times. `before_loss`: what was expected when all regions last answered, or
    what the worksheet has, where they never did.
    """

    targets: Mapping[SiteKey, int] = field(default_factory=dict)
    floors: Mapping[SiteKey, int] = field(default_factory=dict)
    reasons: Mapping[SiteKey, ReplanReason] = field(default_factory=dict)
    usd_per_hour: Mapping[SiteKey, float] = field(default_factory=dict)
    bounds: Mapping[SiteKey, tuple[int, int]] = field(default_factory=dict)
    scarce: Mapping[SiteKey, ScarceSite] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    expected: tuple[tuple[float, Demand], ...] = ()
    before_loss: Demand = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replan:
    """`bounds`: of all sites in regions that answer. `served`: requests/s by (lane's title, origin, site), as the
    target serves them. `usd_before`, `usd_after`, `usd_target`: US dollars an hour of the floors before and now, and of
    the targets. `short`: replicas that are missing, by (model, region), for the demand and for a loss together.
    `unserved`: (lane's title, origin) that no region that answers may serve."""

    unix_s: float
    bounds: tuple[SiteBounds, ...]
    served: Mapping[tuple[str, str, SiteKey], float]
    usd_before: float
    usd_after: float
    usd_target: float
    coverage: PlanCoverage
    short: Mapping[tuple[str, str], float]
    unserved: tuple[tuple[str, str], ...]
    state: ReplanState

    @property
    def changes(self) -> tuple[SiteBounds, ...]:
        """Bounds whose floor changes, or is on its way."""
        return tuple(one for one in self.bounds if one.floor != one.before or one.held is not None)

    def of(self, region: str) -> tuple[SiteBounds, ...]:
        """The bounds that one cell gets."""
        return tuple(one for one in self.bounds if one.site.region == region)
