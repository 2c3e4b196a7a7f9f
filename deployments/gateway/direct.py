"""Requests that need no lease (the tokenizer's endpoints): any ready replica answers them, and another one if the first takes no work."""

import time

import aiohttp

from deployments.gateway.connection import Connection, answer_headers
from deployments.gateway.exchange import UNREACHABLE, Refused, content_type, marks, post, refusal, sized
from deployments.gateway.flow import Flow, Hop
from deployments.openai.endpoints import Endpoint
from deployments.openai.engine_errors import engine_error
from deployments.openai.errors import ApiError, ErrorCode, lost
from deployments.ownership.desk import Desk
from deployments.protocol import ENGINE_DIED_HEADER, ReplicaFacts

_Answer = tuple[int, bytes, bytes, list[tuple[bytes, bytes]]]
"""Status, content type, body, and the marks that go to the client."""


async def run_direct(session: aiohttp.ClientSession, desk: Desk, flow: Flow, client: Connection, endpoint: Endpoint, body: bytes) -> None:
    """Runs a request to its end. Raises ApiError, or what cancelled the flow."""
    for replica in desk.replicas.ready_in_turn():
        flow.ledger.replica_id, flow.ledger.pick = replica.replica_id, "direct"
        try:
            status, kind, payload, marked = await _ask(session, replica, flow, endpoint, body)
        except Refused as refused:
            desk.replica_state(replica.replica_id, refused.state)
            continue
        if status >= 400:
            error = engine_error(status, payload, endpoint.body, body)
            payload, kind, flow.ledger.error = error.payload(endpoint.dialect), b"application/json", error.error.code
        flow.wait_for(Hop.CLIENT, time.monotonic())
        await client.start(status, [(b"content-type", kind), *sized(payload), *marked, *answer_headers(flow.ledger)])
        await client.finish(payload)
        return
    raise ApiError(ErrorCode.NO_REPLICA, f"no replica of model {desk.model.name!r} is ready", headers={"retry-after": "1"})


async def _ask(session: aiohttp.ClientSession, replica: ReplicaFacts, flow: Flow, endpoint: Endpoint, body: bytes) -> _Answer:
    flow.wait_for(Hop.FIRST_BYTE, time.monotonic())
    try:
        async with await post(session, replica.url + endpoint.path, flow.ledger.engine_id, body) as response:
            payload = await response.read()
            if ENGINE_DIED_HEADER in response.headers:
                raise lost()
    except UNREACHABLE as error:
        raise Refused(None) from error
    except aiohttp.ClientError as error:
        raise lost() from error
    refused = refusal(response.status, payload)
    if refused is not None:
        raise refused
    return response.status, content_type(response), payload, marks(response)
