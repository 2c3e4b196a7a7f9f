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
time (`quarantine.py`). A replica that dies at a trial is the doing of the one that is tried; of all others that ran
there nothing is noted. Without a trial all that ran there are suspects, or banned.

A death is told in pieces: some leases fail first, then the process is known to be gone. So an inquest is held into each
replica's death, and what ended within `RECENT_S` before, without an answer, counts as running. A replica that is back
was not dead: only a connection broke, and what was noted is taken back.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

FORGET_S = 600.0
"""After so long one death is forgotten. A ban becomes a suspicion: whoever is deadly then costs one replica, not
two."""
DEADLY = 2
RECENT_S = 20.0
"""Longer than an engine that hangs is given (`health.stall_s`)."""
MAX = 4_096
"""So many records are kept; beyond it the oldest goes, and nobody is told."""


class Suspicion(NamedTuple):
    """A record: `deaths` so far, of which the last came at `since_s`. `answered`: a run of it has got its first token,
    so that a long prompt or its parameters alone are not deadly. `deaths` is 0 for one that is clear again."""

    key: str
    deaths: int
    answered: bool
    since_s: float

    @property
    def banned(self) -> bool:
        """Whether it is not placed any more."""
        return self.deaths >= DEADLY

    @property
    def forgotten_s(self) -> float:
        """When one of the deaths will be forgotten."""
        return self.since_s + FORGET_S


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
    the lanes."""

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
            self._hold_against(run, now)

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
        changed, self._news = self._news, {}
        return tuple(self._records.get(key, Suspicion(key, 0, False, 0.0)) for key in changed)

    def _hold_against(self, run: SuspectRun, now: float) -> None:
        before = self.of(run.key, now)
        deaths = 1 if before is None else before.deaths + 1
        answered = run.answered or (before is not None and before.answered)
        self.bans += deaths == DEADLY
        self._note(Suspicion(run.key, deaths, answered, now))

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
