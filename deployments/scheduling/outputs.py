"""How long answers will be: a decayed histogram of output lengths for each power of two of the prompt length, learned from the engine's own counts.

Cheap, and good enough (AIBrix's length-bucketed histograms; ranking needs no more). Each observation ages all before it by `_DECAY`, so about the
last thousand count. Bins are a quarter of a power of two wide; a length stands for its bin's upper bound, so the estimate errs on the long side.
"""

from bisect import bisect_left

_DECAY = 0.999
_BINS = tuple(sorted({round(2 ** (quarter / 4)) for quarter in range(4 * 18 + 1)}))
_PRIOR_TOKENS = 256
_REFRESH = 16


class _Lengths:
    """The histogram of one prompt bucket, with its cumulative sums refreshed every few observations."""

    __slots__ = ("_counts", "_gain", "_mass", "_seen", "_weighted")

    def __init__(self) -> None:
        self._counts = [0.0] * len(_BINS)
        self._gain = 1.0
        self._seen = 0
        self._mass: list[float] = []
        self._weighted: list[float] = []

    def observe(self, tokens: int) -> None:
        self._gain /= _DECAY  # growing the new is ageing the old
        self._counts[min(bisect_left(_BINS, tokens), len(_BINS) - 1)] += self._gain
        self._seen += 1
        if self._gain > 1e12:
            self._counts = [count / self._gain for count in self._counts]
            self._gain = 1.0
        if self._seen % _REFRESH == 0 or self._seen < _REFRESH:
            self._refresh()

    def mean(self, limit: int | None) -> float:
        """E[min(length, limit)]."""
        if limit is None:
            return self._weighted[-1]
        below = bisect_left(_BINS, limit)
        if below == 0:
            return float(limit)
        return self._weighted[below - 1] + limit * (1.0 - self._mass[below - 1])

    def quantile(self, share: float) -> int:
        """The length that `share` of the answers do not exceed."""
        return _BINS[min(bisect_left(self._mass, share), len(_BINS) - 1)]

    def _refresh(self) -> None:
        total = sum(self._counts)
        mass = weighted = 0.0
        self._mass, self._weighted = [], []
        for bound, count in zip(_BINS, self._counts, strict=True):
            mass += count / total
            weighted += bound * count / total
            self._mass.append(mass)
            self._weighted.append(weighted)


class OutputLengths:
    """Expected output tokens of one model. `error` is the decayed mean of |expected - real| / real."""

    def __init__(self) -> None:
        self.error: float | None = None
        self._buckets: dict[int, _Lengths] = {}

    def expect(self, prompt_tokens: int, limit: int | None) -> tuple[int, int]:
        """The mean and the 90th percentile of a sequence's output, both bounded by `limit`."""
        lengths = self._buckets.get(prompt_tokens.bit_length())
        if lengths is None:
            prior = _PRIOR_TOKENS if limit is None else min(limit, _PRIOR_TOKENS)
            return prior, prior
        p90 = lengths.quantile(0.9)
        return round(lengths.mean(limit)), p90 if limit is None else min(limit, p90)

    def observe(self, prompt_tokens: int, expected: int, tokens: int) -> None:
        """A sequence with that prompt gave `tokens`, where `expected` were expected."""
        self._buckets.setdefault(prompt_tokens.bit_length(), _Lengths()).observe(tokens)
        off = abs(expected - tokens) / max(1, tokens)
        self.error = off if self.error is None else self.error + 0.01 * (off - self.error)
