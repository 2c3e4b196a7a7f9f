"""Settings that nothing else beats on both axes: attainment (more is better) and replica-hours (fewer are). Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoscaling.policies.settings import Value

_WORTH_SHOWING = 4.0
"""A setting that misses so many times as much as the SLO allows, or half of what it does not, is no answer, however
cheap."""
_SAFETY = 0.7
"""The share of the allowed misses that a setting may use in training: other runs will be a little worse."""
_CALM = 1.1
"""So many times the hours of the cheapest are paid for a number that does not go back and forth."""


@dataclass(frozen=True, slots=True)
class TriedSettings:
    """Settings (what is not named is the default), and what they gave on average over the training runs. `flaps`: a
    run."""

    settings: Mapping[str, Value]
    attainment: float
    replica_hours: float
    flaps: float = 0.0


def floor_of(target: float) -> float:
    """The least attainment that is of any interest where `target` is promised."""
    allowed = 1.0 - target
    return 1.0 - min(_WORTH_SHOWING * allowed, (1.0 + allowed) / 2)


def non_dominated(tried: Sequence[TriedSettings]) -> list[TriedSettings]:
    """Those that no other beats, the cheapest first; of equal ones the first."""
    kept: list[TriedSettings] = []
    for one in sorted(tried, key=lambda one: (one.replica_hours, -one.attainment)):
        if not kept or one.attainment > kept[-1].attainment:
            kept.append(one)
    return kept


def pick(tried: Sequence[TriedSettings], target: float) -> TriedSettings:
    """The one to run: the cheapest that meets the SLO with something to spare, or one that does not flap and costs
    little more; where none keeps it, the one that misses least."""
    enough = 1.0 - _SAFETY * (1.0 - target)
    keeping = [one for one in tried if one.attainment >= enough]
    if keeping:
        cheapest = min(keeping, key=lambda one: one.replica_hours)
        calm = [one for one in keeping if not one.flaps and one.replica_hours <= _CALM * cheapest.replica_hours]
        return min(calm or [cheapest], key=lambda one: one.replica_hours)
    return max(tried, key=lambda one: (one.attainment, -one.replica_hours))


def frontier(tried: Sequence[TriedSettings], target: float, maximum: int) -> list[TriedSettings]:
    """The pick, and of the non-dominated at most so many that there are `maximum` in all, the cheapest first: the ends,
    and those that leave the smallest gaps between.

    Those below the floor count only where nothing is above.
    """
    best = non_dominated(tried)
    worthy = [one for one in best if one.attainment >= floor_of(target)] or best[-1:]
    chosen = [pick(tried, target)]
    if len({id(one) for one in (*worthy, *chosen)}) <= maximum:
        return _ascending([*(one for one in worthy if one is not chosen[0]), *chosen])
    for end in (worthy[-1], worthy[0]):
        if end not in chosen and len(chosen) < maximum:
            chosen.append(end)
    low, high = worthy[0], worthy[-1]
    while len(chosen) < maximum:
        chosen.append(
            max(
                (one for one in worthy if one not in chosen),
                key=lambda one: min(_apart(one, other, low, high) for other in chosen),
            )
        )
    return _ascending(chosen)


def _ascending(points: list[TriedSettings]) -> list[TriedSettings]:
    return sorted(points, key=lambda one: (one.replica_hours, one.attainment))


def _apart(one: TriedSettings, other: TriedSettings, low: TriedSettings, high: TriedSettings) -> float:
    """How far apart, each axis in units of the frontier's extent."""
    hours = (one.replica_hours - other.replica_hours) / max(1e-9, high.replica_hours - low.replica_hours)
    attainment = (one.attainment - other.attainment) / max(1e-9, high.attainment - low.attainment)
    return abs(hours) + abs(attainment)
