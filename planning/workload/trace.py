"""A trace: requests as columns, in the order of their arrival. What a format does not hold is None.

Here too: choosing, joining. Not here: reading (`traces.py`, `formats/`), drawing (`traffic/`), scaling (`scaling.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planning.workload.arrivals import FloatArray
from planning.workload.labels import Labels, joined_labels, no_labels
from planning.workload.lengths import IntArray
from planning.workload.prefixes import Prefixes, joined_prefixes, no_prefixes

LABELS = ("tenant", "traffic_class", "model", "region")
"""The columns that hold names."""


class TraceError(ValueError):
    """A trace that cannot be read; the message names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests, ascending by `arrived_s` (seconds from the trace's start). Lengths are at least 1.

    `max_tokens` is the client's bound on the output (0: none), `session` the number of the conversation (-1: none).
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

    def __len__(self) -> int:
        return len(self.arrived_s)

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last, and one mean gap more: what the trace stands for."""
        if len(self) < 2:
            return 0.0
        between = float(self.arrived_s[-1] - self.arrived_s[0])
        return between * len(self) / (len(self) - 1)

    def take(self, index: NDArray[np.intp]) -> "Trace":
        """The requests at those positions, which ascend."""
        columns: dict[str, Any] = {}
        for column in fields(self):
            values = getattr(self, column.name)
            if values is not None:
                columns[column.name] = values[index] if isinstance(values, np.ndarray) else values.take(index)
        return Trace(**columns)

    def at(self, arrived_s: FloatArray) -> "Trace":
        """The same requests at other times, in the order of those."""
        order = np.argsort(arrived_s, kind="stable")
        return replace(self.take(order), arrived_s=arrived_s[order])


def joined(traces: Sequence[Trace]) -> Trace:
    """All their requests, in the order of time. Sessions keep their numbers: whoever joins sees to it that they differ."""
    columns: dict[str, Any] = {name: np.concatenate([getattr(trace, name) for trace in traces]) for name in ("prompt_tokens", "output_tokens")}
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
    return Trace(arrived_s, **columns).at(arrived_s)


def _filled(column: IntArray | None, missing: int, count: int) -> IntArray:
    return np.full(count, missing, dtype=np.int64) if column is None else column
