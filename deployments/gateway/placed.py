"""From the lane to the end of the answer: waits for a lease, relays, and waits again when a replica took no work, or
died at it.

While a streamed request waits, its client gets heartbeats: comments of the event stream, which clients skip, or an
event that its API has for it. Load balancers cut a connection on which nothing came for a minute. The flows' sweep
sends them (`flow.py`), so that a short wait costs no timer.
"""

import asyncio
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import aiohttp

from cluster.spec import GatewaySpec, Model
from deployments.gateway.connection import Connection
from deployments.gateway.context import with_excess
from deployments.gateway.exchange import SIMULATED_MARK, BrokenExchanges, ReplicaDied, ReplicaRefused
from deployments.gateway.flow import Awaited, RequestFlow
from deployments.gateway.peers.guest import GuestRefusedHere
from deployments.gateway.peers.hop import HandOvers, PeerRelay
from deployments.gateway.relay import Relay
from deployments.openai.errors import ApiError, ErrorCode
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.record import GuestNotTaken, QueueTimeout, Rejected
from deployments.ownership.roles import PeerLease
from deployments.scheduling import Admission, AdmissionKind, Blame, Placement, RejectCause, Request, Rung
from deployments.telemetry.journal import Closing
from deployments.telemetry.ledger import Degradation, Ledger
from deployments.telemetry.verdicts import RequestVerdict


class Heartbeat:
    """One request's. The first comes `every_s` after `now`, and brings the head of the answer: 200, and what is known
    of the request by then."""

    def __init__(self, client: Connection, every_s: float, now: float, simulated: bool) -> None:
        self._client = client
        self._every_s = every_s
        self._next_s = now + every_s
        self._marks: Sequence[tuple[bytes, bytes]] = (SIMULATED_MARK,) if simulated else ()
        self._task: asyncio.Task[None] | None = None

    def turn(self, now: float) -> None:
        """Sends a comment if one is due. A client that has not read the last one gets no more."""
        if now < self._next_s or (self._task is not None and not self._task.done()):
            return
        self._next_s = now + self._every_s
        comment = wait_comment(self._client.flow.ledger, now)
        self._task = self._client.comment(self._client.endpoint.dialect.heartbeat(comment), self._marks)


def wait_comment(ledger: Ledger, now: float) -> str:
    """What the request waits for, and how much longer, by the wait estimate that it got when it was queued."""
    if ledger.placed_s is not None:
        where = "placed" if ledger.peer is None else f"handed over to region {ledger.peer}"
        return f"{where}, waiting for the first token"
    if ledger.eta_s is None or ledger.submitted_s is None:
        return "waiting"
    waited_s = now - ledger.submitted_s
    p50_s, p95_s = (max(0.0, eta_s - waited_s) for eta_s in ledger.eta_s)
    if p95_s == 0.0:
        return "waiting, for longer than expected"
    return f"waiting, expected wait {seconds(p50_s)} p50, {seconds(p95_s)} p95"


def seconds(value_s: float, digits: int = 0) -> str:
    """A wait in words; an infinite one is not known."""
    return f"{value_s:.{digits}f} s" if math.isfinite(value_s) else "unknown"


LADDER = RejectCause.LADDER.value
"""The reason of what a step of the ladder does."""
MAX_DEATHS = 3
"""A request is placed again after so many deaths: a bound for a replica that breaks each connection and lives.

Where two deaths were the request's own doing, the owner of the lanes ends it sooner.
"""


class Shared(Protocol):
    """What of the service a placed request uses."""

    session: aiohttp.ClientSession
    closing: Closing
    settings: GatewaySpec
    broken_exchanges: BrokenExchanges
    hand_overs: HandOvers | None


async def run_leased(shared: Shared, dispatcher: Dispatcher, request: Request, client: Connection) -> None:
    """Runs a request that needs a lease to its end. Raises ApiError, or what cancelled the flow."""
    flow, endpoint, now = client.flow, client.endpoint, time.monotonic()
    ledger = flow.ledger
    flow.wait_for(Awaited.LANE, now)
    if ledger.stream and endpoint.streams and shared.settings.heartbeat_s > 0 and client.hop is None:
        simulated = dispatcher.model.engine == "simulated"
        flow.beat = Heartbeat(client, shared.settings.heartbeat_s, now, simulated).turn
    with _waiting(dispatcher, request, flow):
        admission = await dispatcher.submit(request, client.hop)
    note_admission(ledger, request, admission)
    if not admission.accepted:
        raise with_excess(turned_away(dispatcher.model.name, request.tenant, admission), dispatcher, ledger)
    client.admitted()
    if admission.clamp_tokens is not None:
        _clamp(client, ledger, dispatcher.model, admission.clamp_tokens)
    deaths = 0
    while True:
        placement = await _placement(dispatcher, request, flow)
        if isinstance(placement, PeerLease):
            assert shared.hand_overs is not None
            if await PeerRelay(shared.hand_overs, placement, dispatcher, client).run():
                return
            ledger.refused(time.monotonic())
            continue
        ledger.attempts, ledger.attempt_id = placement.lease.attempt, placement.lease.attempt_id
        ledger.replica_id, ledger.pick = placement.replica_id, placement.reason.value
        note_placement(ledger, placement, dispatcher.replicas.group_of(placement.replica_id))
        shared.closing.open(ledger)
        try:
            with shared.broken_exchanges.watching(placement.lease, flow):
                await Relay(dispatcher, placement.lease, client, deaths < MAX_DEATHS).run(shared.session)
            return
        except (ReplicaRefused, ReplicaDied) as gone:
            shared.closing.forget(ledger)
            now = time.monotonic()
            ledger.decide(gone.verdict, gone.reason, now, replica=placement.replica_id)
            if isinstance(gone, ReplicaDied):
                deaths += 1
                ledger.resubmitted = gone.reason
            ledger.refused(now)


