"""A trace: requests as columns, in the order of their arrival. What a format does not hold is None.

Names are kept once: a million requests of ten tenants are ten texts and a million small numbers. What prompts share are
the hashes of their leading chunks, as slices of one array, so that prompts that begin alike lie in the same place once.
A hash names its whole prefix (it is chained to the chunks before), as in the scheduler's prefixes and in Mooncake's
`hash_ids`. Only whole chunks are kept: a part of one can not be found in a cache.

Here too: choosing, joining. Not here: reading (`traces.py`, `formats/`), drawing (`traffic/`), scaling (`scaling.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cluster.errors import InputError
from planning.workload.arrivals import FloatArray
from planning.workload.changes import ChangeKind, TraceChange
from planning.workload.lengths import IntArray


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


LARGEST_HASH = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The prompt of request i begins with the chunks `hashes[starts[i] : starts[i] + counts[i]]` of `chunk_tokens`
    tokens each."""

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
        """Other prompts of the same shape: every hash is moved by `salt` (modulo 2^63), so that those that were equal
        stay equal."""
        return replace(self, hashes=(self.hashes + np.int64(salt)) & np.int64(LARGEST_HASH))


def no_prefixes(count: int, chunk_tokens: int) -> Prefixes:
    """A column of requests that share nothing."""
    return Prefixes(
        chunk_tokens, np.zeros(0, dtype=np.int64), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int32)
    )


def joined_prefixes(columns: Sequence[Prefixes]) -> Prefixes:
    """The columns one after the other. Raises ValueError where their chunks differ in size."""
    sizes = sorted({column.chunk_tokens for column in columns})
    if len(sizes) > 1:
        raise ValueError(f"chunks of {' and '.join(map(str, sizes))} tokens can not be joined; allowed: one size")
    shifts = np.cumsum([0, *(len(column.hashes) for column in columns)])
    starts = [column.starts + shift for column, shift in zip(columns, shifts, strict=False)]
    return Prefixes(
        sizes[0],
        np.concatenate([column.hashes for column in columns]),
        np.concatenate(starts),
        np.concatenate([column.counts for column in columns]),
    )


LABELS = ("tenant", "traffic_class", "model", "region")
"""The columns that hold names."""


class TraceError(InputError):
    """A trace that cannot be read; the message names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests, ascending by `arrived_s` (seconds from the trace's start). Lengths are at least 1.

    `max_tokens` is the client's bound on the output (0: none), `session` the number of the conversation (-1: none).
    `changes`: what was changed since it was recorded, in that order.
    """

    arrived_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    max_tokens: IntArray | None = None
    tenant: Labels | None = None
    traffic_class: Labels | None = None
    model: Labels | None = None
    region: Labels | None = None
    session: IntArray | None = None
    prefixes: Prefixes | None = None
    changes: tuple[TraceChange, ...] = ()

    def __len__(self) -> int:
        return len(self.arrived_s)

    def changed(self, *changes: TraceChange) -> "Trace":
        """The same requests; what was changed is noted, unless it touched no request."""
        return replace(self, changes=(*self.changes, *(change for change in changes if change.count)))

    def only_lengths(self, used: int) -> TraceChange:
        """That of `used` requests the times and lengths alone are used, as a change: where there is more to them."""
        others = [name for name in (*LABELS, "session", "prefixes") if getattr(self, name) is not None]
        what = f"only times and lengths are used; left out: {', '.join(others).replace('traffic_class', 'class')}"
        return TraceChange(ChangeKind.ONLY_LENGTHS_USED, used if others else 0, len(self), what)

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last, and one mean gap more: what the trace stands for."""
        if len(self) < 2:
            return 0.0
        between = float(self.arrived_s[-1] - self.arrived_s[0])
        return between * len(self) / (len(self) - 1)

    def take(self, index: NDArray[np.intp]) -> "Trace":
        """The requests at those positions, which ascend."""
        columns: dict[str, Any] = {"changes": self.changes}
        for column in fields(self):
            values = getattr(self, column.name)
            if values is not None and column.name != "changes":
                columns[column.name] = values[index] if isinstance(values, np.ndarray) else values.take(index)
        return Trace(**columns)

    def at(self, arrived_s: FloatArray) -> "Trace":
        """The same requests at other times, in the order of those."""
        order = np.argsort(arrived_s, kind="stable")
        return replace(self.take(order), arrived_s=arrived_s[order])


def joined(traces: Sequence[Trace]) -> Trace:
    """All their requests, in the order of time. Sessions keep their numbers: whoever joins sees to it that they
    differ."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(trace, name) for trace in traces]) for name in ("prompt_tokens", "output_tokens")
    }
    for name, missing in (("max_tokens", 0), ("session", -1)):
        if any(getattr(trace, name) is not None for trace in traces):
            columns[name] = np.concatenate([_filled(getattr(trace, name), missing, len(trace)) for trace in traces])
    for name in LABELS:
        if any(getattr(trace, name) is not None for trace in traces):
            columns[name] = joined_labels([getattr(trace, name) or no_labels(len(trace)) for trace in traces])
    sizes = [trace.prefixes.chunk_tokens for trace in traces if trace.prefixes is not None]
    if sizes:
        columns["prefixes"] = joined_prefixes([trace.prefixes or no_prefixes(len(trace), sizes[0]) for trace in traces])
    arrived_s = np.concatenate([trace.arrived_s for trace in traces])
    changes = tuple(dict.fromkeys(change for trace in traces for change in trace.changes))
    return Trace(arrived_s, changes=changes, **columns).at(arrived_s)


def _filled(column: IntArray | None, missing: int, count: int) -> IntArray:
    return np.full(count, missing, dtype=np.int64) if column is None else column
