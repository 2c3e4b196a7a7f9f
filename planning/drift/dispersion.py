"""How much more a measure varies than independent requests would, learned from its own past. Pure.

Requests come in clusters (a user's session, a batch job), so that counts and means of neighbouring minutes scatter more
than those of independent requests, and do so for a while. For batches of several lengths, the difference of two
neighbouring batches is set against the variance that independent requests would give it:

    d^2 = (r2 - r1)^2 / (v1 + v2),    r = observed / (exposure * expected)

The mean of d^2 over the past day is the dispersion at that length. Where little is known of a length, that of the next
shorter one is taken, and for minutes a prior. The largest one counts: what has not averaged out within twenty minutes
would look like a change. But the largest of three noisy means is too large on average, which costs as much evidence: a
longer batch counts with its mean less one standard error. Neighbouring differences share a batch, so that the variance
of the mean of n of them is 3 / n of its square for normal noise.

Differences forget the level: traffic that has left the worksheet and is steady disperses no more than before. The
change itself is one large difference: the largest one of the last hour is left out.
"""

import numpy as np

from planning.drift.expected import FloatArray
from planning.drift.measures import Family, Measure

BATCHES_MIN = (1, 5, 20)
"""Lengths of batches (minutes)."""
PRIOR = {Family.RATE: 3.0, Family.MEAN: 2.0, Family.LOG_MEAN: 2.0, Family.SHARE: 2.0}
"""The dispersion of minutes while nothing is known."""
PRIOR_WEIGHT = 4.0
"""Differences that the prior counts for."""
PAST_MIN, RECENT_MIN = 1_440, 60
LARGEST = 25.0
"""A difference counts for no more: one that large is a change."""


def dispersion(measure: Measure) -> FloatArray:
    """By minute, from what was observed before it; at least 1."""
    learned = np.full(len(measure.observed), PRIOR[measure.family])
    largest = np.ones(len(measure.observed))
    for batch in BATCHES_MIN:
        learned, number = _learned(measure, batch, learned)
        sure = learned if batch == 1 else learned * (1 - np.sqrt(3 / (PRIOR_WEIGHT + number)))
        largest = np.maximum(largest, sure)
    return largest


def _learned(measure: Measure, batch: int, prior: FloatArray) -> tuple[FloatArray, FloatArray]:
    """At one length of batches, and from how many differences."""
    squares = _squares(measure, batch)
    known = np.where(np.isnan(squares), 0.0, np.minimum(squares, LARGEST))
    sums = np.concatenate([[0.0], np.cumsum(known)])
    counts = np.concatenate([[0.0], np.cumsum(~np.isnan(squares))])
    # square number k is known when batch k + 1 has ended
    ended = np.clip(np.arange(len(prior)) // batch - 1, 0, len(squares))
    first = np.maximum(0, ended - PAST_MIN // batch)
    recent = max(1, RECENT_MIN // batch)
    padded = np.concatenate([np.zeros(recent), known])
    top = np.lib.stride_tricks.sliding_window_view(padded, recent).max(axis=1)[ended]
    total = np.maximum(0.0, sums[ended] - sums[first] - top)
    number = np.maximum(0.0, counts[ended] - counts[first] - 1)
    result: FloatArray = (PRIOR_WEIGHT * prior + total) / (PRIOR_WEIGHT + number)
    return result, number


def _squares(measure: Measure, batch: int) -> FloatArray:
    """d^2 of each two neighbouring batches; NaN where one of them is empty."""
    count = len(measure.observed) // batch
    if count < 2:
        return np.zeros(0)

    def batches(values: FloatArray) -> FloatArray:
        sums: FloatArray = values[: count * batch].reshape(count, batch).sum(axis=1)
        return sums

    observed, exposure = batches(measure.observed), batches(measure.exposure)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = batches(measure.exposure * measure.expected) / exposure
        if measure.family is Family.LOG_MEAN:
            scatter = np.diff(observed / exposure - expected) ** 2
            squares = scatter / measure.spread / (1 / exposure[1:] + 1 / exposure[:-1])
            squares[~np.isfinite(squares)] = np.nan
            return np.asarray(squares)
        ratio = observed / exposure / expected
        level = (observed[1:] + observed[:-1]) / ((exposure * expected)[1:] + (exposure * expected)[:-1])
        variance = sum(_variance(measure, level, exposure[part], expected[part]) for part in (_EARLIER, _LATER))
        squares = np.diff(ratio) ** 2 / variance
    squares[~np.isfinite(squares)] = np.nan
    return squares


_EARLIER, _LATER = slice(None, -1), slice(1, None)


def _variance(measure: Measure, level: FloatArray, exposure: FloatArray, expected: FloatArray) -> FloatArray:
    """Of the ratio in a batch, if requests were independent and the ratio's mean were `level`."""
    if measure.family is Family.RATE:
        return level / (expected * exposure)
    if measure.family is Family.MEAN:
        return measure.spread * level**2 / exposure
    found: FloatArray = level * np.maximum(0.0, 1 / expected - level) / exposure
    return found
