"""What a drill does to a cluster of several cells, and the requests that its clients send meanwhile. Pure.

The clients are an open loop: requests arrive as a Poisson process at each cell, however many are still open."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planning.simulator.clients import CLIENTS
from planning.simulator.faults import Fault, FaultKind
from planning.simulator.workload import Workload, plain_workload
from planning.workload.lengths import Lengths

MIN_REQUESTS = 20
"""Fewer requests say nothing about an SLO."""


@dataclass(frozen=True, slots=True)
class StartTimes:
    """How long a cell takes to start (seconds): until its gateway answers, and from then on until its replicas do."""

    boot_s: float
    replicas_s: float


@dataclass(frozen=True, slots=True)
class Drill:
    """Requests arrive for `length_s` (seconds). `faults`: what befalls the cluster meanwhile, all at one moment: one of
    a cell, or those of its links to others. Raises ValueError for what cannot be."""

    faults: tuple[Fault, ...]
    length_s: float = 120.0

    def __post_init__(self) -> None:
        spans = {(one.kind, one.at_s, one.for_s) for one in self.faults}
        if len(spans) != 1:
            raise ValueError(f"{len(spans)} kinds or times of faults; needed: faults of one kind, at one time")
        if not 0 < self.at_s < self.length_s:
            raise ValueError(f"at_s = {self.at_s:g}: allowed: above 0, below length_s = {self.length_s:g}")

    @property
    def kind(self) -> FaultKind:
        """Of all faults."""
        return self.faults[0].kind

    @property
    def at_s(self) -> float:
        """When the faults begin."""
        return self.faults[0].at_s

    @property
    def heals_s(self) -> float:
        """When they are over; infinite where that is after the last request."""
        until_s = self.faults[0].until_s
        return until_s if until_s < self.length_s else math.inf

    @property
    def cell(self) -> str:
        """The cell that they befall, with its links."""
        return self.faults[0].cell or (self.faults[0].link or ("",))[0]

    @property
    def others(self) -> tuple[str, ...]:
        """The cells at the other ends of links that they befall."""
        return tuple(one.link[1] for one in self.faults if one.link is not None)

    @property
    def phases(self) -> Mapping[str, tuple[float, float]]:
        """From when until when (seconds) it is before, during and after the faults."""
        heals_s = self.heals_s
        found = {"before": (0.0, self.at_s), "during": (self.at_s, min(heals_s, self.length_s))}
        return found if heals_s == math.inf else found | {"after": (heals_s, self.length_s)}

    def in_words(self) -> str:
        """One line of text."""
        fault = self.faults[0]
        where = self.cell if not self.others else f"{self.cell} and {', '.join(self.others)}"
        how = {
            FaultKind.ZONE_LOSS: f" ({100 * fault.share:g} % of its replicas)",
            FaultKind.SLOW_LINK: f" (round trips {1e3 * fault.more_rtt_s:g} ms longer)",
        }.get(self.kind, "")
        until = "to the end" if self.heals_s == math.inf else f"to second {self.heals_s:g}"
        return f"{self.kind} of {where}{how}, from second {self.at_s:g} {until} of {self.length_s:g}"


def drill_on(
    kind: FaultKind,
    cell: str,
    others: Sequence[str],
    at_s: float,
    for_s: float,
    length_s: float,
    *,
    share: float = 0.5,
    more_rtt_s: float = 0.2,
) -> Drill:
    """The fault of a cell, or those of its links to `others`. Raises ValueError for what cannot be."""
    fault = Fault(kind, at_s, for_s, cell, (cell, ""), share, more_rtt_s)
    if kind in (FaultKind.PARTITION, FaultKind.SLOW_LINK):
        return Drill(tuple(replace(fault, cell="", link=(cell, other)) for other in others), length_s)
    return Drill((replace(fault, link=None),), length_s)


@dataclass(frozen=True, slots=True)
class DrillTraffic:
    """The requests of all cells in the order of time. `homes`: the number of the cell in whose region each one's client
    is. `clients`: the number of that client in its region; they take turns."""

    cells: tuple[str, ...]
    work: Workload
    homes: NDArray[np.int64]
    clients: NDArray[np.int64]

    def sent(self, arrived_s: NDArray[np.float64]) -> "DrillTraffic":
        """The same requests at the times at which a client really sent them."""
        return replace(self, work=self.work.at(np.maximum.accumulate(arrived_s)))


@dataclass(frozen=True, slots=True)
class RequestShape:
    """How long prompts and answers are, and by when the first token is due (seconds)."""

    prompt: Lengths
    output: Lengths
    slo_s: float


def drawn_traffic(rates: Mapping[str, float], length_s: float, shape: RequestShape, seed: int) -> DrillTraffic:
    """Poisson arrivals at so many requests a second by cell. Each cell's requests depend on its own rate alone. Raises
    ValueError for fewer than `MIN_REQUESTS`."""
    times, homes, prompts, outputs = [], [], [], []
    for number, rate in enumerate(rates.values()):
        rng = np.random.default_rng([seed, number])
        count = int(rng.poisson(rate * length_s))
        times.append(np.sort(rng.uniform(0, length_s, count)))
        homes.append(np.full(count, number))
        prompts.append(shape.prompt.sample(count, rng))
        outputs.append(shape.output.sample(count, rng))
    arrived_s = np.concatenate(times)
    if len(arrived_s) < MIN_REQUESTS:
        raise ValueError(f"{len(arrived_s)} requests in {length_s:g} s; needed: at least {MIN_REQUESTS}")
    order = np.argsort(arrived_s, kind="stable")
    prompt, output = np.concatenate(prompts)[order], np.concatenate(outputs)[order]
    work = plain_workload(arrived_s[order], prompt, output, shape.slo_s)
    home = np.concatenate(homes)[order].astype(np.int64)
    return DrillTraffic(tuple(rates), work, home, _in_turns(home))


def _in_turns(homes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which of its region's clients sends each request."""
    clients = np.zeros(len(homes), dtype=np.int64)
    for home in np.unique(homes):
        own = np.flatnonzero(homes == home)
        clients[own] = np.arange(len(own)) % CLIENTS
    return clients
