"""Bins of time: what happened in each, from columns of times. Pure; all functions are vectorised, for runs of millions
of requests.

A bin holds the times from its lower edge on and below its upper one. Times are seconds from the start of the run; NaN:
it did not happen.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

MAX_BINS = 600
_SHORTEST_S = 1e-6
"""An amount that is spread over less than this counts as one that came at once."""
_WIDTHS_S = (
    *(digit * 10.0**power for power in range(-6, 0) for digit in (1, 2, 5)),
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(60.0 * minutes for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 240, 360, 720, 1_440)),
)


@dataclass(frozen=True)
class Bins:
    """`count` bins of `width_s` seconds from 0 on."""

    width_s: float
    count: int

    @cached_property
    def edges_s(self) -> Column:
        """The count + 1 edges."""
        return np.arange(self.count + 1, dtype=np.float64) * self.width_s

    @cached_property
    def middles_s(self) -> Column:
        """The middle of each bin."""
        return self.edges_s[:-1] + self.width_s / 2

    def of(self, times_s: Column) -> Counts:
        """The bin of each time, -1 for NaN. Times beyond the edges count to the outermost bins."""
        found = np.searchsorted(self.edges_s, times_s, side="right") - 1
        return np.where(np.isnan(times_s), -1, np.clip(found, 0, self.count - 1))

    def counts(self, times_s: Column) -> Counts:
        """How many of the times lie in each bin."""
        index = self.of(times_s)
        return np.bincount(index[index >= 0], minlength=self.count)

    def sums(self, times_s: Column, amounts: Column) -> Column:
        """The sum, in each bin, of what came at those times. An amount of NaN, or at no time, is left out."""
        index = self.of(times_s)
        known = (index >= 0) & ~np.isnan(amounts)
        return np.bincount(index[known], weights=amounts[known], minlength=self.count).astype(np.float64)

    def quantiles(self, times_s: Column, values: Column, levels: tuple[float, ...]) -> tuple[Column, ...]:
        """For each level the quantile (nearest rank) of the values in each bin; NaN where a bin has none."""
        index = self.of(times_s)
        known = (index >= 0) & ~np.isnan(values)
        index, values = index[known], values[known]
        ordered = values[np.lexsort((values, index))]
        begins = np.concatenate(([0], np.cumsum(np.bincount(index, minlength=self.count))))
        size = np.diff(begins)
        found = []
        for level in levels:
            rank = begins[:-1] + np.maximum(np.ceil(level * size).astype(np.int64) - 1, 0)
            at = np.full(self.count, np.nan)
            at[size > 0] = ordered[rank[size > 0]]
            found.append(at)
        return tuple(found)

    def spread(self, begins_s: Column, ends_s: Column, amounts: Column) -> Column:
        """What of the amounts falls in each bin, where each comes evenly between its begin and its end. NaN is left
        out."""
        known = ~(np.isnan(begins_s) | np.isnan(ends_s) | np.isnan(amounts))
        begins, ends, amounts = begins_s[known], ends_s[known], amounts[known].astype(np.float64)
        at_once = ends - begins < _SHORTEST_S
        total = self.sums(begins[at_once], amounts[at_once])
        begins, ends, amounts = begins[~at_once], ends[~at_once], amounts[~at_once]
        rates = amounts / (ends - begins)
        so_far = _ramps(begins, rates, self.edges_s) - _ramps(ends, rates, self.edges_s)
        summed: Column = total + np.maximum(np.diff(so_far), 0.0)
        return summed

    def levels(self, ups_s: Column, downs_s: Column) -> tuple[Counts, Counts]:
        """Of a number that goes up and down by one: what it is at the end of each bin, and the most that it was in the
        bin."""
        times = np.concatenate((downs_s, ups_s))  # who leaves at the moment at which another comes, leaves first
        change = np.concatenate((np.full(len(downs_s), -1), np.full(len(ups_s), 1)))
        order = np.argsort(times, kind="stable")
        times, level = times[order], np.cumsum(change[order])
        after = np.concatenate(([0], level))[np.searchsorted(times, self.edges_s[1:], side="left")]
        maximum = np.concatenate(([0], after[:-1]))
        np.maximum.at(maximum, self.of(times), level)
        return after, maximum

    def means(self, times_s: Column, values: Column) -> Column:
        """The mean of samples in each bin; a bin without any has the last sample before it, 0 before the first."""
        index = self.of(times_s)
        count = np.bincount(index, minlength=self.count)
        total = np.bincount(index, weights=values, minlength=self.count)
        return _carried(total / np.maximum(count, 1), count > 0)

    def maximum(self, times_s: Column, values: Column) -> Column:
        """The largest sample in each bin; a bin without any has the last before it, 0 before the first."""
        found = np.full(self.count, -np.inf)
        np.maximum.at(found, self.of(times_s), values)
        return _carried(found, np.isfinite(found))


def bins_for(length_s: float, maximum: int = MAX_BINS) -> Bins:
    """At most so many bins of a round width over that length, at least one."""
    width = next((width for width in _WIDTHS_S if length_s / width < maximum), length_s / (maximum - 1))
    return Bins(width, int(length_s / width) + 1)


def _ramps(begins_s: Column, rates: Column, at_s: Column) -> Column:
    """The sum over all of rate * (t - begin), for t past the begin."""
    order = np.argsort(begins_s, kind="stable")
    begins, rates = begins_s[order], rates[order]
    passed = np.searchsorted(begins, at_s, side="right")
    rate = np.concatenate(([0.0], np.cumsum(rates)))[passed]
    offset = np.concatenate(([0.0], np.cumsum(rates * begins)))[passed]
    ramps: Column = rate * at_s - offset
    return ramps


def _carried(values: Column, known: Mask) -> Column:
    """The values, and where there is none the last known one."""
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    return np.where(last < 0, 0.0, values[np.maximum(last, 0)])
