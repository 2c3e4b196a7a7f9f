"""All regions of a spec, simulated together: their cells help each other, and faults befall them. Pure.

    the SLO holds at t   of the requests that a region's clients sent within [t, t + w), the class's share met it
    recovery             from the fault until a moment from which on it holds in that region

w is `WINDOW_S`; the last window ends when the last request is sent. The share is counted over whole windows, so that
one late request among hundreds is no outage. What a window holds changes only where it begins or ends at a request, so
those are looked at, and no others.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.spec import ClusterSpec, Model
from planning.simulation import Simulation
from planning.simulator.cells import CellsSimulator
from planning.simulator.cells_outcome import CellsOutcome, replica_hours
from planning.simulator.clients import CLIENTS, ClientLists
from planning.simulator.faults import Fault, FaultKind
from planning.simulator.peered_cell import CellPlan
from planning.simulator.workload import Workload

WINDOW_S = 10.0
DEFAULT_RTT_S = 0.05
"""Between regions whose round trip is not known."""
_QUANTILES = (0.5, 0.99)
_NUMBER = r"[0-9]*\.?[0-9]+"
_FAULT = re.compile(
    rf"(?P<region>[^@/:~+]+)(?:/(?P<zone>[^@/:~+]+)|:(?P<other>[^@/:~+]+?)(?:~(?P<more_ms>{_NUMBER}))?)?"
    rf"@(?P<at>{_NUMBER})(?:\+(?P<span>{_NUMBER}))?"
)
FORMS = (
    "REGION@T, REGION/ZONE@T, REGION:REGION@T (no link), REGION:REGION~MS@T (slower by MS); +S after T: for S seconds"
)


def is_several(spec: ClusterSpec, model: Model) -> bool:
    """Whether the model's cells help each other, so that they are simulated together. Models with groups are not."""
    return spec.peering is not None and len(spec.regions_of(model)) > 1 and len(model.views) == 1


def fault_of(text: str, spec: ClusterSpec, model: Model) -> Fault:
    """The fault that a user names: `FORMS`. Raises ValueError."""
    found = _FAULT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r}: allowed: {FORMS}")
    names = [region.name for region in spec.regions_of(model)]
    region, other, zone = found["region"], found["other"], found["zone"]
    for name in (region, other):
        if name is not None and name not in names:
            raise ValueError(f"{text!r}: region {name!r} does not run {model.name!r}; allowed: {', '.join(names)}")
    at_s, for_s = float(found["at"]), float(found["span"] or "inf")
    if other is not None:
        more_s = float(found["more_ms"] or 0) / 1e3
        kind = FaultKind.SLOW_LINK if found["more_ms"] else FaultKind.PARTITION
        return Fault(kind, at_s, for_s, link=(region, other), more_rtt_s=more_s)
    if zone is None:
        return Fault(FaultKind.REGION_LOSS, at_s, for_s, region)
    zones = spec.pool_of(model, spec.region(region)).zones or ()
    if zone not in zones:
        raise ValueError(
            f"{text!r}: zone {zone!r}: allowed: {', '.join(zones) or 'none, since the pool names no zones'}"
        )
    return Fault(FaultKind.ZONE_LOSS, at_s, for_s, region, share=1 / len(zones), room_elsewhere=len(zones) > 1)


@dataclass(frozen=True, slots=True)
class RegionFigures:
    """The requests that a region's clients sent in a phase. `in_time`: the share whose first token met the SLO and
    whose answer was whole; TTFT over those that got a first token; NaN where there is none. `lost`: without a whole
    answer."""

    region: str
    phase: str
    requests: int
    in_time: float
    ttft_p50_s: float
    ttft_p99_s: float
    handed_over: int
    lost: int


@dataclass(frozen=True, slots=True)
class RegionsFigures:
    """A run: figures by region and phase, replica-hours and USD by region. `recovery_s`: from the first fault until the
    SLO held again, by region (0: it always did; None: not before the end); empty without a fault."""

    figures: tuple[RegionFigures, ...]
    replica_hours: Mapping[str, float]
    usd: float
    recovery_s: Mapping[str, float | None]

    @property
    def held(self) -> bool:
        """Whether the SLO holds at the end in every region."""
        return None not in self.recovery_s.values()


