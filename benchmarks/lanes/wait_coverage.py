"""How often wait estimates held, from the gateway's trace file: coverage and pinball loss by lane. Pure.

The rival is the figure of a dashboard: the 95th percentile of the waits of the lane's requests that were placed in the
minute before.
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
    """A queued request: when it got which estimate, and what happened (`placed` false: it left after `wait_s`)."""

    lane: str
    reported_s: float
    p50_s: float
    p95_s: float
    wait_s: float
    placed: bool


@dataclass(frozen=True, slots=True)
class LaneCoverage:
    """One lane. `pinball`, `rival_pinball`: mean losses in seconds; `censored`: requests that left before their p95,
    which prove nothing."""

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
    return sorted(found, key=lambda one: one.reported_s)


def coverage(estimates: list[WaitRecord]) -> list[LaneCoverage]:
    """How often the wait estimates of each lane held."""
    by_lane: dict[str, list[WaitRecord]] = defaultdict(list)
    for one in estimates:
        by_lane[one.lane].append(one)
    return [_of_lane(lane, by_lane[lane]) for lane in sorted(by_lane)]


def pinball(quantile: float, wait_s: float) -> float:
    """The loss whose least mean is the quantile at LEVEL."""
    return LEVEL * (wait_s - quantile) if wait_s > quantile else (1.0 - LEVEL) * (quantile - wait_s)


def _of_lane(lane: str, estimates: list[WaitRecord]) -> LaneCoverage:
    known = [one for one in estimates if one.placed or one.wait_s > one.p95_s]
    ours = [pinball(one.p95_s, one.wait_s) for one in known if one.placed]
    count = max(1, len(known))
    return LaneCoverage(
        lane,
        len(estimates),
        sum(one.wait_s <= one.p50_s for one in known) / count,
        sum(one.wait_s <= one.p95_s for one in known) / count,
        len(estimates) - len(known),
        sum(ours) / max(1, len(ours)),
        _rival(estimates),
    )


def _rival(estimates: list[WaitRecord]) -> float:
    placed = [one for one in estimates if one.placed]
    done = sorted((one.reported_s + one.wait_s, one.wait_s) for one in placed)
    window: deque[tuple[float, float]] = deque()
    ordered: list[float] = []
    losses, known = [], 0
    for one in sorted(placed, key=lambda one: one.reported_s):
        while known < len(done) and done[known][0] <= one.reported_s:
            window.append(done[known])
            insort(ordered, done[known][1])
            known += 1
        while window and window[0][0] < one.reported_s - _WINDOW_S:
            ordered.remove(window.popleft()[1])
        guess = ordered[min(len(ordered) - 1, int(LEVEL * len(ordered)))] if ordered else 0.0
        losses.append(pinball(guess, one.wait_s))
    return sum(losses) / max(1, len(losses))
