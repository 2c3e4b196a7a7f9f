"""Settings that no other beats on both axes: attainment (more is better) and replica-hours (fewer are). Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoscaling.policies.settings import Value

_WORTH_SHOWING = 4.0
"""A setting that misses this many times as often as the SLO allows, or half of the remaining share, is omitted, however
cheap."""
_SAFETY = 0.7
"""The share of the allowed misses that a setting may use in training, because other runs will be slightly worse."""
_CALM = 1.1
"""The accepted ratio of hours to the cheapest setting's, for a number that does not flap."""


@dataclass(frozen=True, slots=True)
class TriedSettings:
    """`settings`: those that differ from the defaults; the figures are means over the training runs. `flaps`: in a
    run."""

    settings: Mapping[str, Value]
    attainment: float
    replica_hours: float
    flaps: float = 0.0


def floor_of(target: float) -> float:
    """The lowest attainment that is of interest at that target."""
    allowed = 1.0 - target
    return 1.0 - min(_WORTH_SHOWING * allowed, (1.0 + allowed) / 2)


def non_dominated(tried: Sequence[TriedSettings]) -> list[TriedSettings]:
    """Those that no other beats, the cheapest first; the first of equal ones."""
    kept: list[TriedSettings] = []
    for one in sorted(tried, key=lambda one: (one.replica_hours, -one.attainment)):
        if not kept or one.attainment > kept[-1].attainment:
            kept.append(one)
    return kept


def pick(tried: Sequence[TriedSettings], target: float) -> TriedSettings:
    """The setting to run: the cheapest that meets the SLO with some reserve, or one that does not flap and costs little
    more. If none meets it, the one with the fewest misses."""
    enough = 1.0 - _SAFETY * (1.0 - target)
    keeping = [one for one in tried if one.attainment >= enough]
    if keeping:
        cheapest = min(keeping, key=lambda one: one.replica_hours)
        calm = [one for one in keeping if not one.flaps and one.replica_hours <= _CALM * cheapest.replica_hours]
        return min(calm or [cheapest], key=lambda one: one.replica_hours)
    return max(tried, key=lambda one: (one.attainment, -one.replica_hours))


def frontier(tried: Sequence[TriedSettings], target: float, maximum: int) -> list[TriedSettings]:
    """The pick and other non-dominated settings, `maximum` in all, the cheapest first: the ends, and those that leave
    the smallest gaps between.

    Settings below the floor count only if none is above.
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
    """The distance, each axis in units of the frontier's extent."""
    hours = (one.replica_hours - other.replica_hours) / max(1e-9, high.replica_hours - low.replica_hours)
    attainment = (one.attainment - other.attainment) / max(1e-9, high.attainment - low.attainment)
    return abs(hours) + abs(attainment)
