"""What becomes of an owner's requests that are offered to peer cells, and of those that have no lane at home. A part of
`peering.py`; what the reports of gateways mean is in `hop_messages.py`."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from deployments.ownership.hop_messages import HopBroke, HopFinished, HopFirstByte, HopRejected, HopReport, HopTaken
from deployments.ownership.record import OVER, QUEUED, Records, RequestRecord, RequestState
from deployments.ownership.roles import Submitter
from deployments.peering import (
    CellPeering,
    HandedOver,
    HopAct,
    HopFacts,
    HopState,
    ModelDigest,
    Offer,
    Stay,
    StayReason,
    Wait,
)
from deployments.scheduling import (
    Admission,
    AdmissionKind,
    RejectCause,
    Request,
    Scheduler,
    TurnedAway,
    WaitingRequest,
)

FOR_WANT_OF_CAPACITY = frozenset({RejectCause.LANE_FULL, RejectCause.MODEL_FULL, RejectCause.STARTING})
"""A request that is rejected for one of these may find room at a peer."""


Enter = Callable[[Submitter, Request, bool, int, HopFacts | None], None]
"""Submits a request to the owner: whether it was taken in before, the attempts that were issued, and a guest's hop."""


@dataclass(frozen=True, slots=True)
class Homeless:
    """A request in no lane here, and the answer that it gets if no peer takes it."""

    request: Request
    rejection: Admission


def wait_of(model: str, waiting: WaitingRequest) -> Wait:
    """The request as the core sees it."""
    expected = waiting.output_tokens, waiting.cached_tokens
    return Wait(waiting.request, model, waiting.lane, waiting.p95_s, *expected)


