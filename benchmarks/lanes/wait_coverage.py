"""Whether the waits that clients were told held, from the gateway's trace file: coverage and pinball loss by lane.
Pure.

The rival is what a dashboard offers: the 95th percentile of the waits of the requests that were placed in the minute
before, same lane.
"""

import json
from bisect import insort
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

LEVEL = 0.95
_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class WaitRecord:
    """A queued request: when it was told what, and what became of it (`placed` false: it left before, after
    `wait_s`)."""

    lane: str
    reported_s: float
    p50_s: float
    p95_s: float
    wait_s: float
    placed: bool


@dataclass(frozen=True, slots=True)
class LaneCoverage:
    """One lane. `pinball` and `rival_pinball` are mean losses in seconds; `censored` left before their p95 and say
    nothing."""

    lane: str
    reported: int
    within_p50: float
    within_p95: float
    censored: int
    pinball: float
    rival_pinball: float

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def read_wait_estimates(lines: Iterable[str], since_unix_s: float) -> list[WaitRecord]:
    """The queued requests of a trace file that arrived after a moment."""
    found = []
    for line in lines:
        record: dict[str, Any] = json.loads(line)
        if record["arrived_s"] >= since_unix_s and record.get("eta_s"):
            wait_s = float(record["stages_s"].get("lane", 0.0))
            placed = record["replica"] is not None
            p50_s, p95_s = record["eta_s"]
            found.append(WaitRecord(record["lane"], record["arrived_s"], p50_s, p95_s, wait_s, placed))
    return sorted(found, key=lambda wait_estimate: wait_estimate.reported_s)


def coverage(wait_estimates: list[WaitRecord]) -> list[LaneCoverage]:
    """How the promises of each lane held."""
    by_lane: dict[str, list[WaitRecord]] = defaultdict(list)
    for wait_estimate in wait_estimates:
        by_lane[wait_estimate.lane].append(wait_estimate)
    return [_of_lane(lane, by_lane[lane]) for lane in sorted(by_lane)]


def pinball(quantile: float, wait_s: float) -> float:
    """The loss whose least mean is the quantile at LEVEL."""
    return LEVEL * (wait_s - quantile) if wait_s > quantile else (1.0 - LEVEL) * (quantile - wait_s)


def _of_lane(lane: str, wait_estimates: list[WaitRecord]) -> LaneCoverage:
    known = [
        wait_estimate
        for wait_estimate in wait_estimates
        if wait_estimate.placed or wait_estimate.wait_s > wait_estimate.p95_s
    ]
    ours = [pinball(wait_estimate.p95_s, wait_estimate.wait_s) for wait_estimate in known if wait_estimate.placed]
    count = max(1, len(known))
    return LaneCoverage(
        lane,
        len(wait_estimates),
        sum(wait_estimate.wait_s <= wait_estimate.p50_s for wait_estimate in known) / count,
        sum(wait_estimate.wait_s <= wait_estimate.p95_s for wait_estimate in known) / count,
        len(wait_estimates) - len(known),
        sum(ours) / max(1, len(ours)),
        _rival(wait_estimates),
    )


def _rival(wait_estimates: list[WaitRecord]) -> float:
    placed = sorted(
        (wait_estimate for wait_estimate in wait_estimates if wait_estimate.placed),
        key=lambda wait_estimate: wait_estimate.reported_s + wait_estimate.wait_s,
    )
    window: deque[tuple[float, float]] = deque()
    ordered: list[float] = []
    losses, next_placed = [], 0
    for wait_estimate in sorted(
        (wait_estimate for wait_estimate in wait_estimates if wait_estimate.placed),
        key=lambda wait_estimate: wait_estimate.reported_s,
    ):
        while (
            next_placed < len(placed)
            and placed[next_placed].reported_s + placed[next_placed].wait_s <= wait_estimate.reported_s
        ):
            done = placed[next_placed]
            window.append((done.reported_s + done.wait_s, done.wait_s))
            insort(ordered, done.wait_s)
            next_placed += 1
        while window and window[0][0] < wait_estimate.reported_s - _WINDOW_S:
            ordered.remove(window.popleft()[1])
        guess = ordered[min(len(ordered) - 1, int(LEVEL * len(ordered)))] if ordered else 0.0
        losses.append(pinball(guess, wait_estimate.wait_s))
    return sum(losses) / max(1, len(losses))
