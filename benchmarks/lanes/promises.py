"""Whether the waits that clients were told held, from the gateway's trace file: coverage and pinball loss by lane. Pure.

The rival is what a dashboard offers: the 95th percentile of the waits of the requests that were placed in the minute before, same lane.
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
class Promise:
    """A queued request: when it was told what, and what became of it (`placed` false: it left before, after `wait_s`)."""

    lane: str
    told_s: float
    p50_s: float
    p95_s: float
    wait_s: float
    placed: bool


@dataclass(frozen=True, slots=True)
class Coverage:
    """One lane. `pinball` and `rival_pinball` are mean losses in seconds; `censored` left before their p95 and say nothing."""

    lane: str
    told: int
    within_p50: float
    within_p95: float
    censored: int
    pinball: float
    rival_pinball: float

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def read_promises(lines: Iterable[str], since_unix_s: float) -> list[Promise]:
    """The queued requests of a trace file that arrived after a moment."""
    found = []
    for line in lines:
        record: dict[str, Any] = json.loads(line)
        if record["arrived_s"] >= since_unix_s and record.get("eta_s"):
            wait_s = float(record["stages_s"].get("lane", 0.0))
            placed = record["replica"] is not None
            p50_s, p95_s = record["eta_s"]
            found.append(Promise(record["lane"], record["arrived_s"], p50_s, p95_s, wait_s, placed))
    return sorted(found, key=lambda promise: promise.told_s)


def coverage(promises: list[Promise]) -> list[Coverage]:
    """How the promises of each lane held."""
    by_lane: dict[str, list[Promise]] = defaultdict(list)
    for promise in promises:
        by_lane[promise.lane].append(promise)
    return [_of_lane(lane, by_lane[lane]) for lane in sorted(by_lane)]


def pinball(quantile: float, wait_s: float) -> float:
    """The loss whose least mean is the quantile at LEVEL."""
    return LEVEL * (wait_s - quantile) if wait_s > quantile else (1.0 - LEVEL) * (quantile - wait_s)


def _of_lane(lane: str, promises: list[Promise]) -> Coverage:
    known = [promise for promise in promises if promise.placed or promise.wait_s > promise.p95_s]
    ours = [pinball(promise.p95_s, promise.wait_s) for promise in known if promise.placed]
    count = max(1, len(known))
    return Coverage(
        lane,
        len(promises),
        sum(promise.wait_s <= promise.p50_s for promise in known) / count,
        sum(promise.wait_s <= promise.p95_s for promise in known) / count,
        len(promises) - len(known),
        sum(ours) / max(1, len(ours)),
        _rival(promises),
    )


def _rival(promises: list[Promise]) -> float:
    placed = sorted((promise for promise in promises if promise.placed), key=lambda promise: promise.told_s + promise.wait_s)
    window: deque[tuple[float, float]] = deque()
    ordered: list[float] = []
    losses, next_placed = [], 0
    for promise in sorted((promise for promise in promises if promise.placed), key=lambda promise: promise.told_s):
        while next_placed < len(placed) and placed[next_placed].told_s + placed[next_placed].wait_s <= promise.told_s:
            done = placed[next_placed]
            window.append((done.told_s + done.wait_s, done.wait_s))
            insort(ordered, done.wait_s)
            next_placed += 1
        while window and window[0][0] < promise.told_s - _WINDOW_S:
            ordered.remove(window.popleft()[1])
        guess = ordered[min(len(ordered) - 1, int(LEVEL * len(ordered)))] if ordered else 0.0
        losses.append(pinball(guess, promise.wait_s))
    return sum(losses) / max(1, len(losses))
