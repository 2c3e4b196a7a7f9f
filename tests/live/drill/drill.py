"""What a drill does to a cluster of several cells, and the requests that its clients send meanwhile. Pure.

The clients are an open loop: requests arrive as a Poisson process at each cell, however many are still open."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planning.simulator.clients import CLIENTS
from planning.simulator.faults import FaultKind
from planning.simulator.workload import Workload, plain_workload
from planning.workload.lengths import Lengths

MIN_REQUESTS = 20
"""Fewer requests say nothing about an SLO."""


@dataclass(frozen=True, slots=True)
class Drill:
    """What befalls a cell, or its links to `others`, from `at_s` to `heals_s` (infinite: not before the end), while
    requests arrive for `length_s` (seconds). `share`: of its replicas; `more_rtt_s`: added to round trips."""

    kind: FaultKind
    cell: str
    others: tuple[str, ...]
    at_s: float
    heals_s: float
    length_s: float
    share: float = 0.5
    more_rtt_s: float = 0.2


@dataclass(frozen=True, slots=True)
class DrillTraffic:
    """The requests of all cells in the order of time. `homes`: the number of the cell in whose region each one's client
    is. `clients`: the number of that client in its region; they take turns."""

    cells: tuple[str, ...]
    work: Workload
    homes: NDArray[np.int64]
    clients: NDArray[np.int64]


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
