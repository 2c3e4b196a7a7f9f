"""The plan as a cluster spec: groups with their pools, lanes that name them in order, and bounds by the hour.

A spec's group has the same bounds in all its regions and one kind of price, so a planned group becomes one for each
region, and one more for spot. Everything else of the spec's text stays as it is (`planning/tune/spec_edit.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from cluster.spec import ClusterSpec, Model, Region, parse_spec
from planning.capacity.problem import PriceKind
from planning.plans.answer import PlannedGroup, WorksheetPlan
from planning.plans.offers import GroupOffer
from planning.tune.spec_edit import Path as Place
from planning.tune.spec_edit import edited, said_in

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class SpecGroup:
    """A group of the written spec: a planned group's replicas of one kind of pool. `counts`: replicas by hour."""

    name: str
    planned: PlannedGroup
    spot: bool
    counts: tuple[int, ...]
    pool: str

    @property
    def offer(self) -> GroupOffer:
        return self.planned.offer

    def usd_per_request(self, lane: str) -> float | None:
        """Of the lane's requests that the plan places here, at full replicas; None: it places none."""
        kinds = [kind for kind in self.planned.replicas if (kind is PriceKind.SPOT) is self.spot]
        usd = min(self.planned.prices[kind].usd_per_replica_hour for kind in kinds)
        rates = [rate.per_replica for (band, _), rate in self.planned.rates.items() if f": {lane}" in band]
        return usd / min(rates) if rates else None


def written_spec(plan: WorksheetPlan, source: Path, target: Path) -> str:
    """The text of the spec in `source` with the plan in it, for the file `target`. Raises EditError where the text
    cannot be edited safely, or SpecError where the outcome is no usable spec."""
    text = source.read_bytes().decode("utf-8")
    said, spec = said_in(text), plan.case.spec
    groups, pools = _groups(plan, spec)
    changes: list[tuple[Place, Any]] = []
    for number, region in enumerate(spec.regions):
        own = said["regions"][number]["pools"]
        if (needed := _pools(region, own, pools)) != own:
            changes.append((("regions", number, "pools"), needed))
    for number, model in enumerate(spec.models):
        found = [one for one in groups if one.offer.model == model.name]
        if found:
            changes += _of_model(plan, spec, model, number, found, said["models"][number])
    after = edited(text, changes)
    parse_spec(after, str(target), source.resolve().parent)
    return after


def _groups(plan: WorksheetPlan, spec: ClusterSpec) -> tuple[list[SpecGroup], dict[tuple[str, str], "_Pool"]]:
    """The groups of the spec, and by region and name the pools that they take."""
    found: list[SpecGroup] = []
    pools: dict[tuple[str, str], _Pool] = {}
    several = {
        (group.offer.model, group.offer.group)
        for group in plan.groups
        if sum(other.offer is group.offer for other in plan.groups) > 1
    }
    for group in plan.groups:
        for spot in (False, True):
            kinds = [kind for kind in group.replicas if (kind is PriceKind.SPOT) is spot]
            if not kinds:
                continue
            counts = tuple(sum(group.replicas[kind][hour] for kind in kinds) for hour in group.hours)
            name = group.offer.group
            name += f"-{group.region}" if (group.offer.model, group.offer.group) in several else ""
            name += "-spot" if spot else ""
            pool = _pool_name(spec.region(group.region), group, spot)
            entry = pools.setdefault((group.region, pool), _Pool(pool, group, spot, [0] * len(counts)))
            entry.add(group.offer.gpus, counts)
            found.append(SpecGroup(name, group, spot, counts, pool))
    return found, pools


