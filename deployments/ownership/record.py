"""The record of a request, and the table of all that a process holds of one model. A gateway holds a record of each
request of its clients; the owner of the model holds one of each that any gateway has submitted. Where the owner is in
the client's own gateway both are one object; else each of the two has its own, and their messages (`messages.py`) are
its transitions. Pure: no clock.

A request is placed under numbered attempts, and its engine id is `request id - attempt`. A record knows the last
attempt that was issued, by whatever owner, and attempts only grow: that is why no id is placed twice, even where a
gateway that lost its channel submits what was placed a moment ago.

    state     what it means                                     goes to
    UNOWNED   its gateway has it, and no owner                  WAITING, AWAY: submitted. CLOSED: it is over
    WAITING   it is in its lane                                 RUNNING: placed. AWAY: handed over to a peer cell.
                                                                UNOWNED: its owner is gone. CLOSED: cancelled, expired,
                                                                turned away, or its gateway is gone
    AWAY      it is in no lane: leased to a peer cell           WAITING: it came back before the first byte. AWAY: to
              (`peering.py`)                                    another one. DECLARED: its owner is gone. ENDED:
                                                                released, with the answer whole. CLOSED: it is over, or
                                                                its gateway is gone
    DECLARED  its gateway runs it under an owner that is gone;  RUNNING: its replica says so too. WAITING: refused.
              nothing is booked for it                          UNOWNED: overtaken. CLOSED: it ended, or its gateway is
                                                                gone
    RUNNING   leased, and its gateway is known                  ORPHANED: its gateway is gone. DECLARED: its owner is.
                                                                ANSWERED, ABORTED: its engine's account came. ENDED:
                                                                released. WAITING: refused. UNOWNED: overtaken. CLOSED:
                                                                its replica is lost
    ORPHANED  leased, and no gateway is known that holds it     RUNNING: its gateway is back. CLOSED: its engine's
                                                                account came, or its replica does not run it, or is
                                                                lost. WAITING: its gateway never heard of the placement
    ANSWERED  leased; its engine has sent the whole answer      CLOSED: released, or its gateway is gone. DECLARED,
                                                                WAITING, UNOWNED: as RUNNING
    ABORTED   leased; its engine ended it without an answer     as ANSWERED
    ENDED     the lease has ended; its account is due           CLOSED: the account came. And as CLOSED
    CLOSED    nothing more is to come of this attempt           WAITING, AWAY: submitted (again). UNOWNED: as RUNNING.
                                                                DECLARED, RUNNING, ORPHANED: a later attempt, issued by
                                                                an earlier owner

Where the owner is elsewhere, a gateway's record is UNOWNED, WAITING, AWAY, RUNNING, DECLARED or CLOSED. An owner's
begins as WAITING or AWAY (submitted), DECLARED (its gateway has it), RUNNING or ORPHANED (adopted from a replica's
word) or CLOSED (an account of something unknown here, which must not be adopted afterwards). A closed one stays in the
table until its client, if that is here, has noticed. The last `REMEMBERED` that ended are remembered.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

from deployments.cell.departure import MAX_DIGESTS, Lost
from deployments.ownership.roles import PeerLease, Submitter
from deployments.peering import HopFacts, HopRefusal
from deployments.scheduling import Admission, Ending, Lease, Placement, Request

REMEMBERED = 16_384
"""So many ended attempts are remembered: an engine's account, a replica's word and a gateway's may each come late."""


class RequestState(StrEnum):
    """See the module's docstring."""

    UNOWNED = "unowned"
    WAITING = "waiting"
    AWAY = "away"
    DECLARED = "declared"
    RUNNING = "running"
    ORPHANED = "orphaned"
    ANSWERED = "answered"
    ABORTED = "aborted"
    ENDED = "ended"
    CLOSED = "closed"


