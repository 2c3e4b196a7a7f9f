"""The plan as a cluster spec: groups with their pools, lanes that name them in order, and bounds by the hour
(`spec_groups.py`, `schedules.py`). Everything else of the spec's text stays as it is (`planning/tune/spec_edit.py`)."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cluster.spec import ClusterSpec, Model, Region, parse_spec
from planning.plans.answer import PlannedGroup, WorksheetPlan
from planning.plans.schedules import Smoothed, entries, keeps_limits, smoothed, usd_of
from planning.plans.spec_groups import SpecGroup, lane_orders, spec_groups
from planning.tune.spec_edit import EditError, edited, said_in
from planning.tune.spec_edit import Path as Place


@dataclass(frozen=True, slots=True)
class WrittenSpec:
    """The spec's text. `smoothed`: what became of the schedules. `usd_per_hour` of the plan, transfers with it."""

    text: str
    smoothed: Smoothed
    usd_per_hour: float

    def in_words(self) -> str:
        """What the smoothing did, for a person."""
        done = self.smoothed
        text = f"{done.entries} schedule entries"
        if done.entries != done.before:
            text += f" instead of {done.before}"
        if not done.usd_per_hour:
            return text
        share = done.usd_per_hour / self.usd_per_hour if self.usd_per_hour else 0.0
        return f"{text}, for ${done.usd_per_hour:,.2f} an hour more ({share:.1%})"


def written_spec(plan: WorksheetPlan, source: Path, target: Path, smoothing: float = 0.0) -> WrittenSpec:
    """The spec in `source` with the plan in it, for the file `target`. Schedules get fewer entries where that costs at
    most the share `smoothing` of the groups' cost. Raises EditError where the text cannot be edited safely, or
    SpecError where the outcome is no usable spec."""
    text, folder = source.read_bytes().decode("utf-8"), target.resolve().parent
    said, spec = said_in(text), plan.case.spec
    done = _smoothed(plan, spec, smoothing)
    groups = done.groups
    pools = _pools_of(groups, spec)
    changes: list[tuple[Place, Any]] = []
    for number, region in enumerate(spec.regions):
        own = said["regions"][number]["pools"]
        if (needed := _pools(region, own, pools)) != own:
            changes.append((("regions", number, "pools"), needed))
    for number, model in enumerate(spec.models):
        found = [one for one in groups if one.offer.model == model.name]
        if found:
            own_said = {"autoscaling": said.get("autoscaling"), **said["models"][number]}
            sections = [_section(plan, spec, model, one, own_said) for one in found]
            if model.engine != "simulated":
                sections = [
                    section | _own_costs(section.get("autoscaling") or own_said["autoscaling"] or {}, one, folder)
                    for section, one in zip(sections, found, strict=True)
                ]
            orders = lane_orders(spec, model.name, groups, plan.case.bands)
            lanes = {lane: list(named) for lane, named in orders.items()}
            changes += [(("models", number, "groups"), sections), (("models", number, "lanes"), lanes)]
    after = edited(text, changes)
    parse_spec(after, str(target), folder)
    return WrittenSpec(after, done, plan.usd_per_hour)


def check_target(source: Path, target: Path) -> None:
    """Raises EditError where the spec in `source` says something else in the place of `target`."""
    text, home = source.read_bytes().decode("utf-8"), source.resolve().parent
    if parse_spec(text, str(source), home) != parse_spec(text, str(source), target.resolve().parent):
        raise EditError(f"{source} names files relative to its own folder; allowed: a file in {home}")


def _smoothed(plan: WorksheetPlan, spec: ClusterSpec, share: float) -> Smoothed:
    """The schedules of models that scale; a number that the spec's text fixes needs none, and is the same at all
    hours."""
    groups = spec_groups(plan.groups)
    fixed = {model.name for model in spec.models if (model.autoscaling or spec.autoscaling).policy == "fixed"}
    before = [one for one in groups if one.offer.model in fixed]
    others = [replace(one, counts=(max(one.counts),) * len(one.counts)) for one in before]
    limits = plan.question.problem
    keeps = keeps_limits(limits.quotas, limits.limits.spot_share)
    if keeps(groups) and not keeps(others):
        raise EditError(
            f"autoscaling.policy = 'fixed' for {', '.join(sorted(fixed))}: as many replicas at all hours as at the "
            "busiest one exceed a quota, or the share of spot; allowed: a policy that scales, as `backlog`"
        )
    found = smoothed(
        [one for one in groups if one.offer.model not in fixed], share, lambda them: keeps([*them, *others])
    )
    extra = sum(usd_of(one) - usd_of(old) for one, old in zip(others, before, strict=True)) / plan.case.hours
    return Smoothed((*found.groups, *others), found.entries, found.before, found.usd_per_hour + extra)


