"""Whether an engine is alive (a dead one is noticed at once, a stuck one when work waits too long without a step),
and why its core ended.

`Watchdog` is pure: `now` and the facts come in, a verdict goes out. The replica asks it several times a second;
Serve's health check repeats its last answer. A core runs in a process of its own and writes its errors to its log,
not to its parent: `root_cause` looks them up in the streams that both write to, which under Ray are files.
"""

import os
import re
import sys
from enum import StrEnum
from pathlib import Path


class EngineVerdict(StrEnum):
    """What is to be thought of the engine."""

    HEALTHY = "healthy"
    DEAD = "dead"
    STALLED = "stalled"


_SUSPICIOUS_S = 1.0


class Watchdog:
    """Counts how long the engine has owed a step.

    It owes one while work is unfinished (requests, or an unanswered probe), and pays by any step. The count starts when
    work appears, not at the last step before it: an engine that idled for an hour has not been stuck for an hour. And
    only time in which the watchdog itself was asked counts: when this process did not run (a stopped process, a blocked
    event loop), steps may lie unread. Nor does time count in which the engine compiles, up to `compile_s` of it: as
    long as a start may take.
    """

    def __init__(self, stall_s: float, compile_s: float, max_gap_s: float = 1.0) -> None:
        self.stall_s = stall_s
        self.compile_s = compile_s
        self.max_gap_s = max_gap_s
        self._owed_s = 0.0
        self._compiled_s = 0.0
        self._checked: float | None = None
        self._last_step: float | None = None

    @property
    def is_suspicious(self) -> bool:
        """Whether it is worth finding out if the engine compiles, which takes some milliseconds."""
        return self._owed_s > _SUSPICIOUS_S or self._compiled_s > 0

    def check(
        self, now: float, unfinished: int, last_step: float, dead: bool, compiling: bool = False
    ) -> EngineVerdict:
        """The verdict at `now`, given the unfinished work, when the engine last stepped, whether its process is known
        to be dead (seconds), and whether it has compiled since the last check."""
        if dead:
            return EngineVerdict.DEAD
        if unfinished == 0 or last_step != self._last_step or self._checked is None:
            self._owed_s = self._compiled_s = 0.0
        elif compiling and self._compiled_s < self.compile_s:
            self._compiled_s += min(now - self._checked, self.max_gap_s)
        else:
            self._owed_s += min(now - self._checked, self.max_gap_s)
        # Work that appears counts from the check that sees it first.
        self._checked = now if unfinished else None
        self._last_step = last_step
        return EngineVerdict.STALLED if self._owed_s > self.stall_s else EngineVerdict.HEALTHY


_LAST_BYTES = 1 << 18
_SAID = re.compile(r"^\(EngineCore[^)]*\).*?\s((?:\w+\.)*\w*(?:Error|Exception): \S.*)$", re.MULTILINE)


def root_cause(log: str) -> str | None:
    """The last error of an engine core in the log, with its type; None where there is none."""
    found = _SAID.findall(log)
    return str(found[-1]).strip() if found else None


def own_words() -> str:
    """The ends of what this process and its children wrote to standard output and error; without those that are no
    files."""
    sys.stdout.flush()
    sys.stderr.flush()
    return "\n".join(_end_of(descriptor) for descriptor in (1, 2))


def _end_of(descriptor: int) -> str:
    try:
        file = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - _LAST_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""