@dataclass(frozen=True, slots=True)
class SeveralRegions:
    """`simulations`: of each region, by name, with the same requests; `homes`: the number of each request's region."""

    spec: ClusterSpec
    simulations: Mapping[str, Simulation]
    homes: NDArray[np.int64]
    faults: tuple[Fault, ...] = ()

    @property
    def work(self) -> Workload:
        """The requests of all regions."""
        return next(iter(self.simulations.values())).work

    def run(self) -> CellsOutcome:
        """Simulates it. Clients know the endpoints of all regions, as docs/clients.md says."""
        plans = [
            CellPlan(name, one.model.name, one.cell_settings(), one.cost, one.views[0].usd_per_hour)
            for name, one in self.simulations.items()
        ]
        turns = np.zeros(len(self.homes), dtype=np.int64)
        for home in range(len(plans)):
            own = np.flatnonzero(self.homes == home)
            turns[own] = np.arange(len(own)) % CLIENTS
        gateway = self.spec.gateway
        clients = ClientLists(turns, gateway.timeouts.total_s, gateway.heartbeat_s)
        rtt_s = round_trips(self.spec, list(self.simulations))
        return CellsSimulator(self.spec, plans, self.work, self.homes, rtt_s, self.faults, clients).run()

    @property
    def phases(self) -> Mapping[str, tuple[float, float]]:
        """From when until when (seconds) it is before, during and after the faults."""
        end_s = float(self.work.arrived_s[-1])
        if not self.faults:
            return {"all": (0.0, math.inf)}
        at_s, until_s = min(one.at_s for one in self.faults), max(one.until_s for one in self.faults)
        found = {"before": (0.0, at_s), "during": (at_s, until_s)}
        return found if until_s >= end_s else found | {"after": (until_s, math.inf)}

    def figures(self, out: CellsOutcome) -> RegionsFigures:
        """A run in figures."""
        in_time = out.in_time(self.work.ttft_slo_s)
        rows = [
            self._row(name, phase, span, out, in_time)
            for name in (*self.simulations, "")
            for phase, span in self.phases.items()
        ]
        return RegionsFigures(tuple(rows), replica_hours(out.lives), out.usd, self._recovery(in_time))

    def _row(
        self, name: str, phase: str, span: tuple[float, float], out: CellsOutcome, in_time: NDArray[np.bool_]
    ) -> RegionFigures:
        arrived_s = self.work.arrived_s
        chosen = (arrived_s >= span[0]) & (arrived_s < span[1])
        if name:
            chosen &= out.own(name)
        known = out.ttft_s[chosen & ~np.isnan(out.ttft_s)]
        p50_s, p99_s = np.quantile(known, _QUANTILES) if len(known) else (math.nan, math.nan)
        share = float(in_time[chosen].mean()) if chosen.any() else math.nan
        moved = chosen & (out.served >= 0) & (out.served != out.asked)
        lost = chosen & (np.isnan(out.finished_s) | out.reset | out.broken)
        counts = int(chosen.sum()), int(moved.sum()), int(lost.sum())
        return RegionFigures(name, phase, counts[0], share, float(p50_s), float(p99_s), counts[1], counts[2])

    def _recovery(self, in_time: NDArray[np.bool_]) -> dict[str, float | None]:
        if not self.faults:
            return {}
        arrived_s, share = self.work.arrived_s, self.spec.classes[0].attainment
        span = min(one.at_s for one in self.faults), float(arrived_s[-1])
        return {
            name: recovery_s(arrived_s[self.homes == number], in_time[self.homes == number], span, share)
            for number, name in enumerate(self.simulations)
        }


def round_trips(spec: ClusterSpec, names: Sequence[str]) -> Mapping[frozenset[str], float]:
    """Seconds, by pair of regions: those of the spec's and the shipped links, else `DEFAULT_RTT_S`."""
    found = {}
    for number, one in enumerate(names):
        for other in names[number + 1 :]:
            known = spec.hardware.link(one, other).rtt_ms
            found[frozenset((one, other))] = DEFAULT_RTT_S if known is None else known / 1e3
    return found


def homes_of(work: Workload, names: Sequence[str]) -> NDArray[np.int64]:
    """The number of each request's region: by the trace's column; without one, in turn. Raises ValueError."""
    if work.region is None:
        return np.arange(len(work), dtype=np.int64) % len(names)
    numbers = {name: number for number, name in enumerate(names)}
    if unknown := [name for name in work.region.used() if name not in numbers]:
        what = (
            f"region {unknown[0]!r} of the trace does not run the model" if unknown[0] else "requests without a region"
        )
        raise ValueError(f"{what}; allowed: {', '.join(names)}")
    of_name = np.array([numbers.get(name, 0) for name in work.region.names], dtype=np.int64)
    homes: NDArray[np.int64] = of_name[work.region.codes]
    return homes


def recovery_s(
    sent_s: NDArray[np.float64],
    met: NDArray[np.bool_],
    span_s: tuple[float, float],
    share: float,
    window_s: float = WINDOW_S,
) -> float | None:
    """Seconds from the beginning of the span until the SLO holds in every window that begins later; None: not before
    the span's end. `sent_s` ascends."""
    begin_s, until_s = span_s
    inside = (sent_s >= begin_s) & (sent_s < until_s)
    times, good = sent_s[inside], met[inside]
    last_begin_s = max(begin_s, until_s - window_s)
    begins = np.clip(np.concatenate([times, times - window_s, [last_begin_s]]), begin_s, last_begin_s)
    first, beyond = np.searchsorted(times, begins, "left"), np.searchsorted(times, begins + window_s, "left")
    total = np.concatenate([[0], np.cumsum(good)])
    held = total[beyond] - total[first] >= share * (beyond - first)
    if held.all():
        return 0.0
    last_s = float(begins[~held].max())
    return None if last_s == last_begin_s else last_s - begin_s
