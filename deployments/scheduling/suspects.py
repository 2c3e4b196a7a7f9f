"""Queries of death: which requests were running when replicas died, and what is made of that.

A request is known by the digest of its body, so that a client's retry is the same one; without a digest, by its own id.

    standing   what it means                        goes to
    clear      there is no record                   suspect: a replica died while it ran
    suspect    one replica died                     banned: another one did. clear: a run of it completed, or `FORGET_S`
               passed
    banned     two did: it is not placed again      suspect: `FORGET_S` passed since the last death. clear: a run of it
               completed

Two deaths must do, or a third replica would be lost, and most of those that ran at a death are bystanders. So a suspect
that had no first token yet when its replica died, as most killers have none, is *tried*: no two of them run at the same
time (`Quarantine`). A replica that dies at a trial is the doing of the one that is tried; of all others that ran there
nothing is noted. Without a trial all that ran there are suspects, or banned.

A death is reported in pieces: some leases fail first, then the process is known to be gone. So an inquest is held into
each replica's death, and what ended within `RECENT_S` before, without an answer, counts as running. A replica that is
back was not dead: only a connection broke, and what was noted is taken back.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from deployments.scheduling.fleet import Fleet
from deployments.scheduling.forecasts import Forecasts
from deployments.scheduling.lanes import Lanes
from deployments.scheduling.placing import Placing
from deployments.scheduling.request import DEADLY, FORGET_S, Job, Lease, Suspicion

RECENT_S = 20.0
"""Longer than an engine that hangs is given (`health.stall_s`)."""
MAX = 4_096
"""So many records are kept; beyond it the oldest is dropped without a report."""


class SuspectRun(NamedTuple):
    """A lease that stands, or ended without an answer. `tried`: it was on trial, and had no first token yet."""

    replica_id: str
    key: str
    answered: bool
    tried: bool


@dataclass(slots=True)
class _Inquest:
    """Into the death of one replica. `culprit`: who was tried there. `noted`: against whom it was held."""

    culprit: str | None
    noted: set[str] = field(default_factory=set)


class Suspects:
    """Of one model. `bans` counts those that were ever banned. `doubt`: there are new ones, of which some may wait in
    the lanes, or as guests."""

    def __init__(self) -> None:
        self.bans = 0
        self.doubt = False
        self._records: dict[str, Suspicion] = {}
        self._inquests: dict[str, _Inquest] = {}
        self._failed: deque[tuple[float, SuspectRun]] = deque(maxlen=MAX)
        self._news: dict[str, None] = {}
        self._forget_s = math.inf

    def of(self, key: str, now: float) -> Suspicion | None:
        """The standing of a request; None: it is clear."""
        record = self._records.get(key)
        if record is None or now < record.forgotten_s:
            return record
        aged = _aged(record, now)
        return aged if aged.deaths > 0 else None

    def all(self, now: float) -> tuple[Suspicion, ...]:
        """Everyone who is not clear."""
        return tuple(record for key in self._records if (record := self.of(key, now)) is not None)

    def forget(self, now: float) -> None:
        """What is long ago counts less, or no more."""
        if now < self._forget_s:
            return
        for record in [one for one in self._records.values() if one.forgotten_s <= now]:
            self._note(_aged(record, now))
        self._forget_s = min((record.forgotten_s for record in self._records.values()), default=math.inf)

    def died(self, run: SuspectRun, tried_there: str | None, now: float) -> None:
        """The replica, or its engine, died at a run. `tried_there`: who is tried on that replica now, if anybody."""
        inquest = self._inquests.get(run.replica_id)
        if inquest is None:
            recent = (
                one.key
                for at_s, one in self._failed
                if one.tried and one.replica_id == run.replica_id and at_s >= now - RECENT_S
            )
            inquest = self._inquests[run.replica_id] = _Inquest(tried_there or next(recent, None))
        if run.key not in inquest.noted and (inquest.culprit is None or inquest.culprit == run.key):
            inquest.noted.add(run.key)
            self.died_elsewhere(run.key, run.answered, now)

    def died_elsewhere(self, key: str, answered: bool, now: float) -> None:
        """A replica died at a run, by the word of a peer cell, which has held its own inquest. `answered`: the run had
        its first token."""
        before = self.of(key, now)
        deaths = 1 if before is None else before.deaths + 1
        self.bans += deaths == DEADLY
        self._note(Suspicion(key, deaths, answered or (before is not None and before.answered), now))

    def failed(self, run: SuspectRun, now: float) -> None:
        """A run ended without an answer, or its client left: its replica may prove to be dead."""
        self._failed.append((now, run))

    def gone(self, replica_id: str, now: float) -> None:
        """A replica's process is gone, all its leases have ended: what failed there a moment ago ran when it died."""
        kept: list[tuple[float, SuspectRun]] = []
        for at_s, run in self._failed:
            if run.replica_id != replica_id:
                kept.append((at_s, run))
            elif at_s >= now - RECENT_S:
                self.died(run, None, now)
        self._failed = deque((one for one in kept if one[0] >= now - RECENT_S), maxlen=MAX)
        self._inquests.pop(replica_id, None)

    def back(self, replica_id: str, now: float) -> None:
        """The replica is ready (again): it did not die."""
        inquest = self._inquests.pop(replica_id, None)
        for key in () if inquest is None else sorted(inquest.noted):
            record = self.of(key, now)
            if record is not None:
                self._note(record._replace(deaths=record.deaths - 1))

    def came_further(self, key: str, now: float) -> None:
        """A run of it has got its first token."""
        record = self.of(key, now)
        if record is not None and not record.answered:
            self._note(record._replace(answered=True))

    def clear(self, key: str) -> None:
        """A run of it has completed: it is not deadly."""
        record = self._records.get(key)
        if record is not None:
            self._note(record._replace(deaths=0))

    def recall(self, reported: Suspicion, now: float) -> None:
        """What an owner before knew. The worse word counts."""
        known = self.of(reported.key, now)
        if known is None or known.deaths < reported.deaths:
            self._note(_aged(reported, now))

    def news(self) -> tuple[Suspicion, ...]:
        """Whose standing has changed since this was last asked."""
        if not self._news:
            return ()
        changed, self._news = self._news, {}
        return tuple(self._records.get(key, Suspicion(key, 0, False, 0.0)) for key in changed)

    def _note(self, record: Suspicion) -> None:
        """Enters a record, as the newest; one without deaths is dropped."""
        self._news[record.key] = None
        self._records.pop(record.key, None)
        if record.deaths <= 0:
            return
        self.doubt = True
        self._records[record.key] = record
        self._forget_s = min(self._forget_s, record.forgotten_s)
        if len(self._records) > MAX:
            oldest = next(iter(self._records))
            del self._records[oldest]
            self._news.pop(oldest, None)