_S = RequestState
BOOKED = frozenset({_S.RUNNING, _S.ORPHANED, _S.ANSWERED, _S.ABORTED})
"""The scheduler holds a lease."""
OVER = frozenset({_S.ENDED, _S.CLOSED})
"""Nobody waits and nothing is leased."""
QUEUED = frozenset({_S.WAITING, _S.AWAY})
"""No replica here has it, and the request is not over."""
_BEGINS = frozenset({_S.UNOWNED, _S.WAITING, _S.AWAY, _S.DECLARED, _S.RUNNING, _S.ORPHANED, _S.CLOSED})
_ACCOUNTED = frozenset({_S.WAITING, _S.UNOWNED, _S.DECLARED, _S.CLOSED})
_NEXT: dict[RequestState, frozenset[RequestState]] = {
    _S.UNOWNED: frozenset({_S.WAITING, _S.AWAY, _S.CLOSED}),
    _S.WAITING: frozenset({_S.RUNNING, _S.AWAY, _S.UNOWNED, _S.CLOSED}),
    _S.AWAY: frozenset({_S.WAITING, _S.AWAY, _S.DECLARED, _S.ENDED, _S.CLOSED}),
    _S.DECLARED: frozenset({_S.RUNNING, _S.WAITING, _S.UNOWNED, _S.CLOSED}),
    _S.RUNNING: _ACCOUNTED | {_S.ORPHANED, _S.ANSWERED, _S.ABORTED, _S.ENDED},
    _S.ORPHANED: frozenset({_S.RUNNING, _S.WAITING, _S.CLOSED}),
    _S.ANSWERED: _ACCOUNTED,
    _S.ABORTED: _ACCOUNTED,
    _S.ENDED: _BEGINS,
    _S.CLOSED: _BEGINS,
}


class QueueTimeout(Exception):
    """The request waited in its lane for as long as it may."""


class Rejected(Exception):
    """The request is turned away though it was taken in: it lost its replica before it saw it, and its lane takes no
    more; or it waits in vain."""

    def __init__(self, admission: Admission) -> None:
        super().__init__(admission.cause)
        self.admission = admission


class GuestNotTaken(Exception):
    """A guest of a peer cell is not taken; it waits at its home."""

    def __init__(self, refusal: HopRefusal) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request. `attempt`: the last that was issued (0: none). `submitter`: who holds it. `lease`: that of the
    attempt, from its placement to its account. `admission`: the last answer that took it in. `adopted`: its lease was
    an earlier owner's, who alone knows when it was asked for. `answered`: its first token is there.

    At the gateway of its client, `answer` and `placement` are what is waited for. An owner may have it from `again_s`
    on. Its lease was given under `epoch`, on the replica at `url`; `tell_lost` hears if that is lost. `complete`: its
    replica has sent the whole answer, and may go. `hop`: by which it came from a peer cell.
    """

    request_id: str
    attempt: int
    state: RequestState
    submitter: Submitter | None = None
    request: Request | None = None
    lease: Lease | None = None
    admission: Admission | None = None
    adopted: bool = False
    answered: bool = False
    answer: "asyncio.Future[Admission] | None" = None
    placement: "asyncio.Future[Placement | PeerLease] | None" = None
    again_s: float = 0.0
    url: str = ""
    epoch: int = 0
    complete: bool = False
    tell_lost: Callable[[], None] | None = None
    hop: HopFacts | None = None

    @property
    def booked(self) -> Lease | None:
        """The lease, while the scheduler holds it."""
        return self.lease if self.state in BOOKED else None

    @property
    def ending(self) -> Ending:
        """How its lease ends where its gateway or its replica is gone."""
        return Ending.FINISHED if self.state is RequestState.ANSWERED else Ending.FAILED

    def tell_again(self, submitter: Submitter) -> None:
        """Repeats the answer to the gateway, which may not have got it."""
        assert self.admission is not None
        submitter.admitted(self.request_id, self.admission)

    # At the gateway of its client.
    def fail(self, error: Exception) -> None:
        """Ends what is waited for: the answer, or else the placement."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(error)
        elif self.placement is not None and not self.placement.done():
            self.placement.set_exception(error)

    def lose(self) -> None:
        """The replica that runs it is lost, or the peer cell is silent."""
        self.url = ""
        tell, self.tell_lost = self.tell_lost, None
        if tell is not None:
            tell()

    def await_placement(self, request: Request) -> None:
        """Another placement is waited for, of the request as it is now."""
        self.request, self.placement = request, asyncio.get_running_loop().create_future()
        self.tell_lost, self.answered, self.complete, self.again_s = None, False, False, 0.0


