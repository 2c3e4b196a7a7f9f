"""Measured figures beside expected ones, minute by minute, and the evidence that each minute gives. Pure.

A figure is what was observed over an exposure. Beyond its bound c (the expected figure and the tolerance), the evidence
for a figure rho * c is a log-likelihood ratio:

    rate      Poisson     N requests in T seconds           N ln(rho) - c T (rho - 1)
    mean      gamma       N lengths, in all S tokens        (S / c (1 - 1/rho) - N ln(rho)) / spread
    log mean  log-normal  N lengths, their logarithms' sum  (ln(rho) (L - N ln(c)) - N ln(rho)^2 / 2) / variance
                          is L                              of the logarithms
    share     binomial    S hits in T trials                S ln(p/c) + (T - S) ln((1 - p)/(1 - c)),
                                                            odds of p = rho * odds of c

The logarithms tell soonest that all lengths have changed by a factor, since a few long ones do not hide it. But they
rest on the distribution's shape, which a worksheet may state wrongly: what they find counts only where the plain mean
is beyond its bound too.

It is divided by the measure's dispersion (`dispersion.py`): real requests come in clusters, so that n of them tell as
much as n / dispersion independent ones (quasi-likelihood: McCullagh and Nelder, Generalized Linear Models, 1989, 9.2).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from deployments.traffic.counts import LengthCounts, Period, Stream, Stretches, TrafficCounts, log_middle
from planning.drift.expected import Clock, ExpectedLengths, ExpectedStream, FloatArray, IntArray, Tolerance


class DriftQuantity(StrEnum):
    """A figure of a worksheet that traffic can leave."""

    RATE = "rate"
    PROMPT_TOKENS = "prompt_tokens"
    OUTPUT_TOKENS = "output_tokens"
    LONG_PROMPTS = "long_prompts"
    LONG_OUTPUTS = "long_outputs"
    PREFIX_SHARE = "prefix_share"


class Family(StrEnum):
    """How a measure's observations are distributed around what is expected."""

    RATE = "rate"
    MEAN = "mean"
    LOG_MEAN = "log_mean"
    SHARE = "share"


class Direction(StrEnum):
    """On which side of the expected figure."""

    ABOVE = "above"
    BELOW = "below"


SHIFTS = (1.2, 1.5, 2.5, 6.0)
"""How far beyond its bound a figure may be: factors (of shares: of the odds)."""
_USUAL = 1.5