class OwnedHops:
    """Of one owned model. `own` says what this cell's digest would say of it now; the rest as in `LanePeering`."""

    def __init__(
        self,
        core: CellPeering,
        model: str,
        scheduler: Scheduler,
        entries: Records,
        own: Callable[[float], ModelDigest],
        enter: Enter,
    ) -> None:
        self.stays: Counter[StayReason] = Counter()
        """Why requests stayed when they came."""
        self.rejections: Counter[str] = Counter()
        """Why requests were rejected that no peer took, and that had no lane here: by cause."""
        self._core = core
        self._model = model
        self._scheduler = scheduler
        self._entries = entries
        self._own = own
        self._enter = enter
        self._homeless: dict[str, Homeless] = {}
        self._offered: dict[str, Request] = {}
        """Requests that were ever offered to a peer, and are not over."""

    def decide(self, waiting: WaitingRequest, now: float) -> Offer | None:
        """Whether a request goes to a peer."""
        decision = self._core.decide(wait_of(self._model, waiting), self._own(now), now)
        if isinstance(decision, Stay):
            self.stays[decision.reason] += 1
            return None
        return decision

    def send(self, offer: Offer, request: Request) -> None:
        """A request is offered to a peer."""
        entry = self._entries.get(request.request_id)
        assert entry is not None
        assert entry.submitter is not None
        self._offered[request.request_id] = request
        entry.submitter.hop_offered(offer.peer, offer.hop)

    def forget(self, request_id: str) -> None:
        """Nobody waits for the request any more. Who made its hop has closed it."""
        self._homeless.pop(request_id, None)
        if self._offered.pop(request_id, None) is not None:
            self._core.over(request_id)

    # What gateways report.
    def reported(self, report: HopReport, now: float) -> bool:
        """A gateway's word on a hop that it makes. Returns whether the scheduler's step is due."""
        request_id, number = report.request_id, report.number
        entry = self._entries.get(request_id)
        if entry is None or entry.submitter is None or request_id not in self._offered:
            return False
        match report:
            case HopTaken():
                act = self._core.taken(request_id, number, self._offered[request_id].prefix)
            case HopRejected(refusal=refusal):
                self._core.rejected(request_id, number, refusal, now)
                return self._sought_in_vain(entry, now)
            case HopFirstByte():
                return self._answers(entry, number, now)
            case HopFinished():
                act = self._core.finished(request_id, number)
            case HopBroke():
                return self._broke(entry, number, now)
        return self._act(act, entry, number, now)

    def _act(self, act: HopAct, entry: RequestRecord, number: int, now: float) -> bool:
        submitter, request_id = entry.submitter, entry.request_id
        assert submitter is not None
        match act:
            case HopAct.LEAVE_LANE:
                if entry.state is RequestState.WAITING:
                    self._scheduler.withdraw(request_id, now)
                    self._entries.move(entry, RequestState.AWAY)
                submitter.hop_confirmed(request_id, number)
            case HopAct.CANCEL_THERE:
                submitter.hop_withdrawn(request_id, number)
                return self._sought_in_vain(entry, now)
            case HopAct.SUBMIT_AGAIN:
                self._again(entry, submitter, now)
            case HopAct.END | HopAct.END_WITH_ERROR:
                self._scheduler.cancel(request_id, now)
                self._entries.move(entry, RequestState.CLOSED)
                self.forget(request_id)
            case HopAct.NOTHING:
                return False
        return True

    def _answers(self, entry: RequestRecord, number: int, now: float) -> bool:
        """The client gets the first byte of the hop's answer."""
        hop = self._core.hops.get(entry.request_id)
        if hop is not None and hop.number == number and hop.state is HopState.THERE:
            self._core.first_byte(entry.request_id, number, now)
            self._scheduler.first_token_away(entry.request_id, now)
        return False

    def _broke(self, entry: RequestRecord, number: int, now: float) -> bool:
        """A peer that could not even be asked gets nothing before it has answered a question again."""
        hop = self._core.hops.get(entry.request_id)
        if hop is not None and hop.number == number and hop.state is HopState.OFFERED:
            self._core.peers.unreachable(hop.peer)
        return self._act(self._core.broke(entry.request_id, number), entry, number, now)

    def _again(self, entry: RequestRecord, submitter: Submitter, now: float) -> None:
        """The peer lost it, and its client has no byte: back to its place. It is offered to no peer again."""
        homeless = self._homeless.pop(entry.request_id, None)
        if homeless is None and self._scheduler.put_back(entry.request_id, now):
            self._entries.move(entry, RequestState.WAITING)
            return
        request = self._offered[entry.request_id] if homeless is None else homeless.request
        if homeless is not None and not self._core.may_serve(self._model, request):
            self._reject(submitter, homeless)
            return
        self._entries.move(entry, RequestState.CLOSED)
        self._enter(submitter, replace(request, hops=1), True, entry.attempt, None)

    def sweep(self, now: float) -> None:
        """Gives up hops that are overdue, and forgets requests that are over."""
        for request_id, hop in self._core.overdue(now):
            entry = self._entries.get(request_id)
            if entry is not None and entry.submitter is not None:
                self._give_up(entry, entry.submitter, hop, now)
        for request_id in list(self._offered):
            entry = self._entries.get(request_id)
            if entry is None or entry.state in OVER:
                self.forget(request_id)

    def _give_up(self, entry: RequestRecord, submitter: Submitter, hop: HandedOver, now: float) -> None:
        """Of one that the peer has, the gateway says whether its client has got a byte meanwhile: it closes the hop and
        reports that it broke, or lets it go on."""
        if hop.state is HopState.OFFERED:
            self._act(self._core.broke(entry.request_id, hop.number), entry, hop.number, now)
        else:
            submitter.hop_withdrawn(entry.request_id, hop.number)

    def left_lane(self, request_id: str) -> None:
        """At home, the request was placed, or its wait ended."""
        hop, entry = self._core.hops.get(request_id), self._entries.get(request_id)
        if hop is None or self._core.left_home(request_id) is not HopAct.CANCEL_THERE:
            return
        if entry is not None and entry.submitter is not None:
            entry.submitter.hop_withdrawn(request_id, hop.number)

    # Requests in no lane.
    def keeps(self, gone: TurnedAway, now: float) -> bool:
        """A request waited here in vain: whether a peer may take it, that was asked before or is asked now."""
        request, entry = gone.request, self._entries.get(gone.request.request_id)
        if entry is None or request.guest_of or gone.admission.cause not in FOR_WANT_OF_CAPACITY:
            self.left_lane(request.request_id)
            return False
        homeless = Homeless(request, gone.admission)
        asked = self._core.hops.get(request.request_id) is not None
        offer = None if asked else self._offer_of(homeless, now)
        if not asked and offer is None:
            return False
        self._homeless[request.request_id] = homeless
        self._entries.move(entry, RequestState.AWAY)
        if offer is not None:
            self.send(offer, request)
        return True

    def seek(self, submitter: Submitter, homeless: Homeless, now: float) -> None:
        """A new request has no lane here: it is offered to a peer, or rejected."""
        offer = self._offer_of(homeless, now)
        if offer is None:
            self._reject(submitter, homeless)
            return
        request = homeless.request
        admission = Admission(AdmissionKind.QUEUE, homeless.rejection.lane)
        entry = self._entries.begin(request.request_id, request.attempts, RequestState.AWAY, submitter)
        entry.admission = admission
        self._homeless[request.request_id] = homeless
        submitter.admitted(request.request_id, admission)
        self.send(offer, request)

    def _sought_in_vain(self, entry: RequestRecord, now: float) -> bool:
        """A peer did not take a request. If it has no lane here, another peer is asked, or it is over."""
        homeless, submitter = self._homeless.get(entry.request_id), entry.submitter
        if homeless is None or submitter is None or self._core.hops.get(entry.request_id) is not None:
            return False
        offer = self._offer_of(homeless, now)
        if offer is None:
            self._reject(submitter, homeless)
        else:
            self.send(offer, homeless.request)
        return False

    def _offer_of(self, homeless: Homeless, now: float) -> Offer | None:
        request, rejection = homeless.request, homeless.rejection
        if request.hops:
            return None
        expected = self._scheduler.waiting.expected(request, now)
        wait_s = (
            request.expires_s - now if rejection.eta_s is None else min(rejection.eta_s[1], request.expires_s - now)
        )
        p95_s = None if rejection.cause is RejectCause.RESIDENCY else wait_s
        return self.decide(replace(expected, p95_s=p95_s), now)

    def _reject(self, submitter: Submitter, homeless: Homeless) -> None:
        request_id, rejection = homeless.request.request_id, homeless.rejection
        entry = self._entries.get(request_id)
        if entry is not None and entry.state in QUEUED:
            self._entries.move(entry, RequestState.CLOSED)
        self.forget(request_id)
        self.rejections[str(rejection.cause)] += 1
        submitter.admitted(request_id, rejection)
