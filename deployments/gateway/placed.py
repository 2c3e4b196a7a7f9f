"""From the lane to the end of the answer: waits for a lease, relays, and waits again when a replica took no work."""

import time
from typing import Protocol

import aiohttp

from deployments.gateway.connection import Connection
from deployments.gateway.endpoints import Endpoint
from deployments.gateway.errors import ApiError, ErrorCode
from deployments.gateway.exchange import Refused
from deployments.gateway.flow import Flow, Hop
from deployments.gateway.owner import LaneOwner, QueueTimeout, Rejected
from deployments.gateway.relay import Relay
from deployments.scheduling import Admission, Placement, Request
from deployments.telemetry.ledger import Closing


class Shared(Protocol):
    """What of the service a placed request uses."""

    session: aiohttp.ClientSession
    closing: Closing


async def run_placed(shared: Shared, owner: LaneOwner, request: Request, flow: Flow, client: Connection, endpoint: Endpoint, body: bytes) -> None:
    """Runs an admitted request to its end. Raises ApiError, or what cancelled the flow."""
    ledger = flow.ledger
    while True:
        placement = await _wait(owner, request, flow)
        ledger.attempts = placement.lease.attempt
        ledger.engine_id = f"{request.request_id}-{placement.lease.attempt}"  # an engine never sees an id twice
        ledger.replica_id, ledger.pick = placement.replica_id, placement.reason.value
        shared.closing.open(ledger)
        try:
            await Relay(shared.session, owner, placement.lease, flow, client, endpoint).run(body)
            return
        except Refused:
            shared.closing.forget(ledger)
            ledger.refused(time.monotonic())


async def _wait(owner: LaneOwner, request: Request, flow: Flow) -> Placement:
    flow.wait_for(Hop.LANE, time.monotonic())
    placed = False
    try:
        placement = await owner.placement(request)
        placed = True
        return placement
    except QueueTimeout:
        waited = time.monotonic() - flow.ledger.arrived_s
        message = f"no replica of model {owner.model.name!r} had room within {waited:.1f} s (queue_wait_s)"
        raise ApiError(ErrorCode.QUEUE_TIMEOUT, message, headers={"retry-after": "1"}) from None
    except Rejected as rejected:
        raise overloaded(owner.model.name, rejected.admission) from None
    finally:
        flow.ledger.left_lane(time.monotonic(), placed=placed)


def overloaded(model: str, admission: Admission) -> ApiError:
    """The error of a request that its lane did not take."""
    retry_after = max(1, round(admission.retry_after_s or 1))
    cause = admission.cause.value if admission.cause is not None else "unknown"
    message = f"model {model!r} is overloaded ({cause}): {admission.ahead_tokens} tokens wait; retry in {retry_after} s"
    return ApiError(ErrorCode.OVERLOADED, message, headers={"retry-after": str(retry_after)})