async def count_cached(dispatcher: Dispatcher, flow: RequestFlow, patience_s: float) -> None:
    """Counts a request whose answer is there against its tenant's limits. Raises ApiError, or what cancelled the
    flow."""
    ledger, now = flow.ledger, time.monotonic()
    flow.wait_for(Awaited.LANE, now)
    request = Request(ledger.attempt_id, 0, 0, now, now, now + patience_s, tenant=ledger.tenant, cached=True)
    with _waiting(dispatcher, request, flow):
        admission = await dispatcher.submit(request)
    if not admission.accepted:
        note_admission(ledger, request, admission)
        raise turned_away(dispatcher.model.name, request.tenant, admission)


async def _placement(dispatcher: Dispatcher, request: Request, flow: RequestFlow) -> Placement | PeerLease:
    flow.wait_for(Awaited.LANE, time.monotonic())
    with _waiting(dispatcher, request, flow):
        placement = await dispatcher.placement(request)
    flow.ledger.left_lane(time.monotonic(), placed=True)
    return placement


def _clamp(client: Connection, ledger: Ledger, model: Model, max_tokens: int) -> None:
    """A step of the ladder bounds the answer: the body says so from now on, and the client hears of it, unless the head
    of the answer is gone."""
    if client.clamp is None or client.commented or any(one.rung is Rung.CLAMP for one in ledger.degraded):
        return
    for name, tokens in client.clamp(model, max_tokens).items():
        client.set_member(name, tokens)
    ledger.decide(RequestVerdict.CLAMPED, LADDER, time.monotonic(), max_tokens=max_tokens)
    ledger.degraded += (Degradation(Rung.CLAMP, ledger.model, LADDER, f"max_tokens={max_tokens}"),)


@contextmanager
def _waiting(dispatcher: Dispatcher, request: Request, flow: RequestFlow) -> Iterator[None]:
    """A wait for the owner: how it can end other than well."""
    try:
        yield
    except QueueTimeout:
        waited = time.monotonic() - flow.ledger.arrived_s
        flow.ledger.left_lane(time.monotonic(), placed=False)
        flow.ledger.decide(RequestVerdict.EXPIRED, "queue_wait_s", time.monotonic())
        message = f"no replica of model {dispatcher.model.name!r} had room within {waited:.1f} s (queue_wait_s)"
        raise ApiError(ErrorCode.QUEUE_TIMEOUT, message, headers={"retry-after": "1"}) from None
    except GuestNotTaken as refused:
        flow.ledger.left_lane(time.monotonic(), placed=False)
        raise GuestRefusedHere(refused.refusal) from None
    except Rejected as rejected:
        flow.ledger.left_lane(time.monotonic(), placed=False)
        note_admission(flow.ledger, request, rejected.admission)
        error = turned_away(dispatcher.model.name, request.tenant, rejected.admission)
        raise with_excess(error, dispatcher, flow.ledger) from None
    except BaseException:
        flow.ledger.left_lane(time.monotonic(), placed=False)
        raise


def note_admission(ledger: Ledger, request: Request, admission: Admission) -> None:
    """What the scheduler answered, with what it knew of the request."""
    verdict = {AdmissionKind.ADMIT: RequestVerdict.ADMITTED, AdmissionKind.QUEUE: RequestVerdict.QUEUED}.get(
        admission.kind, RequestVerdict.REJECTED
    )
    ledger.lane, ledger.eta_s = admission.lane, admission.eta_s
    reason = admission.cause.value if admission.cause is not None else f"lane {admission.lane}"
    facts: dict[str, object] = {
        "expected_prompt_tokens": request.prompt_tokens,
        "max_tokens": request.max_tokens,
        "sequences": request.sequences,
    }
    if admission.eta_s is not None:
        p50_s, p95_s = (round(eta_s, 3) if math.isfinite(eta_s) else None for eta_s in admission.eta_s)
        facts |= {"eta_p50_s": p50_s, "eta_p95_s": p95_s}  # JSON has no infinity
    if admission.cause is RejectCause.SHED:
        ledger.degraded += (Degradation(Rung.SHED, ledger.model, LADDER),)
    if admission.waits_for is not None:
        facts["waits_for"] = admission.waits_for.value
    ledger.decide(
        verdict, reason, time.monotonic(), lane=admission.lane, retry_after_s=admission.retry_after_s, **facts
    )


