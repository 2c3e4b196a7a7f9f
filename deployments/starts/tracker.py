"""The directory's part in starts: which replicas start, since when they were asked for, how they ended, and how long
the next one waits after failures. Pure: reports and the time of day come in.

    asked        each request for a replica waits here for the replica that answers it; both in their order. The first
                 replicas of a model that Serve's configuration deploys are asked for when it is deployed
    node phase   from that request until the replica's process began, which the replica says itself
    wait         BACK_OFF_S * 2 ** (failures in a row - 1), at most MAX_BACK_OFF_S
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import replace

from deployments.starts.phases import Phase
from deployments.starts.start import (
    MAX_CAUSE_CHARS,
    CellStarts,
    FailingModel,
    ReplicaStart,
    StartOutcome,
    StartReport,
    StartTally,
)

BACK_OFF_S = 1.0
MAX_BACK_OFF_S = 60.0
"""Once a minute costs a store or a hub nothing, and a model is back within a minute of what it needs."""
GIVE_UP_AFTER_S = 20.0
"""A starting replica tells of itself every two seconds, even while its engine loads."""
SHOWN_EVERY_S = 5.0
"""How often the progress of a fetch is news: each change of the listing goes to every gateway."""
KEPT = 12
"""Starts of each model that are remembered: an autoscaler learns from them."""
_NO_WORD = "its process ended without a word (killed, or out of memory?)"


class StartTracker:
    """Times are of the day, on the directory's clock (seconds). `began_unix_s`: when the cell was brought up, if it is
    new."""

    def __init__(self, began_unix_s: float | None = None) -> None:
        self._began_s = began_unix_s
        self._deployed_s: dict[str, float] = {}
        self._first_ended_s: dict[str, float] = {}
        self._asked: defaultdict[str, deque[float]] = defaultdict(deque)
        self._running: dict[str, ReplicaStart] = {}
        self._heard: dict[str, float] = {}
        self._shown: dict[str, float] = {}
        self._done: defaultdict[str, deque[ReplicaStart]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._failing: dict[str, FailingModel] = {}
        self._tallies: dict[str, StartTally] = {}
        self._starts_due: dict[str, int] = {}

    def starts(self) -> CellStarts:
        return CellStarts(
            tuple(self._running.values()),
            tuple(start for starts in self._done.values() for start in starts),
            tuple(self._failing.values()),
            tuple(self._tallies.values()),
        )

    def recall(self, ended: Iterable[ReplicaStart]) -> None:
        """What an earlier directory wrote of this cell."""
        for start in ended:
            self._first_ended_s.setdefault(start.model, start.ended_unix_s)
            if start.outcome is StartOutcome.READY:
                self._done[start.model].append(start)

    def deployed(self, models: Iterable[str], now: float) -> None:
        """The cell has these models now: the first replicas of those that it had not before are asked for."""
        since_s = now if self._began_s is None else self._began_s
        self._deployed_s = {model: self._deployed_s.get(model, since_s) for model in models}
        self._began_s = None

    def asked(self, model: str, replicas: int, now: float) -> None:
        """So many replicas more are requested."""
        self._asked[model].extend([now] * min(replicas, 10_000))

    def decided(self, model: str, requested: int, applied: int, ready: int, now: float) -> None:
        """An autoscaler requests so many, of which so many were applied and are ready: what nobody waits for any more
        is forgotten, the newest requests first."""
        self.asked(model, max(0, requested - applied), now)
        self._starts_due[model] = max(0, requested - ready)
        awaited = max(0, requested - ready - len(self.starts().running_of(model)))
        while len(self._asked[model]) > awaited:
            self._asked[model].pop()

    def asked_unix_s(self, replica_id: str) -> float:
        """When a replica that starts was asked for; 0 where it does not start."""
        running = self._running.get(replica_id)
        return 0.0 if running is None else running.asked_unix_s

    def report(self, report: StartReport, now: float) -> bool:
        """A replica starts. Whether that is news: it is in another phase than before, or has fetched on for a while."""
        before = self._running.get(report.replica_id)
        asked_s = self._claim(report, now) if before is None else before.asked_unix_s
        self._heard[report.replica_id] = now
        self._running[report.replica_id] = _start_of(report, asked_s, now)
        shown_s = self._shown.get(report.replica_id, 0.0)
        is_due = report.fetching is not None and now >= shown_s + SHOWN_EVERY_S
        is_news = before is None or before.phase is not report.phase or is_due
        if is_news:
            self._shown[report.replica_id] = now
        return is_news

    def ready(self, report: StartReport, now: float) -> ReplicaStart:
        """Its start went well."""
        self.report(report, now)
        start = replace(self._forget(report.replica_id), outcome=StartOutcome.READY, ended_unix_s=now)
        self._done[start.model].append(start)
        self._first_ended_s.setdefault(start.model, now)
        self._failing.pop(start.model, None)
        tally = self._tally(start.model)
        summed = {phase: tally.seconds.get(phase, 0.0) + start.seconds.get(phase, 0.0) for phase in Phase}
        self._tallies[start.model] = replace(tally, ready=tally.ready + 1, seconds=summed)
        return start

    def failed(self, report: StartReport, cause: str, log: str, now: float) -> ReplicaStart:
        """Its start failed, for that cause; `log`: the file with all of it."""
        self.report(report, now)
        return self._failed(report.replica_id, cause, log, now)

    def sweep(self, now: float) -> list[ReplicaStart]:
        """Gives up the starting replicas that tell nothing any more, and returns those that failed. Others were
        stopped, since fewer replicas are requested."""
        failed = []
        for replica_id in [key for key, heard in self._heard.items() if heard < now - GIVE_UP_AFTER_S]:
            model = self._running[replica_id].model
            if len(self.starts().running_of(model)) > self._starts_due.get(model, 1 << 30):
                self._forget(replica_id)
            else:
                failed.append(self._failed(replica_id, _NO_WORD, "", now))
        return failed

    def wait_s(self, model: str, now: float) -> float:
        """How long a replica that starts now is to wait before it does anything."""
        failing = self._failing.get(model)
        return 0.0 if failing is None else max(0.0, failing.retry_unix_s - now)

    def _claim(self, report: StartReport, now: float) -> float:
        """When it was asked for: with the oldest request before its process began; with the model, if it is one of the
        first; else with its process."""
        begun_s, asked = now - report.elapsed_s, self._asked[report.model]
        if asked:
            return min(asked.popleft(), now)
        deployed_s = self._deployed_s.get(report.model, self._began_s)
        if deployed_s is None or begun_s > self._first_ended_s.get(report.model, now):
            return begun_s
        return min(deployed_s, now)

    def _failed(self, replica_id: str, cause: str, log: str, now: float) -> ReplicaStart:
        begun = self._forget(replica_id)
        start = replace(begun, outcome=StartOutcome.FAILED, ended_unix_s=now, cause=cause[:MAX_CAUSE_CHARS], log=log)
        self._first_ended_s.setdefault(start.model, now)
        before, tally = self._failing.get(start.model), self._tally(start.model)
        failures = 1 if before is None else before.failures + 1
        retry_s = now + min(MAX_BACK_OFF_S, BACK_OFF_S * 2.0 ** min(failures - 1, 30))
        self._failing[start.model] = FailingModel(
            start.model, failures, start, retry_s, bool(self._done.get(start.model))
        )
        counts = {**tally.failed_in, start.phase: tally.failed_in.get(start.phase, 0) + 1}
        self._tallies[start.model] = replace(tally, failed_in=counts)
        return start

    def _forget(self, replica_id: str) -> ReplicaStart:
        self._heard.pop(replica_id, None)
        self._shown.pop(replica_id, None)
        return replace(self._running.pop(replica_id), fetching=None)

    def _tally(self, model: str) -> StartTally:
        return self._tallies.get(model, StartTally(model))


def _start_of(report: StartReport, asked_s: float, now: float) -> ReplicaStart:
    """The start as reported, with the wait for its node. A process may be older than the request: Ray keeps some ready,
    and their idle time is no part of a start."""
    begun_s = now - report.elapsed_s
    seconds = dict(report.seconds)
    node_s, idle_s = max(0.0, begun_s - asked_s), max(0.0, asked_s - begun_s)
    seconds[Phase.NODE] = seconds.get(Phase.NODE, 0.0) + node_s
    seconds[Phase.ENVIRONMENT] = max(0.0, seconds.get(Phase.ENVIRONMENT, 0.0) - idle_s)
    return ReplicaStart(
        report.replica_id,
        report.model,
        report.node_id,
        asked_s,
        report.phase,
        max(asked_s, now - report.in_phase_s),
        seconds,
        fetching=report.fetching,
    )
