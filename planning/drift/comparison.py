"""Recorded traffic against a worksheet: which figures have left it, since when, and by how much. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from deployments.traffic.counts import Period, Stream, Stretches
from planning.drift.detector import CLEAR_MINUTES, Change, changes, threshold_of
from planning.drift.dispersion import dispersion
from planning.drift.expected import Expected, FloatArray, IntArray
from planning.drift.measures import Direction, DriftQuantity, Family, Measure, measures_of

ALL_REGIONS = ""
"""The region of a figure that is of all regions of a model and class together."""
HOLD_S = 3_600
"""What begins within an hour of the end of another drift of the model counts as the same incident."""


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
class Incident:
    """Drifts of a model that overlap, or follow each other within `HOLD_S`: an operator hears of them once."""

    model: str
    drifts: tuple[Drift, ...]

    @property
    def raised_unix_s(self) -> int:
        """When the first alarm came."""
        return min(one.raised_unix_s for one in self.drifts)

    @property
    def ended_unix_s(self) -> int | None:
        """When the last one ended; None: something is off now."""
        ends = [one.ended_unix_s for one in self.drifts]
        return None if None in ends else max(one for one in ends if one is not None)


def incidents(drifts: Iterable[Drift]) -> tuple[Incident, ...]:
    """In the order of their first alarms."""
    found: list[Incident] = []
    last: dict[str, int] = {}
    for drift in sorted(drifts, key=lambda one: one.raised_unix_s):
        number = last.get(drift.stream.model)
        end = None if number is None else found[number].ended_unix_s
        if number is not None and (end is None or drift.raised_unix_s <= end + HOLD_S):
            found[number] = replace(found[number], drifts=(*found[number].drifts, drift))
        else:
            last[drift.stream.model] = len(found)
            found.append(Incident(drift.stream.model, (drift,)))
    return tuple(found)


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
    def open(self) -> tuple[Drift, ...]:
        """What is off now."""
        return tuple(drift for drift in self.drifts if drift.ended_unix_s is None)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """The drifts of one model at one time."""
        return incidents(self.drifts)


MINOR = 0.01


def compare(expected: Expected, recorded: Stretches) -> Comparison:
    """Compares the recorded minutes. Raises ValueError where there are none."""
    begins = recorded.begins(Period.MINUTE)
    if not begins:
        raise ValueError("no minute was recorded; allowed: at least one")
    minutes = np.arange(begins[0], begins[-1] + 60, 60)
    streams = [
        measure for stream in expected.streams for measure in measures_of(stream, recorded, minutes, expected.tolerance)
    ]
    measures = [*streams, *pooled(streams)]
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
        tuple(_figures(streams)),
    )


def pooled(measures: Sequence[Measure]) -> Iterator[Measure]:
    """Lengths and prefix shares of a model and class in all its regions together: what changes everywhere is known
    sooner than it is in any of them. Rates of regions differ in their own ways, and are not added up."""
    alike: defaultdict[tuple[str, str, DriftQuantity, Family], list[Measure]] = defaultdict(list)
    regions: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for one in measures:
        regions[one.stream.model, one.stream.traffic_class].add(one.stream.region)
        if one.family is not Family.RATE:
            alike[one.stream.model, one.stream.traffic_class, one.quantity, one.family].append(one)
    plain: dict[tuple[str, str, DriftQuantity], Measure] = {}
    for (model, traffic_class, quantity, family), own in alike.items():
        if len(own) < 2 or len(own) < len(regions[model, traffic_class]):
            continue
        key = model, traffic_class, quantity
        found = _together(own, Stream(model, traffic_class, ALL_REGIONS))
        if family is Family.LOG_MEAN:
            found = replace(found, plain=plain[key])
        elif family is Family.MEAN:
            plain[key] = found
        yield found


def _together(measures: Sequence[Measure], stream: Stream) -> Measure:
    """Expected figures and bounds by the exposure of each; the first one's where there is none."""
    exposure = np.sum([one.exposure for one in measures], axis=0)

    def mean(figures: list[FloatArray]) -> FloatArray:
        weighted = np.sum([one.exposure * figure for one, figure in zip(measures, figures, strict=True)], axis=0)
        found: FloatArray = np.divide(weighted, exposure, out=figures[0].copy(), where=exposure > 0)
        return found

    weights = [float(one.exposure.sum()) + 1e-9 for one in measures]
    return replace(
        measures[0],
        stream=stream,
        observed=np.sum([one.observed for one in measures], axis=0),
        exposure=exposure,
        expected=mean([one.expected for one in measures]),
        low=mean([one.low for one in measures]),
        high=mean([one.high for one in measures]),
        spread=float(np.average([one.spread for one in measures], weights=weights)),
        plain=None,
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
