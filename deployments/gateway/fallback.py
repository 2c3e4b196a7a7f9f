"""A request that its model cannot answer in time goes to another model, once, where the spec names one
(docs/pressure.md).

The scheduler rejects an impatient request where it would wait for too long and no peer cell takes it. The other model
gets it as impatient, too. Where that has no room in time either, the request waits for its own model as if there were
no other, unless that had rejected it in any case.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from deployments.gateway.connection import Connection
from deployments.gateway.flow import RequestFlow
from deployments.gateway.placed import NoRoom, Shared, run_leased
from deployments.openai.endpoints import Endpoint
from deployments.ownership.dispatcher import Dispatcher
from deployments.scheduling import RejectCause, Request, Rung
from deployments.telemetry.ledger import Degradation
from deployments.telemetry.verdicts import RequestVerdict

FALLBACK_HEADER = b"x-raylane-fallback"
NEVER = b"never"
"""The header's value by which a client refuses other models."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """The model that may answer in place of a request's own. `request` makes the request to it, and notes its sizes in
    the ledger."""

    dispatcher: Dispatcher
    request: Callable[[], Request]


async def run_with_fallback(
    shared: Shared,
    fallback: Fallback,
    dispatcher: Dispatcher,
    request: Request,
    flow: RequestFlow,
    client: Connection,
    endpoint: Endpoint,
) -> None:
    """As `run_leased`, of a request to `dispatcher` that `fallback` may answer."""
    ledger = flow.ledger
    own = ledger.model, ledger.attempt_id, ledger.expected_prompt_tokens
    try:
        await run_leased(shared, dispatcher, replace(request, impatient=True), flow, client, endpoint)
        return
    except NoRoom as error:
        if error.cause is RejectCause.SHED:
            raise
        rejected = error
    rungs = tuple(rung for rung in request.rungs if rung is not Rung.FALLBACK)
    if not client.commented:  # the head of the answer would not tell of it
        before, now = (client.body, client.given_body, ledger.degraded), time.monotonic()
        client.set_member("model", fallback.dispatcher.model.name)
        ledger.model, ledger.attempt_id = fallback.dispatcher.model.name, uuid.uuid4().hex
        ledger.degraded += (Degradation(Rung.FALLBACK, own[0], rejected.cause.value, f"model={own[0]}"),)
        ledger.decide(RequestVerdict.FELL_BACK, rejected.cause.value, now, asked=own[0], model=ledger.model)
        ledger.waits_again(now)
        other = replace(
            fallback.request(),
            deadline_s=request.deadline_s,
            expires_s=request.expires_s,
            impatient=True,
            counted=True,
            rungs=rungs,
        )
        try:
            await run_leased(shared, fallback.dispatcher, other, flow, client, endpoint)
            return
        except NoRoom:
            client.body, client.given_body, ledger.degraded = before
            ledger.model, ledger.attempt_id, ledger.expected_prompt_tokens = own
    if rejected.cause not in (RejectCause.PATIENCE, RejectCause.LADDER):
        raise rejected
    ledger.waits_again(time.monotonic())
    await run_leased(shared, dispatcher, replace(request, counted=True, rungs=rungs), flow, client, endpoint)
