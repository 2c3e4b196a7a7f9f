"""Times between tokens, of millions of tokens in little room."""

import math


class ItlHistogram:
    """Bins 2 % wide from 10 us on."""

    LEAST_S = 1e-5
    RATIO = 1.02

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def add(self, seconds: float, count: int) -> None:
        """So many gaps of that length."""
        bin_ = max(0, int(math.log(max(seconds, self.LEAST_S) / self.LEAST_S) / math.log(self.RATIO)))
        self.counts[bin_] = self.counts.get(bin_, 0) + count

    def merge(self, other: "ItlHistogram") -> None:
        """Adds the gaps of another."""
        for bin_, count in other.counts.items():
            self.counts[bin_] = self.counts.get(bin_, 0) + count

    def quantile(self, share: float) -> float:
        """The length that `share` of the gaps do not exceed, in seconds; NaN without gaps."""
        wanted, seen = share * sum(self.counts.values()), 0
        for bin_ in sorted(self.counts):
            seen += self.counts[bin_]
            if seen >= wanted:
                return float(self.LEAST_S * self.RATIO ** (bin_ + 0.5))
        return math.nan
