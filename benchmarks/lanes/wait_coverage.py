"""How often wait estimates held, by lane: from the gateway's trace file, or from a simulation. Pure."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


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
    """One lane. `censored`: requests that left before their p95, which prove nothing."""

    lane: str
    reported: int
    within_p50: float
    within_p95: float
    censored: int


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


def _of_lane(lane: str, estimates: list[WaitRecord]) -> LaneCoverage:
    known = [one for one in estimates if one.placed or one.wait_s > one.p95_s]
    count = max(1, len(known))
    return LaneCoverage(
        lane,
        len(estimates),
        sum(one.wait_s <= one.p50_s for one in known) / count,
        sum(one.wait_s <= one.p95_s for one in known) / count,
        len(estimates) - len(known),
    )
