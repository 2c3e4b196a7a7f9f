"""The owner's one table: an entry for each request, in one state at a time; and how leases of an earlier owner come
into it. Pure: no clock.

A request is placed under numbered attempts, and its engine id is `request id - attempt`. An entry knows the last
attempt that was issued, by whatever owner, and attempts only grow: that is why no id is placed twice, even where a
submitter that lost its channel submits what was placed a moment ago.

    state      what it means                                    goes to
    WAITING    it is in its lane                                RUNNING: placed. AWAY: a peer cell took it. CLOSED:
               cancelled, expired, turned away, or its submitter is gone
    AWAY       it is in no lane: a peer cell serves it, or is   WAITING: the peer lost it before the first byte. CLOSED:
               asked whether it takes it (`peering.py`)         it is over, or its submitter is gone
    DECLARED   its submitter runs it under an earlier owner; no    RUNNING: its replica says so too. CLOSED: it ended,
               or its replica refused it, replica has said so yet, so nothing is booked    or its submitter is gone
    RUNNING    leased, and its submitter is known                  ORPHANED: its submitter is gone. ANSWERED, ABORTED:
               its engine's account came.
                                                                ENDED: released. WAITING: refused. CLOSED: its replica
                                                                is lost
    ORPHANED   leased, and nobody here holds it                 RUNNING: its submitter is back. CLOSED: its engine's
               account came, or its replica
                                                                does not run it, or is lost. WAITING: its submitter had
                                                                never heard of the placement
    ANSWERED   leased; its engine has sent the whole answer     CLOSED: released, or its submitter is gone. WAITING: as
               RUNNING
    ABORTED    leased; its engine ended it without an answer    CLOSED, WAITING: as ANSWERED
    ENDED      the lease ended; its engine's account is due     CLOSED: the account came. And as CLOSED
    CLOSED     nothing more is to come of this attempt          WAITING: submitted again. DECLARED, RUNNING, ORPHANED,
               CLOSED: a later attempt,
                                                                issued by an earlier owner

A new entry begins as WAITING or AWAY (submitted), DECLARED (its submitter has it), RUNNING or ORPHANED (adopted from a
replica's word) or CLOSED (an account of something unknown here, which must not be adopted afterwards). The last
`REMEMBERED` that ended are remembered.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from deployments.ownership.roles import Submitter
from deployments.ownership.takeover import Running
from deployments.scheduling import Admission, Ending, Lease, Scheduler

REMEMBERED = 16_384
"""So many ended attempts are remembered: an engine's account, a replica's word and a submitter's may each come late."""


class EntryState(StrEnum):
    """See the module's docstring."""

    WAITING = "waiting"
    AWAY = "away"
    DECLARED = "declared"
    RUNNING = "running"
    ORPHANED = "orphaned"
    ANSWERED = "answered"
    ABORTED = "aborted"
    ENDED = "ended"
    CLOSED = "closed"


_S = EntryState
BOOKED = frozenset({_S.RUNNING, _S.ORPHANED, _S.ANSWERED, _S.ABORTED})
"""The scheduler holds a lease."""
OVER = frozenset({_S.ENDED, _S.CLOSED})
"""Nobody waits and nothing is leased."""
QUEUED = frozenset({_S.WAITING, _S.AWAY})
"""Nothing is leased here, and the request is not over."""
_BEGINS = frozenset({_S.WAITING, _S.AWAY, _S.DECLARED, _S.RUNNING, _S.ORPHANED})
_NEXT: dict[EntryState, frozenset[EntryState]] = {
    _S.WAITING: frozenset({_S.RUNNING, _S.AWAY, _S.CLOSED}),
    _S.AWAY: frozenset({_S.WAITING, _S.CLOSED}),
    _S.DECLARED: frozenset({_S.RUNNING, _S.CLOSED}),
    _S.RUNNING: frozenset({_S.ORPHANED, _S.ANSWERED, _S.ABORTED, _S.ENDED, _S.WAITING, _S.CLOSED}),
    _S.ORPHANED: frozenset({_S.RUNNING, _S.WAITING, _S.CLOSED}),
    _S.ANSWERED: frozenset({_S.WAITING, _S.CLOSED}),
    _S.ABORTED: frozenset({_S.WAITING, _S.CLOSED}),
    _S.ENDED: _BEGINS | {_S.CLOSED},
    _S.CLOSED: _BEGINS | {_S.CLOSED},
}


