"""Replicas by hour as the entries of a schedule, and in fewer steps where that costs little. Pure.

With r(h) replicas needed in hour h and a price of `switch` replica-hours for each change, the steps s are those that

    minimise   sum over h of s(h)  +  switch * changes(s)      with  s(h) >= r(h) in each hour

by dynamic programming over where steps begin: within a step, s is the largest r. After the period's last hour comes its
first; the period is cut at the hour that needs the fewest replicas.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from cluster.spec.schedule import DAYS
from planning.capacity.problem import PriceKind, Quota
from planning.plans.spec_groups import SpecGroup
from planning.worksheet.demand import DAY_HOURS

_TRIED, _LESS = 100, 0.85
"""Prices of a change that are tried, each so much of the one before; the first one merges everything."""


@dataclass(frozen=True, slots=True)
class Run:
    """`length` hours from the hour `begin` of the period on, with the same number of replicas. It may go on after the
    period's end."""

    begin: int
    length: int
    count: int


def runs_of(counts: Sequence[int]) -> list[Run]:
    """The runs of a period that begins again when it ends. One run: the count never changes."""
    hours = len(counts)
    begins = [hour for hour in range(hours) if counts[hour] != counts[hour - 1]]
    if not begins:
        return [Run(0, hours, counts[0])]
    ends = [*begins[1:], begins[0] + hours]
    return [Run(begin, end - begin, counts[begin]) for begin, end in zip(begins, ends, strict=True)]


def in_steps(counts: Sequence[int], switch: float) -> tuple[int, ...]:
    """The cheapest counts of which none is lower, where each change costs `switch` replica-hours."""
    first = min(range(len(counts)), key=lambda hour: (counts[hour], -counts[hour - 1]))
    runs = [(count, len(list(run))) for count, run in groupby([*counts[first:], *counts[:first]])]
    best: list[tuple[float, int]] = [(0.0, 0)]  # up to each run: what it costs, and the run that the last step began at
    for end in range(1, len(runs) + 1):
        highest, length = 0, 0
        found = (float("inf"), 0)
        for begin in reversed(range(end)):
            highest, length = max(highest, runs[begin][0]), length + runs[begin][1]
            found = min(found, (best[begin][0] + highest * length + switch, begin))
        best.append(found)
    steps: list[int] = []
    end = len(runs)
    while end:
        begin = best[end][1]
        own = runs[begin:end]
        steps[:0] = [max(count for count, _ in own)] * sum(length for _, length in own)
        end = begin
    turn = len(counts) - first
    return (*steps[turn:], *steps[:turn])


@dataclass(frozen=True, slots=True)
class Smoothed:
    """The groups with their counts in steps. `entries` of all schedules, and `before`: without smoothing.
    `usd_per_hour`: what it costs on average."""

    groups: tuple[SpecGroup, ...]
    entries: int
    before: int
    usd_per_hour: float


def smoothed(
    groups: Sequence[SpecGroup], share: float, allowed: Callable[[Sequence[SpecGroup]], bool] = lambda groups: True
) -> Smoothed:
    """As few changes as cost at most this share of what the groups cost, by one price of a change for all of them; the
    groups as they are where none is `allowed`."""
    before = sum(len(entries(one.counts)) for one in groups)
    budget = share * sum(usd_of(one) for one in groups)
    switch_usd = sum(usd_of(one) for one in groups) + 1.0
    for _ in range(_TRIED if share > 0 else 0):
        found = [
            replace(one, counts=in_steps(one.counts, switch_usd / one.price.usd_per_replica_hour)) for one in groups
        ]
        extra = sum(usd_of(one) - usd_of(old) for one, old in zip(found, groups, strict=True))
        if extra <= budget and allowed(found):
            hours = max((len(one.counts) for one in groups), default=1)
            return Smoothed(tuple(found), sum(len(entries(one.counts)) for one in found), before, extra / hours)
        switch_usd *= _LESS
    return Smoothed(tuple(groups), before, before, 0.0)


def usd_of(group: SpecGroup) -> float:
    """US dollars of the period."""
    return group.price.usd_per_replica_hour * sum(group.counts)


def keeps_limits(quotas: Sequence[Quota], spot_share: float) -> Callable[[Sequence[SpecGroup]], bool]:
    """Whether groups keep the quotas, and the share of a model's replicas that may be spot. What is not spot counts for
    quotas on demand and for reserved ones alike, which is on the safe side."""

    def keeps(groups: Sequence[SpecGroup]) -> bool:
        hours = range(max((len(one.counts) for one in groups), default=0))
        for quota in quotas:
            own = [one for one in groups if _covered(quota, one)]
            if any(sum(one.offer.gpus * one.counts[hour] for one in own) > quota.gpus for hour in hours):
                return False
        for model in {one.offer.model for one in groups}:
            own = [one for one in groups if one.offer.model == model]
            for hour in hours:
                spot = sum(one.counts[hour] for one in own if one.spot)
                if spot > spot_share * sum(one.counts[hour] for one in own) + 1e-9:
                    return False
        return True

    return keeps


def _covered(quota: Quota, one: SpecGroup) -> bool:
    kind = quota.price_kind in (None, PriceKind.SPOT) if one.spot else quota.price_kind is not PriceKind.SPOT
    return kind and (one.region, one.offer.gpu) == (quota.region, quota.gpu)


def entries(counts: Sequence[int]) -> list[dict[str, Any]]:
    """The entries of a spec's schedule: a minimum for each run, but for the lowest. Days of a week that are
    alike share an entry."""
    lowest = min(counts)
    days: dict[tuple[int, int, int], list[int]] = {}
    for run in runs_of(counts):
        if run.count > lowest:
            for begin, length in _parts(run):
                day, hour = divmod(begin, DAY_HOURS)
                days.setdefault((hour, length, run.count), []).append(day % (len(counts) // DAY_HOURS))
    whole_week = len(counts) > DAY_HOURS
    ordered = sorted(days.items(), key=lambda item: (min(item[1]), item[0]))
    return [_entry(*key, sorted(of), whole_week) for key, of in ordered]


def _parts(run: Run) -> Iterator[tuple[int, int]]:
    """Beginnings and lengths of at most a day each."""
    begin, left = run.begin, run.length
    while left > DAY_HOURS:
        part = DAY_HOURS - begin % DAY_HOURS
        yield begin, part
        begin, left = begin + part, left - part
    yield begin, left


def _entry(hour: int, length: int, count: int, days: list[int], whole_week: bool) -> dict[str, Any]:
    every_day = not whole_week or len(days) == len(DAYS)
    end = (hour + length) % DAY_HOURS or DAY_HOURS
    entry: dict[str, Any] = {
        "name": f"{'from' if every_day else DAYS[days[0]]}-{hour:02}",
        "begin": f"{hour:02}:00",
        "end": f"{end:02}:00",
        "min": count,
    }
    return entry if every_day else entry | {"days": [DAYS[day] for day in days]}
