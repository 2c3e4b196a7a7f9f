"""The owner's part in hand-overs between cells: one `CellPeering` for one owned model, under the owner's epoch.

The core decides (`deployments/peering`). This shell gives it what the scheduler knows, and does what it says: a request
that is handed over gets a lease at a peer, which its gateway carries out (`gateway/peers`). Such a lease ends as any
other: it is released, or the request comes back to the head of its lane.

    the request is             its record  its place
    in its lane                WAITING     there
    with a peer                AWAY        `Scheduler.withdraw`; where it comes back, `put_back`
    in no lane here            AWAY        `Scheduler.begin_away`: this cell may not serve it, or its lanes are full.
                                           Where no peer takes it, its client is rejected for what kept it off

A request counts as demand of the cell where it arrived, wherever it is served. So the autoscaler at home still sees it,
and that of the peer sees a guest only as load. One that its home may not serve is no demand there, since more replicas
at home would not help.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, replace
from heapq import nlargest

from cluster.spec import ClusterSpec
from deployments.accounting.tariffs import usd_per_replica_hour
from deployments.ownership.record import OVER, QUEUED, Records, RequestRecord, RequestState
from deployments.ownership.roles import PeerLease, Submitter
from deployments.peering import (
    CellPeering,
    Digest,
    DigestRefusal,
    Here,
    HopFacts,
    HopRefusal,
    ModelDigest,
    Offer,
    Question,
    Stay,
    StayReason,
    model_digest,
)
from deployments.scheduling import (
    Admission,
    AdmissionKind,
    Blame,
    RejectCause,
    Request,
    Scheduler,
    Snapshot,
    Step,
    TurnedAway,
    WaitingRequest,
)
from deployments.scheduling.replica import ReplicaStatus

_STATED_S = 0.05
"""What this cell's own digest would say is made anew after so long: a snapshot takes tens of microseconds, and under
overload each arrival needs it."""
_RECONSIDERED = 512
"""So many of the requests that wait are decided on again when a digest comes, those that would wait for longest. A peer
has room for fewer, and more would hold up the event loop for tens of milliseconds."""
_RETRY_S = 1.0
"""A request that no cell may serve now that has room may ask again after so long: by then there are new digests."""


def price_of(spec: ClusterSpec, cell: str, model: str) -> Callable[[Snapshot], float | None]:
    """What a million prefill tokens cost in a cell, in US dollars: the hourly prices of the ready replicas, divided by
    what these could prefill in an hour (so that a cell is no dearer for having little to do). None: not known."""
    region = spec.region(cell)
    hourly = {
        view.group: float(usd_per_replica_hour(spec, view, spec.pool_of(view, region), region))
        for view in spec.groups_of(spec.model(model), region)
    }

    def price(snapshot: Snapshot) -> float | None:
        ready = [one for one in snapshot.replicas if one.status == ReplicaStatus.READY and hourly.get(one.group)]
        tokens_per_s = sum(one.prefill_tokens_per_s for one in ready)
        return sum(hourly[one.group] for one in ready) / (tokens_per_s * 3_600) * 1e6 if tokens_per_s else None

    return price


Enter = Callable[[Submitter, Request, bool, int, HopFacts | None], None]
"""Submits a request to the owner: whether it was taken in before, the attempts that were issued, and a guest's hop."""


@dataclass(frozen=True, slots=True)
class Homeless:
    """A request in no lane here, and the answer that it gets if no peer takes it."""

    request: Request
    rejection: Admission