@dataclass(frozen=True, eq=False, slots=True)
class Measure:
    """One figure of one stream. By minute: what was `observed`, the `exposure`, the `expected` figure, and the bounds
    `low` and `high`, beyond which it is off. `spread` of lengths: see `ExpectedLengths`, of logarithms: the variance.
    `plain`: of logarithms, the measure of the lengths themselves."""

    stream: Stream
    quantity: DriftQuantity
    family: Family
    observed: FloatArray
    exposure: FloatArray
    expected: FloatArray
    low: FloatArray
    high: FloatArray
    spread: float = 1.0
    plain: "Measure | None" = None

    def evidence(self, direction: Direction) -> FloatArray:
        """Log-likelihood ratios by minute and shift, of independent requests; above 0: for the shift."""
        above = direction is Direction.ABOVE
        rho = np.array([shift if above else 1 / shift for shift in SHIFTS])
        bound = self.high if above else self.low
        found: FloatArray
        if self.family is Family.RATE:
            found = np.outer(self.observed, np.log(rho)) - np.outer(bound * self.exposure, rho - 1)
        elif self.family is Family.MEAN:
            sums = np.outer(self.observed / bound, 1 - 1 / rho) - np.outer(self.exposure, np.log(rho))
            found = np.divide(sums, self.spread)
        elif self.family is Family.LOG_MEAN:
            off = np.outer(self.observed - self.exposure * bound, np.log(rho))
            found = (off - np.outer(self.exposure, np.log(rho) ** 2 / 2)) / self.spread
        else:
            possible = (bound > 0) & (bound < 1)
            p0 = np.where(possible, bound, 0.5)[:, np.newaxis]
            p = rho * p0 / (1 - p0 + rho * p0)
            hits, missed = self.observed[:, np.newaxis], (self.exposure - self.observed)[:, np.newaxis]
            found = np.where(possible[:, np.newaxis], hits * np.log(p / p0) + missed * np.log((1 - p) / (1 - p0)), 0.0)
        return found

    def expected_evidence(self, direction: Direction) -> FloatArray:
        """What a minute's requests would give on average if the figure were beyond its bound by a factor of 1.5."""
        above = direction is Direction.ABOVE
        rho, bound = (_USUAL if above else 1 / _USUAL), self.high if above else self.low
        if self.family is Family.LOG_MEAN:
            figure = bound + np.log(rho)
        elif self.family is Family.SHARE:
            figure = rho * bound / (1 - bound + rho * bound)
        else:
            figure = rho * bound
        found: FloatArray = replace(self, observed=figure * self.exposure).evidence(direction)[:, SHIFTS.index(_USUAL)]
        return found

    def is_beyond(self, direction: Direction, since: int, until: int) -> bool:
        """Whether the figure over those minutes is off."""
        chosen = slice(since, until)
        observed = float(self.observed[chosen].sum())
        if direction is Direction.ABOVE:
            return observed > float((self.high * self.exposure)[chosen].sum())
        return observed < float((self.low * self.exposure)[chosen].sum())

    def figures(self, since: int, until: int) -> tuple[float, float] | None:
        """The observed and the expected figure over those minutes; None without an exposure."""
        exposure = float(self.exposure[since:until].sum())
        if not exposure:
            return None
        expected = float((self.exposure * self.expected)[since:until].sum())
        return float(self.observed[since:until].sum()) / exposure, expected / exposure


def measures_of(
    expected: ExpectedStream, recorded: Stretches, begins: IntArray, tolerance: Tolerance
) -> Iterator[Measure]:
    """The measures of a stream over the minutes that begin then (unix seconds, ascending)."""
    nothing = TrafficCounts()
    minutes = [recorded.counts.get((Period.MINUTE, int(begin), expected.stream), nothing) for begin in begins]
    clock = Clock(begins, expected.time_zone)
    if any(expected.hourly):
        watched_s = np.array([recorded.watched_s(Period.MINUTE, int(begin)) for begin in begins])
        yield _rate(expected, minutes, watched_s, clock, tolerance)
    for lengths, counts, mean, long in (
        (expected.prompt, [one.prompt for one in minutes], DriftQuantity.PROMPT_TOKENS, DriftQuantity.LONG_PROMPTS),
        (expected.output, [one.output for one in minutes], DriftQuantity.OUTPUT_TOKENS, DriftQuantity.LONG_OUTPUTS),
    ):
        plain = _mean(expected.stream, mean, lengths, counts, clock, tolerance)
        yield plain
        if lengths.shares is not None:
            yield _log_mean(plain, lengths.shares, lengths, counts)
        yield from _long(expected.stream, long, lengths, counts, clock, tolerance)
    if expected.prefix_share is not None:
        yield _prefix(expected.stream, expected.prefix_share, minutes, tolerance)


_FEW = 0.05
"""Of the mean rate, so much may come at any hour: it needs no replica of its own."""


def _rate(
    expected: ExpectedStream, minutes: list[TrafficCounts], watched_s: FloatArray, clock: Clock, tolerance: Tolerance
) -> Measure:
    requests = np.array([float(one.requests) for one in minutes])
    low, high = clock.range_of(expected.hourly)
    few = _FEW * float(np.mean(expected.hourly))
    bounds = (
        low * min(1.0, expected.growth) / (1 + tolerance.rate),
        np.maximum(few, high * max(1.0, expected.growth) * (1 + tolerance.rate)),
    )
    middle = np.maximum(few, (low + high) / 2)
    return Measure(expected.stream, DriftQuantity.RATE, Family.RATE, requests, watched_s, middle, *bounds)


