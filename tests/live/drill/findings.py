"""What a drill showed: how long until the SLO held again, what was lost, what it cost. Pure."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planning.several_regions import WINDOW_S, recovery_s
from planning.simulator.faults import FaultKind
from tests.live.drill.drill import Drill
from tests.live.drill.record import ENDS, DrillRecord, SendEnd

_QUANTILES = (0.5, 0.99)


@dataclass(frozen=True, slots=True)
class DrillSlo:
    """By when the first token is due (seconds), and for which share of the requests."""

    ttft_s: float
    share: float


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """The requests that a cell's clients sent in a phase. `met`: the share that met the SLO; TTFT over those that got a
    first token; NaN where there is none."""

    phase: str
    cell: str
    requests: int
    met: float
    ttft_p50_s: float
    ttft_p99_s: float
    handed_over: int


@dataclass(frozen=True, slots=True)
class DrillFindings:
    """What a run of a drill showed.

    `recovery_s`: from the fault until the SLO held again at every cell (0: it always did; None: not before the end);
    `recovery_by_cell_s`: at each one. `after_healing_s`: the same from the end of the fault (None as well where it did
    not end). `lost`: requests that got no whole answer, by how they ended. `twice`: answers with more than what was
    asked for. `next_answer_s`: p50, p99 and maximum of the time until a client whose answer broke, or whose cell was
    gone, had the first token of its next answer (None: there was no such client). `handed_over`: requests that another
    cell served. `peak_after_healing`: the largest number of requests handed over in one second after the end of the
    fault, and `peak_before`: until then.
    """

    requests: int
    recovery_s: float | None
    recovery_by_cell_s: Mapping[str, float | None]
    heals: bool
    after_healing_s: float | None
    phases: tuple[PhaseFigures, ...]
    lost: Mapping[str, int]
    twice: int
    next_answer_s: tuple[float, float, float] | None
    handed_over: int
    peak_before: int
    peak_after_healing: int
    replica_s: Mapping[str, float]
    usd: float | None
    last_hop_s: float | None

    @property
    def lost_requests(self) -> int:
        """All that got no whole answer."""
        return sum(self.lost.values())

    def of(self, phase: str, cell: str) -> PhaseFigures:
        """The figures of a phase and a cell (empty: of all cells)."""
        return next(one for one in self.phases if (one.phase, one.cell) == (phase, cell))

    def as_json(self) -> dict[str, Any]:
        """Plain values; what does not exist is None."""
        found: dict[str, Any] = _plain(asdict(self))
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def findings_of(drill: Drill, record: DrillRecord, slo: DrillSlo) -> DrillFindings:
    """What the record of a run of the drill shows."""
    met = record.met(slo.ttft_s)
    recovery = {
        name: recovery_s(record.sent_s[own], met[own], (drill.at_s, drill.length_s), slo.share)
        for number, name in enumerate(record.cells)
        if (own := record.home == number).any()
    }
    heals = drill.heals_s < math.inf
    healed = {
        name: recovery_s(record.sent_s[own], met[own], (drill.heals_s, drill.length_s), slo.share)
        for number, name in enumerate(record.cells)
        if heals and (own := record.home == number).any()
    }
    seconds = np.floor(record.sent_s[record.handed_over])
    after = seconds >= math.floor(drill.heals_s) if heals else np.zeros(len(seconds), dtype=np.bool_)
    return DrillFindings(
        len(record),
        _longest(recovery),
        recovery,
        heals,
        _longest(healed) if heals else None,
        tuple(_phases(drill, record, met)),
        {end.value: int(record.of(end).sum()) for end in ENDS if end is not SendEnd.ANSWERED and record.of(end).any()},
        int(record.twice.sum()),
        _next_answer(drill, record),
        int(record.handed_over.sum()),
        _peak(seconds[~after]),
        _peak(seconds[after]),
        record.replica_s,
        record.usd,
        record.last_hop_s,
    )


def _longest(by_cell: Mapping[str, float | None]) -> float | None:
    values = list(by_cell.values())
    return None if None in values else max((value for value in values if value is not None), default=0.0)


def _phases(drill: Drill, record: DrillRecord, met: NDArray[np.bool_]) -> list[PhaseFigures]:
    found = []
    for phase, (begin_s, until_s) in drill.phases.items():
        inside = (record.sent_s >= begin_s) & (record.sent_s < until_s)
        for number, name in ((-1, ""), *enumerate(record.cells)):
            chosen = inside if number < 0 else inside & (record.home == number)
            ttft_s = record.ttft_s[chosen]
            known = ttft_s[~np.isnan(ttft_s)]
            p50_s, p99_s = np.quantile(known, _QUANTILES) if len(known) else (math.nan, math.nan)
            share = float(met[chosen].mean()) if chosen.any() else math.nan
            moved = int(record.handed_over[chosen].sum())
            found.append(PhaseFigures(phase, name, int(chosen.sum()), share, float(p50_s), float(p99_s), moved))
    return found


def _next_answer(drill: Drill, record: DrillRecord) -> tuple[float, float, float] | None:
    """Over the clients whose answer broke; and those of a lost cell, that asked within a window of the fault or waited
    for an answer then. From the fault on at the earliest."""
    chosen = record.again
    if drill.kind is FaultKind.REGION_LOSS:
        gone = record.home == record.cells.index(drill.cell)
        first_s = record.sent_s + np.nan_to_num(record.ttft_s, nan=np.inf)
        chosen = chosen | (
            gone & (record.asked != record.home) & (record.sent_s < drill.at_s + WINDOW_S) & (first_s >= drill.at_s)
        )
    waited_s = (record.ttft_s - np.maximum(0.0, drill.at_s - record.sent_s))[chosen]
    waited_s = waited_s[~np.isnan(waited_s)]
    if not len(waited_s):
        return None
    p50_s, p99_s = np.quantile(waited_s, _QUANTILES)
    return float(p50_s), float(p99_s), float(waited_s.max())


def _peak(seconds: NDArray[np.float64]) -> int:
    return int(np.unique(seconds, return_counts=True)[1].max()) if len(seconds) else 0
