"""What arrives: requests with their true lengths, which the scheduler must guess, in the order of time."""

from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

T_co = TypeVar("T_co", covariant=True)


class Column(Protocol[T_co]):
    """A value for each request: a tuple, or something leaner that a million requests need."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


@dataclass(frozen=True, slots=True)
class Workload:
    """Columns of equal length, ascending by `arrived_s` (seconds from the start).

    `max_tokens` is the client's bound on the output, 0: none. `prefix` holds the hashes of a prompt's leading chunks of `chunk_tokens` tokens; an
    empty tuple: nothing is shared.
    """

    arrived_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    max_tokens: NDArray[np.int64]
    ttft_slo_s: NDArray[np.float64]
    tenant: Column[str]
    traffic_class: Column[str]
    prefix: Column[tuple[int, ...]]
    chunk_tokens: int = 0

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in self.__slots__ if name != "chunk_tokens"}
        if len(lengths) != 1:
            raise ValueError(f"the columns of a workload are of one length; got {sorted(lengths)}")
        if len(self.arrived_s) and bool(np.any(np.diff(self.arrived_s) < 0)):
            raise ValueError("the arrivals of a workload ascend")
        if len(self) and min(self.prompt_tokens.min(), self.output_tokens.min()) < 1:
            raise ValueError("a request has at least one token of prompt and of output")

    def __len__(self) -> int:
        return len(self.arrived_s)

    def head(self, count: int) -> "Workload":
        """The first `count` requests."""
        return self._cut(slice(count))

    def tail(self, count: int) -> "Workload":
        """The last `count` requests."""
        return self._cut(slice(len(self) - count, None))

    def between(self, from_s: float, to_s: float) -> "Workload":
        """The requests that arrive from `from_s`, which becomes second 0, until before `to_s`."""
        first, until = np.searchsorted(self.arrived_s, (from_s, to_s))
        kept = self._cut(slice(int(first), max(int(first), int(until))))
        return kept.at(kept.arrived_s - from_s)

    def _cut(self, part: slice) -> "Workload":
        return replace(self, **{one.name: _part(getattr(self, one.name), part) for one in fields(self) if one.name != "chunk_tokens"})

    def at(self, arrived_s: NDArray[np.float64]) -> "Workload":
        """The same requests at other times."""
        return replace(self, arrived_s=arrived_s)


def _part(column: Any, part: slice) -> Any:
    return column[part] if isinstance(column, np.ndarray) else tuple(column[index] for index in range(*part.indices(len(column))))


def plain_workload(
    arrived_s: NDArray[np.float64],
    prompt_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    ttft_slo_s: float = 5.0,
    bounded: bool = True,
) -> Workload:
    """A workload of one tenant and one class, without shared prefixes. `bounded`: clients ask for as many tokens as they get."""
    count = len(arrived_s)
    return Workload(
        arrived_s,
        prompt_tokens,
        output_tokens,
        output_tokens if bounded else np.zeros(count, dtype=np.int64),
        np.full(count, ttft_slo_s),
        ("",) * count,
        ("interactive",) * count,
        ((),) * count,
    )