def _pools_of(groups: Sequence[SpecGroup], spec: ClusterSpec) -> dict[tuple[str, str], "_Pool"]:
    """The pools that the groups take, by region and name, with what other models of the spec have there."""
    planned = {one.offer.model for one in groups}
    taken: Counter[tuple[str, str]] = Counter()
    for region in spec.regions:
        for view in spec.views_in(region):
            if view.name not in planned:
                taken[region.name, spec.pool_of(view, region).name] += spec.max_replicas(view) * view.settings.ranks
    pools: dict[tuple[str, str], _Pool] = {}
    for one in groups:
        key = (one.region, _pool_name(spec.region(one.region), one.planned, one.spot))
        pools.setdefault(key, _Pool(key[1], one, [taken[key]] * len(one.counts))).add(one)
    return pools


@dataclass(slots=True)
class _Pool:
    """A pool that the plan takes, with its GPUs by hour, on nodes of so many."""

    name: str
    group: SpecGroup
    gpus: list[int]
    per_node: int = 1

    def add(self, one: SpecGroup) -> None:
        self.gpus = [before + one.offer.gpus * count for before, count in zip(self.gpus, one.counts, strict=True)]
        self.per_node = max(self.per_node, one.price.node_gpus or 1, one.offer.gpus)

    def section(self) -> dict[str, Any]:
        """As a new pool of the spec."""
        offer, priced = self.group.offer, self.group.price
        section = {
            "name": self.name,
            "accelerator": offer.gpu,
            "nodes": -(-max(self.gpus) // self.per_node),
            "gpus_per_node": self.per_node,
            "price_usd_per_hour": round(priced.usd_per_replica_hour / offer.gpus, 6),
        }
        return section | ({"spot": True} if self.group.spot else {})


def _pool_name(region: Region, group: PlannedGroup, spot: bool) -> str:
    """The region's pool of that GPU and kind, else the name of a new one."""
    for pool in region.pools:
        room = pool.accelerator == "cpu" or pool.gpus_per_node >= group.offer.gpus
        if pool.accelerator == group.offer.gpu and pool.spot is spot and room:
            return pool.name
    taken = {pool.name for pool in region.pools}
    name = group.offer.gpu.lower() + ("-spot" if spot else "")
    return name if name not in taken else f"{name}-planned"


def _pools(region: Region, own: list[dict[str, Any]], pools: Mapping[tuple[str, str], _Pool]) -> list[dict[str, Any]]:
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


def _section(
    plan: WorksheetPlan, spec: ClusterSpec, model: Model, one: SpecGroup, said: dict[str, Any]
) -> dict[str, Any]:
    """A group as the spec has it: the text's own section of that name where there is one, else the candidate's
    settings."""
    own = next((dict(each) for each in said.get("groups") or () if each["name"] == one.offer.view.group), {})
    candidate = next(
        (each for each in plan.case.sheet.candidates if (each.model, each.name) == (model.name, one.offer.group)), None
    )
    settings = {} if candidate is None else candidate.settings.model_dump(exclude_none=True, exclude_unset=True)
    pool = _pool_name(spec.region(one.region), one.planned, one.spot)
    section: dict[str, Any] = {**own, "name": one.name, "regions": [one.region], "pool": pool}
    if settings:
        section["settings"] = settings
    section["replicas"] = _replicas(one.counts, plan.case.sheet.time_zone)
    return section


def _own_costs(scaling: dict[str, Any], one: SpecGroup, folder: Path) -> dict[str, Any]:
    """A group's section `autoscaling`, where its costs are not those that the section names which it has otherwise: it
    may be on another GPU."""
    path, named = one.offer.costs_path, scaling.get("costs")
    if path == (None if named is None else str(Path(folder, Path(named).expanduser()))):
        return {}
    others = {key: value for key, value in scaling.items() if key != "costs"}
    return {"autoscaling": others | ({} if path is None else {"costs": os.path.relpath(path, folder)})}


def _replicas(counts: Sequence[int], time_zone: str) -> dict[str, Any]:
    """The bounds: the plan's fewest and most, and within, at least what each hour takes."""
    lowest, highest = min(counts), max(counts)
    bounds: dict[str, Any] = {"count": highest, "min": lowest, "max": max(1, highest)}
    found = entries(counts)
    return bounds | ({"schedule": {"time_zone": time_zone, "entries": found}} if found else {})
