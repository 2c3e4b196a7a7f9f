"""The groups of a plan as a spec has them, and the order in which they serve each lane: for the spec that is written,
and for the simulation of the plan, which is of the same groups.

A spec's group has the same bounds in all its regions and one kind of pool, so a planned group becomes one for each
region, and one more for spot.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cluster.spec import ClusterSpec
from planning.capacity.problem import PriceKind
from planning.plans.answer import PlannedGroup
from planning.plans.offers import GroupOffer
from planning.plans.prices import Priced
from planning.plans.traffic import Band


@dataclass(frozen=True, slots=True, eq=False)
class SpecGroup:
    """A planned group's replicas of one kind of pool. `counts`: replicas by hour."""

    name: str
    planned: PlannedGroup
    spot: bool
    counts: tuple[int, ...]

    @property
    def offer(self) -> GroupOffer:
        return self.planned.offer

    @property
    def region(self) -> str:
        return self.planned.region

    @property
    def price(self) -> Priced:
        """Of one more replica for an hour: on demand, where that is bought."""
        kind = PriceKind.SPOT if self.spot else PriceKind.ON_DEMAND
        return self.planned.prices.get(kind) or next(iter(self.planned.prices.values()))

    def usd_per_request(self, bands: Iterable[str]) -> float | None:
        """Of the requests of these bands that the plan places here, at full replicas; None: it places none."""
        kinds = [kind for kind in self.planned.replicas if (kind is PriceKind.SPOT) is self.spot]
        usd = min(self.planned.prices[kind].usd_per_replica_hour for kind in kinds)
        named = set(bands)
        rates = [rate.per_replica for (band, _), rate in self.planned.rates.items() if band in named]
        return usd / min(rates) if rates else None


def spec_groups(groups: Sequence[PlannedGroup]) -> list[SpecGroup]:
    """Those of all models, regions and kinds of pools."""
    found = []
    regions: dict[tuple[str, str], set[str]] = {}
    for group in groups:
        regions.setdefault((group.offer.model, group.offer.group), set()).add(group.region)
    for group in groups:
        several = len(regions[group.offer.model, group.offer.group]) > 1
        for spot in (False, True):
            kinds = [kind for kind in group.replicas if (kind is PriceKind.SPOT) is spot]
            if kinds:
                counts = tuple(sum(group.replicas[kind][hour] for kind in kinds) for hour in group.hours)
                name = group.offer.group + (f"-{group.region}" if several else "") + ("-spot" if spot else "")
                found.append(SpecGroup(name, group, spot, counts))
    return found


def lane_orders(
    spec: ClusterSpec, model: str, groups: Sequence[SpecGroup], bands: Sequence[Band]
) -> Mapping[str, tuple[str, ...]]:
    """By lane, the model's groups that serve it, in order: those that the plan gives it, the cheapest first, then the
    others that may serve it; and in a region without any of these, all that the region has, since each region's gateway
    needs a group for each lane."""
    own = [one for one in groups if one.offer.model == model]
    found = {}
    for lane in spec.lanes:
        of_lane = [band.name for band in bands if band.stream.model == model and band.lane == lane.name]
        named = _in_order(lane.name, own, of_lane)
        missing = {one.region for one in own} - {one.region for one in own if one.name in named}
        found[lane.name] = (*named, *(one.name for one in own if one.region in missing))
    return found


def _in_order(lane: str, groups: Sequence[SpecGroup], bands: Sequence[str]) -> list[str]:
    priced = {one.name: one.usd_per_request(bands) for one in groups}
    used = sorted((usd, name) for name, usd in priced.items() if usd is not None)
    others = sorted((one for one in groups if lane in one.offer.lanes), key=lambda one: -one.offer.context)
    named = [name for _, name in used]
    return named + [one.name for one in others if one.name not in named]
