"""Recorded traffic against a worksheet: which figures have left it, since when, and by how much. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from deployments.traffic.counts import Period, Stream, Stretches
from planning.drift.detector import CLEAR_MINUTES, Change, changes, threshold_of
from planning.drift.dispersion import dispersion
from planning.drift.expected import Expected, IntArray
from planning.drift.measures import Direction, DriftQuantity, Measure, measures_of


@dataclass(frozen=True, slots=True)
class Drift:
    """A figure that has left the worksheet. Times are unix seconds: `since_unix_s` it is off, `raised_unix_s` the alarm
    came, `ended_unix_s` it was as expected again (None: it is off now). `expected` and `observed` are means since then:
    requests/s, tokens, or shares."""

    stream: Stream
    quantity: DriftQuantity
    direction: Direction
    since_unix_s: int
    raised_unix_s: int
    ended_unix_s: int | None
    expected: float
    observed: float

    @property
    def ratio(self) -> float | None:
        """Observed over expected; None where nothing was expected."""
        return self.observed / self.expected if self.expected else None


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One figure over all that was compared: requests/s, tokens, or a share."""

    stream: Stream
    quantity: DriftQuantity
    expected: float
    observed: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """`drifts` in the order of their alarms; `figures` of all streams. `unplanned`: streams that the worksheet does not
    have, with their requests/s, where they are more than `MINOR` of all requests. `unseen`: streams of the worksheet
    without any request."""

    from_unix_s: int
    to_unix_s: int
    watched_s: float
    drifts: tuple[Drift, ...] = ()
    unplanned: tuple[tuple[Stream, float], ...] = ()
    unseen: tuple[Stream, ...] = ()
    figures: tuple[ComparedFigure, ...] = ()

    @property
    def is_off(self) -> bool:
        """Whether the traffic is not what the worksheet says, now."""
        return bool(self.open or self.unplanned)

    @property
    def open(self) -> tuple[Drift, ...]:
        """What is off now."""
        return tuple(drift for drift in self.drifts if drift.ended_unix_s is None)


MINOR = 0.01


def compare(expected: Expected, recorded: Stretches) -> Comparison:
    """Compares the recorded minutes. Raises ValueError where there are none."""
    begins = recorded.begins(Period.MINUTE)
    if not begins:
        raise ValueError("no minute was recorded; allowed: at least one")
    minutes = np.arange(begins[0], begins[-1] + 60, 60)
    measures = [
        measure for stream in expected.streams for measure in measures_of(stream, recorded, minutes, expected.tolerance)
    ]
    threshold = threshold_of(len(measures) * len(Direction))
    found = [
        _drift(measure.plain or measure, direction, minutes, change)
        for measure in measures
        for scale in (dispersion(measure),)
        for direction in Direction
        for change in changes(measure, direction, scale, threshold)
    ]
    planned = {one.stream for one in expected.streams}
    watched_s = sum(recorded.watched_s(Period.MINUTE, int(begin)) for begin in minutes)
    requests: Counter[Stream] = Counter()
    for (period, _, stream), counts in recorded.counts.items():
        if period is Period.MINUTE:
            requests[stream] += counts.requests
    return Comparison(
        int(minutes[0]),
        int(minutes[-1]) + 60,
        watched_s,
        tuple(_once(sorted(found, key=lambda drift: drift.raised_unix_s))),
        tuple(
            (one, requests[one] / watched_s)
            for one in recorded.streams()
            if one not in planned and requests[one] > MINOR * requests.total()
        ),
        tuple(one for one in sorted(planned, key=str) if not requests[one]),
        tuple(_figures(measures)),
    )


def _figures(measures: Iterable[Measure]) -> Iterator[ComparedFigure]:
    for measure in measures:
        figures = measure.figures(0, len(measure.observed))
        if measure.plain is None and figures is not None:
            yield ComparedFigure(measure.stream, measure.quantity, figures[1], figures[0])


def _once(drifts: Iterable[Drift]) -> Iterator[Drift]:
    """Without those that tell again of what an earlier one still tells of."""
    known: dict[tuple[Stream, DriftQuantity, Direction], Drift] = {}
    for drift in drifts:
        key = drift.stream, drift.quantity, drift.direction
        before = known.get(key)
        if before is None or (before.ended_unix_s is not None and before.ended_unix_s <= drift.raised_unix_s):
            known[key] = drift
            yield drift


def _drift(measure: Measure, direction: Direction, minutes: IntArray, change: Change) -> Drift:
    until = len(minutes) if change.ended is None else change.ended + 1 - CLEAR_MINUTES
    observed, expected = measure.figures(change.since, max(until, change.raised + 1)) or (0.0, 0.0)
    return Drift(
        measure.stream,
        measure.quantity,
        direction,
        int(minutes[change.since]),
        int(minutes[change.raised]) + 60,
        None if change.ended is None else int(minutes[change.ended]) + 60,
        expected,
        observed,
    )
