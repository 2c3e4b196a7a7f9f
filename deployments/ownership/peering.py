"""The owner's part in hand-overs between cells: one `CellPeering` for one owned model, under the owner's epoch.

The core decides (`deployments/peering`). This shell gives it what the scheduler knows, does what it says, and speaks
with the gateways that make the hops (`hop_messages.py`). The owner's event loop puts all of it in one order: whoever is
first there, a replica at home or a peer's yes, serves the request.

    the request is             its entry   its place
    in its lane                WAITING     keeps it while a peer is asked
    with a peer                AWAY        `Scheduler.withdraw`; if the peer loses it before the first byte, `put_back`
    in no lane here            AWAY        none: this cell may not serve it, or its lanes are full. A peer has it, or is
                                           asked; when none takes it, its client is rejected for what kept it off

A request counts as demand of the cell where it arrived, wherever it is served. So the autoscaler at home still sees it,
and that of the peer sees a guest only as load. One that its home may not serve is no demand there, since more replicas
at home would not help.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from heapq import nlargest

from cluster.spec import ClusterSpec
from deployments.accounting.tariffs import usd_per_replica_hour
from deployments.ownership.hop_messages import HopReport
from deployments.ownership.owned_hops import FOR_WANT_OF_CAPACITY, Enter, Homeless, OwnedHops, wait_of
from deployments.ownership.record import Records
from deployments.ownership.roles import Submitter
from deployments.peering import (
    CellPeering,
    Digest,
    DigestRefusal,
    Here,
    HopFacts,
    HopRefusal,
    ModelDigest,
    Question,
    model_digest,
)
from deployments.scheduling import (
    Admission,
    AdmissionKind,
    RejectCause,
    Request,
    Scheduler,
    Snapshot,
    Step,
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


class LanePeering:
    """Of one owned model in `cell`, under the owner's epoch. `clock` is the owner's."""

    def __init__(
        self,
        spec: ClusterSpec,
        cell: str,
        model: str,
        epoch: int,
        scheduler: Scheduler,
        entries: Records,
        enter: Enter,
        clock: Callable[[], float],
    ) -> None:
        self.core = CellPeering(spec, cell, epoch)
        self.model = model
        self.refusals: Counter[str] = Counter()
        """Why guests were refused here."""
        self.hops = OwnedHops(self.core, model, scheduler, entries, self._own, enter)
        self._scheduler = scheduler
        self._clock = clock
        self._price = price_of(spec, cell, model)
        self._stated: tuple[float, ModelDigest] | None = None

    def configure(self, spec: ClusterSpec) -> None:
        """The spec changed."""
        self.core.configure(spec)
        self._price = price_of(spec, self.core.cell, self.model)

    # Digests.
    def ask(self) -> Mapping[str, Question]:
        """What each peer is to be asked, by its cell; called once a digest period. Hops that are overdue are given
        up."""
        now = self._clock()
        self.hops.sweep(now)
        self._count_tenants(now)
        return self.core.ask(now)

    def digest(self, question: Question) -> Digest:
        """The answer to a peer's question."""
        return self.core.answer(question, (self._own(self._clock()),))

    @property
    def spare(self) -> float:
        """What peers have to spare for this cell, in replicas: for the page that the autoscaler reads."""
        return self.core.spare(self.model, self._clock())

    def heard(self, digest: Digest) -> DigestRefusal | None:
        """A peer's digest came. None: it is taken over, and what waits was decided on again."""
        now = self._clock()
        refusal = self.core.heard(digest, now)
        if refusal is None:
            self._count_tenants(now)
            waiting = [one for one in self._scheduler.waiting.all(now) if not one.request.hops]
            longest = nlargest(_RECONSIDERED, waiting, key=lambda one: one.p95_s or 0.0)
            requests = {one.request.request_id: one.request for one in longest}
            waits = [wait_of(self.model, one) for one in longest]
            for offer in self.core.reconsider(waits, self._own(now), now) if waits else ():
                self.hops.send(offer, requests[offer.hop.request_id])
        return refusal

    def _count_tenants(self, now: float) -> None:
        """What tenants use in other cells counts against their limits here."""
        self._scheduler.used_elsewhere(self.core.used_elsewhere(self.model, now), now)

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
        self.hops.seek(submitter, Homeless(request, rejection), now)
        return True

    def takes_rejected(self, submitter: Submitter, request: Request, rejection: Admission, now: float) -> bool:
        """The scheduler rejected the request. Whether its submitter hears of something else."""
        if request.guest_of:
            self._refuse(submitter, request, HopRefusal.REJECTED)
            return True
        if rejection.cause not in FOR_WANT_OF_CAPACITY:
            return False
        self.hops.seek(submitter, Homeless(request, rejection), now)
        return True

    def consider(self, request_id: str, now: float) -> None:
        """A request has come, and may wait: whether it is offered to a peer."""
        waiting = self._scheduler.waiting.of(request_id, now)
        if waiting is None or waiting.request.hops:
            return
        offer = self.hops.decide(waiting, now)
        if offer is not None:
            self.hops.send(offer, waiting.request)

    # What happens at home.
    def stepped(self, step: Step, now: float) -> Step:
        """What a step of the scheduler decided, without those turned away that a peer may still take. Peers that were
        asked for what home has now are to drop it."""
        for request in step.expired:
            self.hops.left_lane(request.request_id)
        for placement in step.placements:
            self.hops.left_lane(placement.request.request_id)
        if not step.turned_away:
            return step
        return replace(step, turned_away=tuple(gone for gone in step.turned_away if not self.hops.keeps(gone, now)))

    def gone(self, request_id: str) -> None:
        """Nobody waits for the request any more."""
        self.hops.forget(request_id)

    def reported(self, report: HopReport, now: float) -> bool:
        """A gateway's word on a hop that it makes. Returns whether the scheduler's step is due."""
        return self.hops.reported(report, now)

    # Guests.
    def _refusal(self, request: Request, hop: HopFacts | None, now: float) -> HopRefusal | None:
        """Why a guest is not taken; None: the scheduler decides."""
        stated = (request.request_id, request.guest_of, request.traffic_class, request.tenant)
        if hop is None or hop.model != self.model:
            return HopRefusal.SPEC
        if stated != (hop.guest_id, hop.home, hop.traffic_class, hop.tenant):
            return HopRefusal.SPEC
        own, expected = self._own(now), self._scheduler.waiting.expected(request, now)
        refusal = self.core.take(hop, Here(own.load, expected.p95_s), now)
        if refusal is None:
            self.core.over(hop.guest_id)  # `Request.guest_of` says all that has to be remembered
            self._stated = None
        return refusal

    def _refuse(self, submitter: Submitter, request: Request, refusal: HopRefusal) -> None:
        self.refusals[refusal] += 1
        submitter.guest_refused(request.request_id, refusal)

    def _own(self, now: float) -> ModelDigest:
        if self._stated is None or now - self._stated[0] > _STATED_S:
            snapshot = self._scheduler.snapshot(now)
            pressed = self.core.hands_over(self.model, now)
            tenants = self._scheduler.tenant_use()
            self._stated = now, model_digest(self.model, snapshot, self._price(snapshot), pressed, tenants)
        return self._stated[1]
