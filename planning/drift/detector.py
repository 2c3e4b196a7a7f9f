"""A sequential test for a change, with a known rate of false alarms. Pure.

For each measure, direction and shift, the Shiryaev-Roberts statistic sums the likelihood ratios of a change at each
earlier minute:

    R(t) = (R(t-1) + 1) * exp(evidence(t)),    R(0) = 0

While nothing has changed, the mean of exp(evidence) is at most 1, so that R(t) - t does not grow on average, and the
first alarm at R >= A comes after A minutes on average, or later (Pollak, Annals of Statistics 13, 1985; for bounds
instead of a distribution: Shin, Ramdas and Rinaldo, "E-detectors", 2024). The means of R over the shifts, added up over
m tests, stay below m * t likewise: with the threshold m * A for each test, the first false alarm of all of them comes
after A minutes on average, however many are looked at and however often.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planning.drift.expected import FloatArray
from planning.drift.measures import Direction, Family, Measure

MEAN_MINUTES = 365 * 1_440
"""Between two false alarms of a whole worksheet, on average at least: a year."""
FEWEST_MINUTES = {Family.RATE: 15, Family.MEAN: 8, Family.LOG_MEAN: 8, Family.SHARE: 8}
"""An alarm needs so many minutes that speak for the change, each by itself: a burst, or a pause, is none. Lengths of
real chat traffic stay off their mean for five to eight minutes (Azure's of 2023), and a plan does not change for
that."""
CLEAR_MINUTES = 30
"""An alarm ends when the figure of so many minutes is within its bounds."""


@dataclass(frozen=True, slots=True)
class Change:
    """Minutes by number: the change began with `since`, the alarm was raised after `raised`, and it ended after `ended`
    (None: it goes on)."""

    since: int
    raised: int
    ended: int | None = None


def threshold_of(tests: int) -> float:
    """The logarithm of the threshold for each of so many tests."""
    return math.log(MEAN_MINUTES * max(1, tests))


def largest_of_a_minute(part: float, expected: FloatArray) -> FloatArray:
    """What a minute may give, in a column: an equal `part` of the threshold, and where a minute is `expected` to give
    little more than that, one standard deviation of what chance adds.

    Log-likelihood ratios of mean m have the variance 2 m. Without the addition, what chance puts above the mean would
    be cut off, and what it puts below it would not: alarms would be late where few requests come."""
    chance = math.sqrt(2 * part) * np.minimum(1.0, part / np.maximum(expected, 1e-9))
    found: FloatArray = (part + chance)[:, np.newaxis]
    return found


def changes(measure: Measure, direction: Direction, dispersion: FloatArray, threshold: float) -> list[Change]:
    """The changes that one test finds. After each, it begins anew."""
    evidence = measure.evidence(direction) / dispersion[:, np.newaxis]
    expected = measure.expected_evidence(direction) / dispersion
    evidence = np.minimum(evidence, largest_of_a_minute(threshold / FEWEST_MINUTES[measure.family], expected))
    plain = measure.plain or measure
    normal = _normal(plain, direction)
    found: list[Change] = []
    begin = 0

    def confirmed(since: int, raised: int, shift: int) -> bool:
        span = slice(begin + since, begin + raised + 1)
        enough = np.count_nonzero(evidence[span, shift] > 0) >= FEWEST_MINUTES[measure.family]
        return bool(enough) and plain.is_beyond(direction, span.start, span.stop)

    while (change := _first(evidence[begin:], threshold, confirmed)) is not None:
        since, raised = (begin + minute for minute in change)
        ends = np.flatnonzero(normal[raised + CLEAR_MINUTES :])
        if not len(ends):
            return [*found, Change(since, raised)]
        begin = raised + CLEAR_MINUTES + int(ends[0]) + 1
        found.append(Change(since, raised, begin - 1))
    return found


def _first(
    evidence: FloatArray, threshold: float, confirmed: Callable[[int, int, int], bool]
) -> tuple[int, int] | None:
    """When the first change that is `confirmed` began, and when it is known."""
    shifts = evidence.shape[1]
    sums = np.concatenate([np.zeros((1, shifts)), np.cumsum(evidence, axis=0)])
    # log R(t) = log of the sum over s <= t of exp(sums(t) - sums(s - 1)), each with an equal share of the shifts
    earlier = np.logaddexp.accumulate(-sums[:-1], axis=0)
    logs = sums[1:] + earlier - math.log(shifts)
    over = np.flatnonzero(np.logaddexp.reduce(logs, axis=1) >= threshold)
    for raised in over.tolist():
        shift = int(np.argmax(logs[raised]))
        since = int(np.argmin(sums[: raised + 1, shift]))
        if confirmed(since, raised, shift):
            return since, raised
    return None


def _normal(measure: Measure, direction: Direction) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether the figure of the last `CLEAR_MINUTES` is within its bound; not without an exposure."""

    def last(values: FloatArray) -> FloatArray:
        sums = np.concatenate([np.zeros(CLEAR_MINUTES), np.cumsum(values)])
        found: FloatArray = sums[CLEAR_MINUTES:] - sums[:-CLEAR_MINUTES]
        return found

    observed, exposure = last(measure.observed), last(measure.exposure)
    if direction is Direction.ABOVE:
        return (exposure > 0) & (observed <= last(measure.high * measure.exposure))
    return (exposure > 0) & (observed >= last(measure.low * measure.exposure))