@dataclass(slots=True, eq=False)
class OwnedRequest:
    """One request. `attempt`: the last that was issued (0: none). `lease`: that of the attempt, from its placement to
    its account. `adopted`: it was an earlier owner's, who alone knows when it was asked for. `admission`: the
    answer that its submitter got."""

    request_id: str
    attempt: int
    state: EntryState
    submitter: Submitter | None = None
    lease: Lease | None = None
    admission: Admission | None = None
    adopted: bool = False
    answered: bool = False

    @property
    def booked(self) -> Lease | None:
        """The lease, while the scheduler holds it."""
        return self.lease if self.state in BOOKED else None

    def tell_again(self, submitter: Submitter) -> None:
        """Repeats the answer to the submitter, which may not have got it."""
        assert self.admission is not None
        submitter.admitted(self.request_id, self.admission)

    @property
    def ending(self) -> Ending:
        """How its lease ends where its submitter or its replica is gone."""
        return Ending.FINISHED if self.state is EntryState.ANSWERED else Ending.FAILED


class Entries:
    """By request id. `counts` says how many are in each state.

    Thousands are remembered that are closed, and of each only the number of its last attempt is kept: `get` makes an
    entry of it again.
    """

    def __init__(self) -> None:
        self.counts: Counter[EntryState] = Counter()
        self._entries: dict[str, OwnedRequest] = {}
        self._over: OrderedDict[str, OwnedRequest | int] = OrderedDict()
        """The oldest end first: ENDED as it is, CLOSED as its attempt."""

    def __iter__(self) -> Iterator[OwnedRequest]:
        """Those that are not over."""
        return iter(tuple(self._entries.values()))

    @property
    def live(self) -> int:
        """How many are not over."""
        return len(self._entries)

    def get(self, request_id: str) -> OwnedRequest | None:
        """The request's entry."""
        entry = self._entries.get(request_id) or self._over.get(request_id)
        return OwnedRequest(request_id, entry, EntryState.CLOSED) if isinstance(entry, int) else entry

    def of_attempt_id(self, attempt_id: str) -> OwnedRequest | None:
        """The entry whose last attempt has that id; None where there is none, or a later attempt."""
        named = split(attempt_id)
        entry = None if named is None else self.get(named[0])
        return entry if entry is not None and named is not None and entry.attempt == named[1] else None

    def of_ended(self, attempt_id: str) -> OwnedRequest | None:
        """As `of_attempt_id`, of an attempt that its engine has ended. One that was only declared is closed by that,
        and one that is news is kept as closed: None."""
        entry, named = self.of_attempt_id(attempt_id), split(attempt_id)
        if entry is None and named is not None and self.is_news(*named):
            self.begin(*named, EntryState.CLOSED)
        elif entry is not None and entry.state is EntryState.DECLARED:
            self.move(entry, EntryState.CLOSED)
            return None
        return entry

    def of_submitter(self, submitter: Submitter) -> list[OwnedRequest]:
        """Those that this submitter holds."""
        return [entry for entry in self if entry.submitter is submitter]

    def leased_on(self, replica_id: str) -> list[OwnedRequest]:
        """Those whose lease stands on that replica."""
        return [entry for entry in self if (lease := entry.booked) is not None and lease.replica_id == replica_id]

    def is_news(self, request_id: str, attempt: int) -> bool:
        """Whether that attempt is later than all that is known of its request, of which nothing waits and nothing is
        leased."""
        entry = self.get(request_id)
        return entry is None or (entry.state in OVER and entry.attempt < attempt)

    def begin(
        self,
        request_id: str,
        attempt: int,
        state: EntryState,
        submitter: Submitter | None = None,
        lease: Lease | None = None,
    ) -> OwnedRequest:
        """The entry of a request that is new here, or was over, or goes on with another attempt."""
        entry = self.get(request_id)
        if entry is None:
            entry = OwnedRequest(request_id, attempt, state)
            self.counts[state] += 1
        else:
            self._change(entry, state)
        assert attempt >= entry.attempt, f"{request_id}: attempt {attempt} after {entry.attempt}"
        entry.attempt, entry.submitter, entry.lease = attempt, submitter, lease
        entry.adopted = entry.answered = False
        self._over.pop(request_id, None)
        self._keep(entry)
        return entry

    def move(self, entry: OwnedRequest, state: EntryState) -> None:
        """The entry's next state, of the same attempt."""
        self._change(entry, state)
        if state is EntryState.CLOSED:
            entry.lease = None
        if state in OVER:
            entry.submitter = entry.admission = None
            self._keep(entry)

    def orphan(self, entry: OwnedRequest) -> None:
        """What is leased has lost its submitter."""
        self._change(entry, EntryState.ORPHANED)
        entry.submitter = None

    def place(self, entry: OwnedRequest, lease: Lease) -> None:
        """What waited has a lease, under the next attempt."""
        self._change(entry, EntryState.RUNNING)
        entry.lease, entry.attempt = lease, lease.attempt

    def left_lane(self, request_id: str, lease: Lease | None = None) -> Submitter:
        """A request that waited does so no more: it was placed, or given up. Returns whoever held it."""
        entry = self._entries[request_id]
        submitter = entry.submitter
        assert submitter is not None
        if lease is None:
            self.move(entry, EntryState.CLOSED)
        else:
            self.place(entry, lease)
        return submitter

    def _change(self, entry: OwnedRequest, state: EntryState) -> None:
        assert state in _NEXT[entry.state], f"{entry.request_id}-{entry.attempt}: {entry.state} -> {state}"
        self.counts[entry.state] -= 1
        self.counts[state] += 1
        entry.state = state

    @property
    def replicas_of_orphans(self) -> set[str]:
        """The replicas on which leases run that nobody holds: they are asked now and then."""
        if not self.counts[EntryState.ORPHANED]:
            return set()
        return {
            entry.lease.replica_id for entry in self if entry.state is EntryState.ORPHANED and entry.lease is not None
        }

    def _keep(self, entry: OwnedRequest) -> None:
        if entry.state not in OVER:
            self._entries[entry.request_id] = entry
            return
        self._entries.pop(entry.request_id, None)
        if not entry.attempt:  # it was never placed
            self.counts[entry.state] -= 1
            return
        self._over[entry.request_id] = entry.attempt if entry.state is EntryState.CLOSED else entry
        if len(self._over) > REMEMBERED:
            _, oldest = self._over.popitem(last=False)
            self.counts[EntryState.CLOSED if isinstance(oldest, int) else oldest.state] -= 1


