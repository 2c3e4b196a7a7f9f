"""A column of names, each name kept once: a million requests of ten tenants are ten texts and a million small numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Labels:
    """`names[codes[i]]` is the name of the request number i; the empty name says that there is none."""

    names: tuple[str, ...]
    codes: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: int) -> str:
        return self.names[int(self.codes[index])]

    def take(self, index: NDArray[np.intp]) -> "Labels":
        """The names of the requests at those positions."""
        return Labels(self.names, self.codes[index])

    def used(self) -> tuple[str, ...]:
        """The names that some request has, in the order of `names`."""
        return tuple(self.names[code] for code in np.unique(self.codes))


def no_labels(count: int) -> Labels:
    """A column of empty names."""
    return Labels(("",), np.zeros(count, dtype=np.int32))


def joined_labels(columns: Sequence[Labels]) -> Labels:
    """The columns one after the other; a name that several hold is one name."""
    numbers: dict[str, int] = {}
    codes = []
    for column in columns:
        new = np.array([numbers.setdefault(name, len(numbers)) for name in column.names], dtype=np.int32)
        codes.append(new[column.codes])
    return Labels(tuple(numbers), np.concatenate(codes))