@dataclass(slots=True)
class _Pool:
    """A pool that the plan takes, with its GPUs by hour."""

    name: str
    planned: PlannedGroup
    spot: bool
    gpus: list[int]

    def add(self, gpus: int, counts: Sequence[int]) -> None:
        self.gpus = [before + gpus * count for before, count in zip(self.gpus, counts, strict=True)]

    def section(self) -> dict[str, Any]:
        """As a new pool of the spec."""
        offer, kind = self.planned.offer, PriceKind.SPOT if self.spot else PriceKind.ON_DEMAND
        priced = self.planned.prices.get(kind) or next(iter(self.planned.prices.values()))
        per_node = max(priced.node_gpus or 1, offer.gpus)
        section = {
            "name": self.name,
            "accelerator": offer.gpu,
            "nodes": -(-max(self.gpus) // per_node),
            "gpus_per_node": per_node,
            "price_usd_per_hour": round(priced.usd_per_replica_hour / offer.gpus, 6),
        }
        return section | ({"spot": True} if self.spot else {})


def _pool_name(region: Region, group: PlannedGroup, spot: bool) -> str:
    """The region's pool of that GPU and kind, else the name of a new one."""
    for pool in region.pools:
        room = pool.accelerator == "cpu" or pool.gpus_per_node >= group.offer.gpus
        if pool.accelerator == group.offer.gpu and pool.spot is spot and room:
            return pool.name
    taken = {pool.name for pool in region.pools}
    name = group.offer.gpu.lower() + ("-spot" if spot else "")
    return name if name not in taken else f"{name}-planned"


def _pools(region: Region, own: list[dict[str, Any]], pools: dict[tuple[str, str], _Pool]) -> list[dict[str, Any]]:
    """The region's pools, with as many nodes as the plan takes, and those that it adds."""
    found = [dict(section) for section in own]
    names = [pool.name for pool in region.pools]
    for (where, name), pool in pools.items():
        if where != region.name:
            continue
        if name not in names:
            found.append(pool.section())
            continue
        known = region.pools[names.index(name)]
        if known.accelerator != "cpu" and max(pool.gpus) > known.gpus:
            found[names.index(name)]["nodes"] = -(-max(pool.gpus) // known.gpus_per_node)
    return found


def _of_model(
    plan: WorksheetPlan, spec: ClusterSpec, model: Model, number: int, groups: list[SpecGroup], said: dict[str, Any]
) -> list[tuple[Place, Any]]:
    sections = [_section(plan, spec, model, one, said) for one in groups]
    order = {lane.name: _in_order(lane.name, groups) for lane in spec.lanes}
    regions = {one.planned.region for one in groups}
    for named in order.values():  # each region's gateway needs a group for each lane
        missing = regions - {one.planned.region for one in groups if one.name in named}
        named += [one.name for one in groups if one.planned.region in missing and one.name not in named]
    return [(("models", number, "groups"), sections), (("models", number, "lanes"), order)]


def _in_order(lane: str, groups: list[SpecGroup]) -> list[str]:
    """The groups that the plan gives the lane, the cheapest first; then the others that may serve it."""
    priced = {one.name: one.usd_per_request(lane) for one in groups}
    used = sorted((name for name, usd in priced.items() if usd is not None), key=lambda name: (priced[name], name))
    others = sorted((one for one in groups if lane in one.offer.lanes), key=lambda one: -one.offer.context)
    return used + [one.name for one in others if one.name not in used]


def _section(
    plan: WorksheetPlan, spec: ClusterSpec, model: Model, one: SpecGroup, said: dict[str, Any]
) -> dict[str, Any]:
    """A group as the spec has it: the text's own section of that name where there is one, else the candidate's
    settings."""
    own = next((dict(each) for each in said.get("groups") or () if each["name"] == one.offer.group), {})
    candidate = next(
        (each for each in plan.case.sheet.candidates if (each.model, each.name) == (model.name, one.offer.group)), None
    )
    settings = {} if candidate is None else candidate.settings.model_dump(exclude_none=True, exclude_unset=True)
    section: dict[str, Any] = {**own, "name": one.name, "regions": [one.planned.region], "pool": one.pool}
    if settings:
        section["settings"] = settings
    section["replicas"] = _replicas(one.counts, plan.case.sheet.time_zone, spec.autoscaling_of(model).policy == "fixed")
    return section


def _replicas(counts: Sequence[int], time_zone: str, fixed: bool) -> dict[str, Any]:
    """The bounds: the plan's fewest and most, and within, at least what each hour takes."""
    lowest, highest = min(counts), max(counts)
    bounds: dict[str, Any] = {"count": highest, "min": lowest, "max": max(1, highest)}
    entries = [] if fixed else _entries(counts, lowest)
    return bounds | ({"schedule": {"time_zone": time_zone, "entries": entries}} if entries else {})


def _entries(counts: Sequence[int], lowest: int) -> list[dict[str, Any]]:
    """An entry for each run of hours that take the same number, but for the fewest."""
    whole_week = len(counts) > 24
    found = []
    for day in range(len(counts) // 24):
        hours = range(24 * day, 24 * day + 24)
        for count, run in groupby(hours, key=lambda hour: counts[hour]):
            own = [hour % 24 for hour in run]
            if count > lowest:
                name = f"{_DAYS[day]}-{own[0]:02}" if whole_week else f"from-{own[0]:02}"
                entry = {"name": name, "begin": f"{own[0]:02}:00", "end": f"{own[-1] + 1:02}:00", "min": count}
                found.append(entry | ({"days": [_DAYS[day]]} if whole_week else {}))
    return found