@dataclass(eq=False)
class LanePeering:
    """Of one owned model in `cell`, under the owner's epoch. `step`: the scheduler's step is due. `clock` is the
    owner's."""

    spec: InitVar[ClusterSpec]
    cell: InitVar[str]
    model: str
    epoch: InitVar[int]
    scheduler: Scheduler
    records: Records
    enter: Enter
    step: Callable[[], None]
    clock: Callable[[], float]

    def __post_init__(self, spec: ClusterSpec, cell: str, epoch: int) -> None:
        self.core = CellPeering(spec, cell, epoch)
        self.refusals: Counter[str] = Counter()
        """Why guests were refused here."""
        self.stays: Counter[StayReason] = Counter()
        """Why requests stayed when they came."""
        self._homeless: dict[str, Homeless] = {}
        self._held: dict[str, tuple[str, float]] = {}
        """By attempt id, the leases of an owner before: at which peer, and since when they are known here."""
        self._price = price_of(spec, cell, self.model)
        self._stated: tuple[float, ModelDigest] | None = None

    def configure(self, spec: ClusterSpec) -> None:
        self.core.configure(spec)
        self._price = price_of(spec, self.core.cell, self.model)

    # Digests.
    def ask(self) -> Mapping[str, Question]:
        """What each peer is to be asked, by its cell; called once a digest period. What silent peers have is recalled:
        whether its client has got a byte meanwhile, its gateway knows."""
        now = self.clock()
        for request_id in self.core.overdue(now):
            record = self.records.get(request_id)
            if record is not None and record.submitter is not None and record.lease is not None:
                record.submitter.recalled(record.lease.attempt_id)
        for attempt_id, (peer, since_s) in tuple(self._held.items()):
            record = self.records.of_attempt_id(attempt_id)
            if record is None or record.state is not RequestState.DECLARED:
                del self._held[attempt_id]
            elif record.submitter is not None and self.core.is_silent(peer, since_s, now):
                record.submitter.recalled(attempt_id)
        for request_id in self.core.offered:
            record = self.records.get(request_id)
            if record is None or record.state in OVER:
                self.gone(request_id)
        self._count_tenants(now)
        return self.core.ask(now)

    def digest(self, question: Question) -> Digest:
        """The answer to a peer's question."""
        return self.core.answer(question, (self._own(self.clock()),))

    @property
    def spare(self) -> float:
        """What peers have to spare for this cell, in replicas: for the page that the autoscaler reads."""
        return self.core.spare(self.model, self.clock())

    def heard(self, digest: Digest) -> DigestRefusal | None:
        """A peer's digest came. None: it is taken over, and what waits was decided on again."""
        now = self.clock()
        refusal = self.core.heard(digest, now)
        if refusal is None:
            self._count_tenants(now)
            waiting = [one for one in self.scheduler.waiting.all(now) if not one.request.hops]
            longest = nlargest(_RECONSIDERED, waiting, key=lambda one: one.p95_s or 0.0)
            requests = {one.request.request_id: one.request for one in longest}
            offers = self.core.reconsider(longest, self._own(now), now) if longest else ()
            for request_id, offer in ((one.hop.request_id, one) for one in offers):
                record = self.records.get(request_id)
                if record is not None and record.state is RequestState.WAITING:
                    self._hand_over(offer, requests[request_id], now)
                else:  # the client of one before is gone, and what that left free was for this one
                    self.core.over(request_id)
            if offers:
                self.step()
        return refusal

    def _count_tenants(self, now: float) -> None:
        """What tenants use in other cells counts against their limits here."""
        self.scheduler.used_elsewhere(self.core.used_elsewhere(self.model, now), now)

    # Requests that come.
    def bars(self, submitter: Submitter, request: Request, admitted: bool, hop: HopFacts | None, now: float) -> bool:
        """Whether the request enters no lane here: a guest that is refused, or one that this cell may not serve. Its
        submitter hears what becomes of it."""
        if request.guest_of or hop is not None:
            refusal = None if admitted else self._refusal(request, hop, now)
            if refusal is not None:
                self._refuse(submitter, request, refusal)
            return refusal is not None
        if self.core.may_serve(self.model, request):
            return False
        rejection = Admission(AdmissionKind.REJECT, "", RejectCause.RESIDENCY, retry_after_s=_RETRY_S)
        self._seek(submitter, Homeless(request, rejection), admitted, now)
        return True

    def takes_rejected(
        self, submitter: Submitter, request: Request, rejection: Admission, admitted: bool, now: float
    ) -> bool:
        """The scheduler rejected the request. Whether its submitter hears of something else."""
        if request.guest_of:
            if not admitted:  # else its home has to hear why: a query of death is one there, too
                self._refuse(submitter, request, HopRefusal.REJECTED)
            return not admitted
        if rejection.cause is None or rejection.cause.blame is not Blame.ROOM:
            return False
        self._seek(submitter, Homeless(request, rejection), admitted, now)
        return True

    def consider(self, request_id: str, now: float) -> bool:
        """A request has come, and may wait: whether it is handed over."""
        waiting = self.scheduler.waiting.of(request_id, now)
        offer = None if waiting is None or waiting.request.hops else self._decide(waiting, now)
        if offer is not None and waiting is not None:
            self._hand_over(offer, waiting.request, now)
        return offer is not None

    def stepped(self, step: Step, now: float) -> Step:
        """What a step of the scheduler decided, without those turned away that a peer takes."""
        if not step.turned_away:
            return step
        return replace(step, turned_away=tuple(gone for gone in step.turned_away if not self._keeps(gone, now)))

    # Requests at peers.
    def held(self, attempt_id: str, replica_id: str) -> None:
        """A gateway has that lease of an owner before, perhaps at a peer."""
        kind, _, peer = replica_id.partition(" ")
        if kind == "cell" and peer in self.core.peers.by_cell:
            self._held[attempt_id] = peer, self.clock()

    def first_token(self, record: RequestRecord, at_s: float) -> None:
        """The client has the first token since then."""
        assert record.lease is not None
        self.core.first_token(record.request_id, at_s, record.lease.request.prefix)
        self.scheduler.first_token_away(record.request_id, at_s)

    def came_back(self, record: RequestRecord, refusal: HopRefusal, now: float) -> None:
        """The peer does not have the request: back to its place, from where another peer may get it with the next
        digest. One without a place goes to another peer at once, or is rejected."""
        submitter, homeless = record.submitter, self._homeless.get(record.request_id)
        assert submitter is not None
        self.core.came_back(record.request_id, refusal, now)
        record.lease = None
        if homeless is None:
            self.scheduler.put_back(record.request_id, now)
            self.records.move(record, RequestState.WAITING)
        elif refusal is not HopRefusal.LOST:
            self._find(submitter, homeless, now)
        elif self.core.may_serve(self.model, homeless.request):
            del self._homeless[record.request_id]
            self.scheduler.cancel(record.request_id, now)
            self.records.move(record, RequestState.CLOSED)
            self.enter(submitter, replace(homeless.request, hops=1), True, record.attempt, None)
        else:
            self._reject(submitter, homeless, now)

    def gone(self, request_id: str) -> None:
        """Nobody waits for the request any more."""
        self._homeless.pop(request_id, None)
        self.core.over(request_id)

    def _decide(self, waiting: WaitingRequest, now: float) -> Offer | None:
        decision = self.core.decide(waiting, self._own(now), now)
        if isinstance(decision, Stay):
            self.stays[decision.reason] += 1
            return None
        return decision

    def _hand_over(self, offer: Offer, request: Request, now: float) -> None:
        record = self.records.get(request.request_id)
        assert record is not None
        assert record.submitter is not None
        booked = self.scheduler.withdraw(request.request_id, now)
        assert booked is not None
        lease = replace(booked, replica_id=f"cell {offer.peer}", attempt=record.attempt + 1)
        self.records.move(record, RequestState.AWAY, lease)
        hop = replace(offer.hop, attempt=lease.attempt)
        record.submitter.handed_over(PeerLease(offer.peer, hop, offer.answer_s, lease))

    # Requests in no lane.
    def _keeps(self, gone: TurnedAway, now: float) -> bool:
        """A request waited here in vain: whether a peer gets it."""
        request, record = gone.request, self.records.get(gone.request.request_id)
        cause = gone.admission.cause
        if record is None or request.guest_of or cause is None or cause.blame is not Blame.ROOM:
            return False
        homeless = Homeless(request, gone.admission)
        offer = self._offer_of(homeless, now)
        if offer is not None:
            self.scheduler.begin_away(request, now, True, True)
            self._homeless[request.request_id] = homeless
            self._hand_over(offer, request, now)
        return offer is not None

    def _seek(self, submitter: Submitter, homeless: Homeless, admitted: bool, now: float) -> None:
        """A new request has no lane here: it is handed over, or rejected. `admitted`: whatever its tenant's limits."""
        offer, request = self._offer_of(homeless, now), homeless.request
        if offer is None:
            self._reject(submitter, homeless, now)
            return
        at_limit = self.scheduler.begin_away(request, now, admitted, False)
        if at_limit is not None:
            self._reject(submitter, Homeless(request, at_limit), now)
            return
        admission = Admission(AdmissionKind.QUEUE, homeless.rejection.lane)
        record = self.records.begin(request.request_id, request.attempts, RequestState.AWAY, submitter)
        record.admission = admission
        self._homeless[request.request_id] = homeless
        submitter.admitted(request.request_id, admission)
        self._hand_over(offer, request, now)

    def _find(self, submitter: Submitter, homeless: Homeless, now: float) -> None:
        offer = self._offer_of(homeless, now)
        if offer is None:
            self._reject(submitter, homeless, now)
        else:
            self._hand_over(offer, homeless.request, now)

    def _offer_of(self, homeless: Homeless, now: float) -> Offer | None:
        request, rejection = homeless.request, homeless.rejection
        if request.hops:
            return None
        expected = self.scheduler.waiting.expected(request, now)
        wait_s = (
            request.expires_s - now if rejection.eta_s is None else min(rejection.eta_s[1], request.expires_s - now)
        )
        p95_s = None if rejection.cause is RejectCause.RESIDENCY else wait_s
        return self._decide(replace(expected, p95_s=p95_s), now)

    def _reject(self, submitter: Submitter, homeless: Homeless, now: float) -> None:
        request_id = homeless.request.request_id
        if request_id in self._homeless:
            self.scheduler.cancel(request_id, now)
        record = self.records.get(request_id)
        if record is not None and record.state in QUEUED:
            self.records.move(record, RequestState.CLOSED)
        self.gone(request_id)
        submitter.admitted(request_id, homeless.rejection)

    # Guests.
    def judge(self, hop: HopFacts) -> HopRefusal | None:
        """Why a guest is not taken, before its body is here; None: it may come."""
        now = self.clock()
        refusal = self.core.judge(hop, self._here(hop.expected(now), now))
        if refusal is not None:
            self.refusals[refusal] += 1
        return refusal

    def _refusal(self, request: Request, hop: HopFacts | None, now: float) -> HopRefusal | None:
        """Why a guest is not taken; None: the scheduler decides."""
        stated = (request.request_id, request.guest_of, request.traffic_class, request.tenant)
        if hop is None or hop.model != self.model:
            return HopRefusal.SPEC
        if stated != (hop.guest_id, hop.home, hop.traffic_class, hop.tenant):
            return HopRefusal.SPEC
        refusal = self.core.take(hop, self._here(request, now), now)
        if refusal is None:
            self._stated = None
        return refusal

    def _here(self, request: Request, now: float) -> Here:
        return Here(self._own(now).load, self.scheduler.waiting.expected(request, now).p95_s)

    def _refuse(self, submitter: Submitter, request: Request, refusal: HopRefusal) -> None:
        self.refusals[refusal] += 1
        submitter.guest_refused(request.request_id, refusal)

    def _own(self, now: float) -> ModelDigest:
        if self._stated is None or now - self._stated[0] > _STATED_S:
            snapshot = self.scheduler.snapshot(now)
            pressed = self.core.hands_over(self.model, now)
            tenants = self.scheduler.tenant_use()
            self._stated = now, model_digest(self.model, snapshot, self._price(snapshot), pressed, tenants)
        return self._stated[1]