_NARROWEST = 0.05
"""Lengths that are all alike on paper vary a little in truth."""


def _mean(
    stream: Stream,
    quantity: DriftQuantity,
    lengths: ExpectedLengths,
    counts: list[LengthCounts],
    clock: Clock,
    tolerance: Tolerance,
) -> Measure:
    number = np.array([float(len(one)) for one in counts])
    tokens = np.array([float(one.tokens) for one in counts])
    low, high = (lengths.mean * factor for factor in clock.range_of(lengths.factors))
    bounds = low / (1 + tolerance.lengths), high * (1 + tolerance.lengths)
    spread = max(lengths.spread, _NARROWEST)
    return Measure(stream, quantity, Family.MEAN, tokens, number, (low + high) / 2, *bounds, spread)


def _log_mean(
    plain: Measure, shares: Mapping[int, float], lengths: ExpectedLengths, counts: list[LengthCounts]
) -> Measure:
    logs = np.array([one.log_sum() for one in counts])
    mean = sum(share * log_middle(bucket) for bucket, share in shares.items())
    variance = sum(share * (log_middle(bucket) - mean) ** 2 for bucket, share in shares.items())
    middle, low, high = (mean + np.log(one / lengths.mean) for one in (plain.expected, plain.low, plain.high))
    spread = max(float(variance), _NARROWEST)
    return Measure(
        plain.stream, plain.quantity, Family.LOG_MEAN, logs, plain.exposure, middle, low, high, spread, plain
    )


_RAREST = 0.001


def _long(
    stream: Stream,
    quantity: DriftQuantity,
    lengths: ExpectedLengths,
    counts: list[LengthCounts],
    clock: Clock,
    tolerance: Tolerance,
) -> Iterator[Measure]:
    """The share of the lengths above the one that a twentieth exceeds. Where nearly none or half of them would be, if
    all were a little longer, the lengths are too few different ones to speak of a tail."""
    tokens, scale = lengths.tail_tokens, 1 + tolerance.lengths
    if tokens is None or not (whole := lengths.above(tokens)):
        return
    below, middle, above = (
        tuple(share * lengths.above(tokens, one) / whole for share in lengths.tails or (whole,))
        for one in (1 / scale, 1.0, scale)
    )
    if min(below) < _RAREST or max(above) > 0.5:
        return
    number = np.array([float(len(one)) for one in counts])
    observed = np.array([one.above(tokens) for one in counts])
    low, high = clock.range_of(middle)
    bounds = clock.range_of(below)[0], clock.range_of(above)[1]
    yield Measure(stream, quantity, Family.SHARE, observed, number, (low + high) / 2, *bounds)


def _prefix(stream: Stream, share: float, minutes: list[TrafficCounts], tolerance: Tolerance) -> Measure:
    """Tokens of one prompt are hits or not together: n prompts of lengths x count as sum(x)^2 / sum(x^2) trials."""
    tokens = np.array([float(one.prompt_tokens) for one in minutes])
    hits = np.array([float(one.cached_tokens) for one in minutes])
    lengths = np.array([float(one.prompt.tokens) for one in minutes])
    squares = np.array([one.prompt.square_sum() for one in minutes])
    trials = np.divide(lengths**2, squares, out=np.zeros_like(tokens), where=squares > 0)
    observed = trials * np.divide(hits, tokens, out=np.zeros_like(tokens), where=tokens > 0)
    same = np.ones(len(minutes))
    bounds = (share - tolerance.prefix_share) * same, (share + tolerance.prefix_share) * same
    return Measure(stream, DriftQuantity.PREFIX_SHARE, Family.SHARE, observed, trials, share * same, *bounds)
