"""What befalls whole cells and the links between them. A `Fault` is data alone: the simulator of several cells
(`cells.py`) and live drills of the tests run the same timeline."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """What befalls cells."""

    REGION_LOSS = "region-loss"
    """A cell is gone with its gateways and replicas: its clients and peers see resets. It starts again at the end, and
    its replicas take their start-up time."""
    ZONE_LOSS = "zone-loss"
    """A share of a cell's replicas is gone. Their successors start at once in other zones, or wait for nodes."""
    PARTITION = "partition"
    """Nothing crosses the link between two cells, and both live on."""
    SLOW_LINK = "slow-link"
    """What crosses the link between two cells takes longer."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, from `at_s` on for `for_s` seconds (infinite: for good), in seconds from the start.

    `cell`: of a loss, by its name in the spec; `link`: the two cells of a partition or a slow link. `share`: of the
    cell's replicas that a zone loss takes (above 0, at most 1; rounded up); with `room_elsewhere` their successors
    start at once, else at the end. `more_rtt_s`: by how much a slow link's round trip is longer.

    Raises ValueError for no time, and for a link from a cell to itself.
    """

    kind: FaultKind
    at_s: float
    for_s: float = math.inf
    cell: str = ""
    link: tuple[str, str] | None = None
    share: float = 0.5
    more_rtt_s: float = 0.2
    room_elsewhere: bool = False

    def __post_init__(self) -> None:
        if not self.for_s > 0:
            raise ValueError(f"{self.kind}: for_s={self.for_s}: allowed: above 0")
        if self.link is not None and self.link[0] == self.link[1]:
            raise ValueError(f"{self.kind}: link={self.link}: allowed: the names of two cells")

    @property
    def until_s(self) -> float:
        """When it ends."""
        return self.at_s + self.for_s

    @property
    def cells(self) -> frozenset[str]:
        """The cells that it befalls: one, or the two ends of the link."""
        return frozenset((self.cell,) if self.link is None else self.link)


def check_timeline(faults: Sequence[Fault]) -> None:
    """Raises ValueError for two faults of one kind that overlap at the same place."""
    ended_s: dict[tuple[FaultKind, frozenset[str]], float] = {}
    for fault in sorted(faults, key=lambda one: one.at_s):
        place = (fault.kind, fault.cells)
        if fault.at_s < ended_s.get(place, 0.0):
            where = " and ".join(sorted(fault.cells))
            raise ValueError(
                f"{fault.kind}: two of them overlap at {where}, at {fault.at_s:g} s; allowed: one at a time"
            )
        ended_s[place] = fault.until_s
