"""The demand to plan for, from what arrives and from what the worksheet knows of the day. Pure.

    rate      = arrivals of a lane and class at their home over the last `window_s`, divided by it
    level     = EWMA of (rate of all lanes of a model and origin / the worksheet's for that hour), half-life HALF_LIFE_S
    expected  = max(rate, level * the worksheet's highest rate from now to `ahead_s` from now)

So the morning is planned for before it comes, by the worksheet's shape; how much comes on that day is learned. What
arrives in a lane and class is shared by the bands of the worksheet that are of them, by their rates.
"""

import zoneinfo
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from planning.replan.basis import Demand

HALF_LIFE_S = 1_800.0
"""A day's level is known within an hour or two, and a burst of some minutes does not pass for it."""
_LARGEST_LEVEL = 10.0
"""More than so many times the worksheet's rates are not expected before they arrive."""
_HOUR_S = 3_600.0


@dataclass(frozen=True, slots=True)
class PlannedBand:
    """A lane of the placement problem: of which requests it is, and its requests/s by origin, for 24 hours or 168."""

    title: str
    model: str
    lane: str
    traffic_class: str
    hourly: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class PlannedDemand:
    """What the worksheet expects; hours begin at midnight of `time_zone`, 168 of them on Monday."""

    bands: tuple[PlannedBand, ...]
    time_zone: str = "UTC"

    def rate(self, band: PlannedBand, origin: str, unix_s: float) -> float:
        """Requests/s of a band from there at that time of day."""
        hours = band.hourly.get(origin, (0.0,))
        local = datetime.fromtimestamp(unix_s, zoneinfo.ZoneInfo(self.time_zone))
        return hours[(local.weekday() * 24 + local.hour) % len(hours)]

    def highest(self, band: PlannedBand, origin: str, from_s: float, to_s: float) -> float:
        """The highest rate of any hour in that time."""
        return max(self.rate(band, origin, at) for at in {*_range(from_s, to_s), to_s})

    def demand(self, regions: Iterable[str], from_s: float, to_s: float) -> Demand:
        """The highest rates of that time in those regions."""
        return {(band.title, one): self.highest(band, one, from_s, to_s) for one in regions for band in self.bands}

    def of_model(self, model: str, origin: str, unix_s: float) -> float:
        """Requests/s of all bands of a model."""
        return sum(self.rate(band, origin, unix_s) for band in self.bands if band.model == model)


def _range(from_s: float, to_s: float) -> Iterable[float]:
    while from_s < to_s:
        yield from_s
        from_s += _HOUR_S


Flows = Mapping[tuple[str, str], int]
"""Requests that arrived since an owner's start, by (lane, class)."""


@dataclass(slots=True)
class _Counted:
    """Of one model in one region: `last` counts of the owner of `epoch`, and what came in all by (lane, class), with
    the times of the readings."""

    epoch: int
    last: Flows
    readings: deque[tuple[float, dict[tuple[str, str], int]]]


class Arrivals:
    """Rates of what arrives, from readings of counts that only grow under one owner's epoch."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._counted: dict[tuple[str, str], _Counted] = {}

    def look(self, region: str, model: str, unix_s: float, epoch: int, flows: Flows) -> None:
        """A reading. What came between two owners' readings is lost."""
        one = self._counted.get((region, model))
        if one is None:
            one = self._counted[region, model] = _Counted(epoch, flows, deque([(unix_s, {})]))
        before = one.last if epoch == one.epoch else {}
        whole = dict(one.readings[-1][1])
        for key, count in flows.items():
            whole[key] = whole.get(key, 0) + max(0, count - before.get(key, 0))
        one.epoch, one.last = epoch, flows
        one.readings.append((unix_s, whole))
        while len(one.readings) > 2 and one.readings[1][0] <= unix_s - self._window_s:
            one.readings.popleft()

    def rates(self, region: str, model: str) -> dict[tuple[str, str], float] | None:
        """Requests/s by (lane, class) over the window; None before one has passed."""
        one = self._counted.get((region, model))
        if one is None or one.readings[-1][0] - one.readings[0][0] < self._window_s:
            return None
        (from_s, before), (to_s, now) = one.readings[0], one.readings[-1]
        return {key: (count - before.get(key, 0)) / (to_s - from_s) for key, count in now.items()}


class DemandForecast:
    """The expected demand of all regions. `ahead_s`: how far it looks."""

    def __init__(self, planned: PlannedDemand, ahead_s: float) -> None:
        self.planned = planned
        self.unplanned: set[tuple[str, str, str]] = set()
        """What arrives though the worksheet has no such band: (model, lane, class). It counts as another band's."""
        self._ahead_s = ahead_s
        self._levels: dict[tuple[str, str], tuple[float, float]] = {}

    def expected(self, unix_s: float, rates: Mapping[tuple[str, str], Mapping[tuple[str, str], float]]) -> Demand:
        """`rates`: by (region, model), then by (lane, class); regions that are not in it are not known."""
        found: dict[tuple[str, str], float] = {}
        for (region, model), own in rates.items():
            level = self._level(region, model, unix_s, sum(own.values()))
            for (lane, traffic_class), rate in own.items():
                for band, share in self._shares(region, model, lane, traffic_class, unix_s):
                    key = band.title, region
                    found[key] = found.get(key, 0.0) + share * rate
            for band in self.planned.bands:
                if band.model == model and level is not None:
                    ahead = level * self.planned.highest(band, region, unix_s, unix_s + self._ahead_s)
                    found[band.title, region] = max(found.get((band.title, region), 0.0), ahead)
        return found

    def _level(self, region: str, model: str, unix_s: float, rate: float) -> float | None:
        """How many times the worksheet's rates come there; None where it expects nothing."""
        planned = self.planned.of_model(model, region, unix_s)
        before = self._levels.get((region, model))
        if planned <= 0:
            return None if before is None else before[1]
        now = min(_LARGEST_LEVEL, rate / planned)
        if before is not None:
            weight = 0.5 ** ((unix_s - before[0]) / HALF_LIFE_S)
            now = weight * before[1] + (1 - weight) * now
        self._levels[region, model] = unix_s, now
        return now

    def _shares(
        self, region: str, model: str, lane: str, traffic_class: str, unix_s: float
    ) -> Iterable[tuple[PlannedBand, float]]:
        own = [band for band in self.planned.bands if band.model == model]
        of_class = [band for band in own if band.traffic_class == traffic_class]
        of_lane = [band for band in own if band.lane == lane]
        exact = [band for band in of_class if band.lane == lane]
        if not exact and own:
            self.unplanned.add((model, lane, traffic_class))
        chosen = exact or of_lane or of_class or own
        weights = [self.planned.rate(band, region, unix_s) for band in chosen]
        whole = sum(weights)
        return [
            (band, weight / whole if whole else 1 / len(chosen)) for band, weight in zip(chosen, weights, strict=True)
        ]