def note_placement(ledger: Ledger, placement: Placement, group: str | None) -> None:
    """`group`: of the replica; None: its model has only one."""
    now, lease = time.monotonic(), placement.lease
    if placement.promoted and not ledger.promoted:
        ledger.promoted = True
        ledger.decide(RequestVerdict.PROMOTED, "max_wait_s", now, lane=placement.lane)
    ledger.decide(
        RequestVerdict.PLACED,
        placement.reason.value,
        now,
        replica=placement.replica_id,
        **({} if group is None else {"group": group}),
        attempt=lease.attempt,
        waited_s=round(placement.waited_s, 6),
        booked_prefill_tokens=lease.prefill_tokens,
        booked_kv_tokens=lease.kv_tokens,
        expected_output_tokens=lease.output_tokens,
    )


class RejectedByModel(ApiError):
    """The model does not take the request; nothing of an answer was sent."""


class NoRoom(RejectedByModel):
    """...since it has no room for it in time."""

    def __init__(self, error: ErrorCode, message: str, headers: Mapping[str, str], cause: RejectCause) -> None:
        super().__init__(error, message, headers=headers)
        self.cause = cause


def turned_away(model: str, tenant: str, admission: Admission) -> RejectedByModel:
    """The error of a request that its lane did not take: each cause has its code, and so its status."""
    retry_after = max(1, math.ceil(admission.retry_after_s or 1))
    again = f"retry in {retry_after} s"

    def error(code: ErrorCode, message: str) -> RejectedByModel:
        headers = {"retry-after": str(retry_after), "x-raylane-lane": admission.lane}
        if admission.cause is not None and admission.cause.blame is Blame.ROOM:
            return NoRoom(code, message, headers, admission.cause)
        return RejectedByModel(code, message, headers=headers)

    def at_limit(code: ErrorCode, limited: str) -> RejectedByModel:
        return error(code, f"tenant {tenant!r} is at its limit of {limited} for model {model!r}; {again}")

    match admission.cause:
        case RejectCause.TENANT_REQUESTS:
            return at_limit(ErrorCode.REQUEST_LIMIT, "requests a minute")
        case RejectCause.TENANT_TOKENS:
            return at_limit(ErrorCode.TOKEN_LIMIT, "tokens a minute")
        case RejectCause.TENANT_CONCURRENCY:
            return at_limit(ErrorCode.CONCURRENCY_LIMIT, "requests at once")
        case RejectCause.CONTEXT:
            longer = f"the prompt and what it may generate are longer than the context of model {model!r}"
            return RejectedByModel(ErrorCode.CONTEXT_LENGTH, longer)
        case RejectCause.QUERY_OF_DEATH:
            died = f"two replicas of model {model!r} died while this request, or one with the same body, ran"
            return error(ErrorCode.QUERY_OF_DEATH, f"{died}; it is not run again for {retry_after} s")
        case RejectCause.STARTING:
            known = admission.eta_s is not None and math.isfinite(admission.eta_s[0])
            when = f" in {admission.eta_s[0]:.0f} s" if known and admission.eta_s is not None else ""
            late = f"model {model!r} has no replica now, and the next will be ready{when}, too late for this request"
            return error(ErrorCode.NO_REPLICA, f"{late}; {again}")
        case RejectCause.PATIENCE | RejectCause.LADDER:
            late = f"model {model!r} has no room for this request in time, and no other model answers it"
            return error(ErrorCode.OVERLOADED, f"{late}; {again}")
        case RejectCause.SHED:
            return error(ErrorCode.OVERLOADED, f"model {model!r} sheds requests of this class under pressure; {again}")
        case RejectCause.RESIDENCY:
            no_room = f"no region that may serve this request has room for it now, on model {model!r}"
            return error(ErrorCode.OVERLOADED, f"{no_room}; {again}")
        case RejectCause.LANE_FULL | RejectCause.MODEL_FULL | RejectCause.DUPLICATE_ID | None as cause:
            work = "" if admission.backlog_s is None else f"; {admission.backlog_s:.1f} s of work wait"
            if work and admission.eta_s is not None:
                p50, p95 = (seconds(eta_s, 1) for eta_s in admission.eta_s)
                work += f", the wait would be {p50} (p50) to {p95} (p95)"
            full = f"model {model!r} is overloaded ({cause or 'unknown'}) in lane {admission.lane!r}{work}"
            return error(ErrorCode.OVERLOADED, f"{full}; {again}")
