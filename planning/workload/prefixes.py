"""What prompts share: the hashes of their leading chunks, as slices of one array, so that prompts that begin alike lie in the same place once.

A hash names its whole prefix (it is chained to the chunks before), as in `deployments/scheduling/books.py` and in Mooncake's `hash_ids`. Only
whole chunks are kept: a part of one can not be found in a cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The prompt of request i begins with the chunks `hashes[starts[i] : starts[i] + counts[i]]` of `chunk_tokens` tokens each."""

    chunk_tokens: int
    hashes: IntArray
    starts: IntArray
    counts: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> tuple[int, ...]:
        start = self.starts[index]
        return tuple(self.hashes[start : start + self.counts[index]].tolist())

    def take(self, index: NDArray[np.intp]) -> "Prefixes":
        """The prefixes of the requests at those positions. The hashes stay, shared."""
        return replace(self, starts=self.starts[index], counts=self.counts[index])

    def renamed(self, salt: int) -> "Prefixes":
        """Other prompts of the same shape: every hash is moved by `salt` (modulo 2^63), so that those that were equal stay equal."""
        return replace(self, hashes=(self.hashes + np.int64(salt)) & np.int64(_LARGEST))


def no_prefixes(count: int, chunk_tokens: int) -> Prefixes:
    """A column of requests that share nothing."""
    return Prefixes(chunk_tokens, np.zeros(0, dtype=np.int64), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int32))


def joined_prefixes(columns: Sequence[Prefixes]) -> Prefixes:
    """The columns one after the other. Raises ValueError where their chunks differ in size."""
    sizes = sorted({column.chunk_tokens for column in columns})
    if len(sizes) > 1:
        raise ValueError(f"chunks of {' and '.join(map(str, sizes))} tokens can not be joined; allowed: one size")
    shifts = np.cumsum([0, *(len(column.hashes) for column in columns)])
    starts = [column.starts + shift for column, shift in zip(columns, shifts, strict=False)]
    return Prefixes(
        sizes[0], np.concatenate([column.hashes for column in columns]), np.concatenate(starts), np.concatenate([column.counts for column in columns])
    )