class Records:
    """By request id. `counts` says how many are in each state.

    Thousands are remembered that are closed, and of each only the number of its last attempt is kept: `get` makes a
    record of it again.
    """

    def __init__(self) -> None:
        self.counts: Counter[RequestState] = Counter()
        self._live: dict[str, RequestRecord] = {}
        self._over: OrderedDict[str, RequestRecord | int] = OrderedDict()
        """The oldest end first: ENDED as it is, CLOSED as its attempt."""

    def __iter__(self) -> Iterator[RequestRecord]:
        """Those that are not over."""
        return iter(tuple(self._live.values()))

    @property
    def here(self) -> list[RequestRecord]:
        """Those whose clients are connected to this gateway."""
        return [record for record in self._live.values() if record.placement is not None]

    @property
    def lost(self) -> Lost:
        """What is lost if this gateway ends now. Those that wait in a lane have no tokens booked."""
        here = self.here
        tokens = sum(one.lease.tokens for one in here if one.lease is not None)
        keys = tuple(one.request.key for one in islice(here, MAX_DIGESTS) if one.request is not None)
        return Lost(len(here), 0, tokens, keys)

    def get(self, request_id: str) -> RequestRecord | None:
        record = self._live.get(request_id) or self._over.get(request_id)
        return RequestRecord(request_id, record, _S.CLOSED) if isinstance(record, int) else record

    def client_of(self, request_id: str) -> RequestRecord | None:
        """The request's record, if its client is connected to this gateway."""
        record = self._live.get(request_id)
        return record if record is not None and record.placement is not None else None

    def of_attempt_id(self, attempt_id: str) -> RequestRecord | None:
        """The record whose last attempt has that id; None where there is none, or a later attempt."""
        request_id, _, attempt = attempt_id.rpartition("-")
        record = self.get(request_id)
        return record if record is not None and str(record.attempt) == attempt else None

    def holder_of(self, lease: Lease) -> RequestRecord | None:
        """The record of a client here, if this is its lease now, and not one before: nor one after which another
        placement was refused at once, which nobody has noticed yet."""
        record = self.client_of(lease.request.request_id)
        if record is None or record.lease is None or record.attempt != lease.attempt:
            return None
        placement = record.placement
        assert placement is not None
        return None if placement.done() and (placement.cancelled() or placement.exception()) else record

    def of_ended(self, attempt_id: str) -> RequestRecord | None:
        """As `of_attempt_id`, of an attempt that its engine has ended. One that was only declared is closed by that,
        and one that is news is kept as closed: None."""
        record = self.of_attempt_id(attempt_id)
        if record is None:
            named = split(attempt_id)
            if named is not None and self.is_news(*named):
                self.begin(*named, _S.CLOSED)
        elif record.state is _S.DECLARED:
            self.move(record, _S.CLOSED)
            return None
        return record

    def of_submitter(self, submitter: Submitter) -> list[RequestRecord]:
        return [record for record in self if record.submitter is submitter]

    def leased_on(self, replica_id: str) -> list[RequestRecord]:
        return [record for record in self if (lease := record.booked) is not None and lease.replica_id == replica_id]

    def is_news(self, request_id: str, attempt: int) -> bool:
        """Whether that attempt is later than all that is known of its request, of which nothing waits and nothing is
        leased."""
        record = self.get(request_id)
        return record is None or (record.state in OVER and record.attempt < attempt)

    def enter(self, request: Request, submitter: Submitter) -> RequestRecord:
        """The record of a client's request, which no owner has yet; its client waits for an answer. It may have run
        before under its id."""
        known = self.get(request.request_id)
        attempt = request.attempts if known is None else max(request.attempts, known.attempt)
        record = self.begin(request.request_id, attempt, _S.UNOWNED, submitter)
        future = asyncio.get_running_loop().create_future
        record.request = replace(request, attempts=attempt)
        record.answer, record.placement = future(), future()
        return record

    def begin(
        self,
        request_id: str,
        attempt: int,
        state: RequestState,
        submitter: Submitter | None = None,
        lease: Lease | None = None,
    ) -> RequestRecord:
        """The record of a request that is new here, or was over, or goes on with another attempt."""
        record = self.get(request_id)
        if record is None:
            record = RequestRecord(request_id, attempt, state)
            self.counts[state] += 1
        else:
            self._change(record, state)
            assert attempt >= record.attempt, f"{request_id}: attempt {attempt} after {record.attempt}"
            self._over.pop(request_id, None)
        record.attempt, record.submitter, record.lease = attempt, submitter, lease
        record.adopted = record.answered = False
        if state in OVER:
            self._end(record)
        else:
            self._live[request_id] = record
        return record

    def move(self, record: RequestRecord, state: RequestState, lease: Lease | None = None) -> None:
        """The record's next state: of the same attempt, or RUNNING with the lease of the next one."""
        self._change(record, state)
        if lease is not None:
            record.lease, record.attempt = lease, lease.attempt
        elif state in OVER and record.placement is None:
            self._end(record)

    def orphan(self, record: RequestRecord) -> None:
        """What is leased has lost its gateway."""
        self._change(record, _S.ORPHANED)
        record.submitter = None

    def disown(self, record: RequestRecord) -> None:
        """A client's request that waits is no owner's any more: it is to be submitted again."""
        self._change(record, _S.UNOWNED)
        record.lease = None

    def leave(self, record: RequestRecord) -> None:
        """Its client, here, has its answer or is gone, and its owner has heard so. An error of the same moment is
        nobody's; asyncio would log it."""
        for one in (record.answer, record.placement):
            if one is not None and one.done() and not one.cancelled():
                one.exception()
        record.answer = record.placement = record.tell_lost = None
        if record.state not in OVER:
            self._change(record, _S.CLOSED)
        self._end(record)

    def left_lane(self, request_id: str, lease: Lease | None = None) -> Submitter:
        """A request that waited does so no more: it was placed, or given up. Returns whoever holds it."""
        record = self._live[request_id]
        submitter = record.submitter
        assert submitter is not None
        self.move(record, _S.CLOSED if lease is None else _S.RUNNING, lease)
        return submitter

    def end_ownership(self) -> None:
        """The owner here decides nothing more: what is not of this gateway's clients is forgotten; of what has ended,
        the number of its attempt stays."""
        for record in self:
            if record.placement is None:
                del self._live[record.request_id]
                self.counts[record.state] -= 1
        for request_id, over in tuple(self._over.items()):
            if isinstance(over, RequestRecord):
                self._change(over, _S.CLOSED)
                self._over[request_id] = over.attempt

    @property
    def replicas_of_orphans(self) -> set[str]:
        """The replicas on which leases run that nobody holds: they are asked now and then."""
        if not self.counts[_S.ORPHANED]:
            return set()
        return {record.lease.replica_id for record in self if record.state is _S.ORPHANED and record.lease is not None}

    def _change(self, record: RequestRecord, state: RequestState) -> None:
        assert state in _NEXT[record.state], f"{record.request_id}-{record.attempt}: {record.state} -> {state}"
        self.counts[record.state] -= 1
        self.counts[state] += 1
        record.state = state

    def _end(self, record: RequestRecord) -> None:
        """What is over is remembered, if it was ever placed."""
        record.submitter = record.admission = None
        self._live.pop(record.request_id, None)
        if record.state is _S.CLOSED:
            record.lease = None
        if not record.attempt:
            self.counts[record.state] -= 1
            return
        self._over[record.request_id] = record.attempt if record.state is _S.CLOSED else record
        if len(self._over) > REMEMBERED:
            _, oldest = self._over.popitem(last=False)
            self.counts[_S.CLOSED if isinstance(oldest, int) else oldest.state] -= 1


def split(attempt_id: str) -> tuple[str, int] | None:
    """The request's id and the attempt in an engine's id; None where it names no lease (the tokenizer's)."""
    request_id, _, attempt = attempt_id.rpartition("-")
    return (request_id, int(attempt)) if request_id and attempt.isdecimal() and attempt.isascii() else None