def split(attempt_id: str) -> tuple[str, int] | None:
    """The request's id and the attempt in an engine's id; None where it names no lease (the tokenizer's)."""
    request_id, _, attempt = attempt_id.rpartition("-")
    return (request_id, int(attempt)) if request_id and attempt.isdecimal() and attempt.isascii() else None


class Adoption:
    """How an owner takes over leases of an earlier owner: a submitter says that it has them, a replica that it runs
    them, in whatever order.

    `reconciled` counts how often a replica's report of what runs disagreed with the scheduler, which was then
    corrected."""

    def __init__(self, scheduler: Scheduler, entries: Entries) -> None:
        self.reconciled = 0
        self._scheduler = scheduler
        self._entries = entries

    def hold(self, submitter: Submitter, attempt_id: str) -> None:
        """A submitter has that lease: true as soon as its replica says so too."""
        entry = self._entries.of_attempt_id(attempt_id)
        if entry is not None and entry.state is EntryState.ORPHANED:
            self._entries.move(entry, EntryState.RUNNING)
            entry.submitter = submitter
        elif (named := split(attempt_id)) is not None and self._entries.is_news(*named):
            self._entries.begin(*named, EntryState.DECLARED, submitter)

    def adopt(self, replica_id: str, running: Iterable[Running], now: float) -> list[OwnedRequest]:
        """Adopts what a replica runs. Returns what nobody holds and it does not run: leases for the caller to end."""
        reported = {one.lease.attempt_id: one for one in running}
        for one in reported.values():
            self._adopt(one, now)
        leases = (
            (entry, entry.lease) for entry in self._entries.leased_on(replica_id) if entry.state is EntryState.ORPHANED
        )
        gone = [entry for entry, lease in leases if lease is not None and lease.attempt_id not in reported]
        self.reconciled += len(gone)
        return gone

    def _adopt(self, running: Running, now: float) -> None:
        reported = running.lease
        entry = self._entries.of_attempt_id(reported.attempt_id)
        declared = entry is not None and entry.state is EntryState.DECLARED
        if not declared and not self._entries.is_news(reported.request.request_id, reported.attempt):
            return
        lease = self._scheduler.adopt(reported, running.started, now)
        if lease is None:
            return
        self.reconciled += 1
        submitter = entry.submitter if entry is not None and declared else None
        state = EntryState.ORPHANED if submitter is None else EntryState.RUNNING
        entry = self._entries.begin(reported.request.request_id, reported.attempt, state, submitter, lease)
        entry.adopted = entry.answered = True