def _aged(record: Suspicion, now: float) -> Suspicion:
    """The record as it counts now."""
    times = max(0, int((now - record.since_s) // FORGET_S))
    return record._replace(deaths=max(0, record.deaths - times), since_s=record.since_s + times * FORGET_S)


class Quarantine:
    """Where suspects wait: aside of the lanes, so that nobody waits behind them. The scheduler gives it its own parts.
    The jobs are in `lanes.aside`, in the order in which they came.

    Of each suspect one run goes on at a time, whoever sent it: another would cost another replica, and the first one's
    outcome settles it for all. Those that had no first token when their replica died are tried, one at a time in the
    whole model, each until its first token is there, and before all other suspects: then a replica that dies meanwhile
    is its doing. After that the others run, all at once. Who is let out waits in its lane like everybody else (who is
    tried, at its head); who is banned is turned away.
    """

    def __init__(
        self,
        suspects: Suspects,
        lanes: Lanes,
        fleet: Fleet,
        placing: Placing,
        forecasts: Forecasts,
    ) -> None:
        self._suspects = suspects
        self._lanes = lanes
        self._fleet = fleet
        self._placing = placing
        self._forecasts = forecasts
        self._out: dict[str, Job] = {}
        self._trial: Job | None = None

    def takes(self, job: Job, now: float) -> bool:
        """Takes in a job that is about to enter its lane, if it is a suspect."""
        if self._suspects.of(job.request.key, now) is None:
            return False
        self._forecasts.withdraw(job)
        self._lanes.aside[job.request.request_id] = job
        return True

    def expire(self, now: float) -> Iterator[Job]:
        """Takes out the jobs whose wait is given up, one at a time."""
        for request_id, job in list(self._lanes.aside.items()):
            if job.request.expires_s <= now:
                del self._lanes.aside[request_id]
                yield job

    def next_wakeup(self) -> float | None:
        """When the next of these waits is given up."""
        if not self._lanes.aside:
            return None
        return min(job.request.expires_s for job in self._lanes.aside.values())

    @property
    def has_work(self) -> bool:
        """Whether `step` may find something."""
        return self._suspects.doubt or bool(self._lanes.aside)

    def step(self, now: float) -> Iterator[tuple[Job, float]]:
        """Takes new suspects out of the lanes and the guests' room, and lets out who may run. Those that are banned are
        taken out one at a time, each with the seconds until one of its deaths is forgotten."""
        if self._suspects.doubt:
            self._suspects.doubt = False
            self._take_from_lanes(now)
        if self._lanes.aside:
            yield from self._take_banned(now)
            self._let_out_untried(now)
            self._let_out_others(now)

    def run_of(self, lease: Lease, job: Job) -> SuspectRun:
        """A lease that stands, for those who look into deaths."""
        answered = not self._fleet.by_id[lease.replica_id].is_prefilling(lease)
        return SuspectRun(lease.replica_id, job.request.key, answered, job is self._trial and not answered)

    def tried_on(self, replica_id: str) -> str | None:
        lease = None if self._trial is None else self._placing.lease_of(self._trial.request.request_id)
        if lease is None or lease.replica_id != replica_id or not self._fleet.by_id[replica_id].is_prefilling(lease):
            return None
        return lease.request.key

    def _take_banned(self, now: float) -> Iterator[tuple[Job, float]]:
        for request_id, job in list(self._lanes.aside.items()):
            record = self._suspects.of(job.request.key, now)
            if record is not None and record.banned:
                del self._lanes.aside[request_id]
                yield job, record.forgotten_s - now

    def _let_out_untried(self, now: float) -> None:
        """The first of those that are to be tried, before all others of its lane: all suspects wait for its outcome."""
        if self._is_trying():
            return
        for job in self._lanes.aside.values():
            record = self._suspects.of(job.request.key, now)
            if record is not None and not record.answered and self._is_alone(job):
                self._trial = job
                self._let_out(job, first=True)
                return

    def _let_out_others(self, now: float) -> None:
        """Those that are clear by now; and, once nobody is left to be tried, those that had their first token."""
        tried = self._is_trying()
        for job in list(self._lanes.aside.values()):
            record = self._suspects.of(job.request.key, now)
            if record is None or (record.answered and not tried and self._is_alone(job)):
                self._let_out(job)

    def _let_out(self, job: Job, first: bool = False) -> None:
        del self._lanes.aside[job.request.request_id]
        self._out = {key: out for key, out in self._out.items() if out.lane is not None}
        self._out[job.request.key] = job
        self._lanes.enter_again(job, first)

    def _is_alone(self, job: Job) -> bool:
        """Whether no other of its kind runs, or waits to."""
        key = job.request.key
        out = self._out.get(key)
        return (out is None or out.lane is None) and not self._placing.runs_of[key]

    def _is_trying(self) -> bool:
        """Whether one is out that has not had its first token."""
        trial = self._trial
        if trial is None:
            return False
        lease = self._placing.lease_of(trial.request.request_id)
        if trial.lane is None and (lease is None or not self._fleet.by_id[lease.replica_id].is_prefilling(lease)):
            self._trial = None
        return self._trial is not None

    def _take_from_lanes(self, now: float) -> None:
        for job in (*self._lanes.jobs.values(), *(one.job for one in self._lanes.guests.values())):
            record = self._suspects.of(job.request.key, now)
            if record is not None and (record.banned or self._out.get(job.request.key) is not job):
                self._lanes.take_out(job)
                self.takes(job, now)
