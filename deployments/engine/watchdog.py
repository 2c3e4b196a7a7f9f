"""Decides whether an engine is alive: a dead one at once, a stuck one when work waits too long without a step.

Pure: `now` and the facts come in, a verdict goes out. `deployment.py` asks it several times a second; Serve's health check repeats its last answer.
"""

from enum import StrEnum


class Verdict(StrEnum):
    """What is to be thought of the engine."""

    HEALTHY = "healthy"
    DEAD = "dead"
    STALLED = "stalled"


class Watchdog:
    """Holds one clock: since when the engine owes a step.

    It owes one while work is unfinished (requests, or an unanswered probe), and pays by any step. The clock starts when work appears, not at the
    last step before it: an engine that idled for an hour has not been stuck for an hour.
    """

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self._owing_since: float | None = None

    def check(self, now: float, unfinished: int, last_step: float, dead: bool) -> Verdict:
        """The verdict at `now`, given the unfinished work, when the engine last stepped, and whether its process is known to be dead (seconds)."""
        if dead:
            return Verdict.DEAD
        if unfinished == 0:
            self._owing_since = None
            return Verdict.HEALTHY
        if self._owing_since is None:
            self._owing_since = now
        waited = now - max(self._owing_since, last_step)
        return Verdict.STALLED if waited > self.stall_s else Verdict.HEALTHY
