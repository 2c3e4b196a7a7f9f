"""A request that its model cannot answer in time goes to another model, once, where the spec names one
(docs/pressure.md).

The scheduler rejects an impatient request where it would wait for too long and no peer cell takes it. The other model
gets it as impatient, too. Where that does not take it either, and the external tier (`external.py`) does not answer,
the request waits for its own model as if there were no other, unless that had rejected it in any case.
"""

import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from deployments.gateway.connection import Connection
from deployments.gateway.placed import NoRoom, RejectedByModel, Shared, run_leased
from deployments.openai.errors import ErrorCode
from deployments.ownership.dispatcher import Dispatcher
from deployments.scheduling import RejectCause, Request, Rung
from deployments.telemetry.ledger import Degradation
from deployments.telemetry.verdicts import RequestVerdict

FALLBACK_HEADER = b"x-raylane-fallback"
NEVER = b"never"
"""The header's value by which a client refuses other models."""


Alternative = Callable[[RejectCause, Connection], Awaitable[bool]]
"""Has a request answered elsewhere, since its model has rejected it; False: it is not, and nothing was sent."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """The model that may answer in place of a request's own. `request` makes the request to it, and notes its sizes in
    the ledger."""

    shared: Shared
    dispatcher: Dispatcher
    request: Callable[[], Request]

    async def run(self, asked: Request, cause: RejectCause, client: Connection) -> bool:
        """An `Alternative` of the request that was `asked` of its own model."""
        ledger, now, name = client.flow.ledger, time.monotonic(), self.dispatcher.model.name
        before = client.body, client.given_body, ledger.degraded
        own = ledger.model, ledger.attempt_id, ledger.expected_prompt_tokens
        client.set_member("model", name)
        ledger.model, ledger.attempt_id = name, uuid.uuid4().hex
        ledger.degraded += (Degradation(Rung.FALLBACK, own[0], cause.value, f"model={own[0]}"),)
        ledger.decide(RequestVerdict.FELL_BACK, cause.value, now, asked=own[0], model=name)
        ledger.waits_again(now)
        other = replace(
            self.request(),
            deadline_s=asked.deadline_s,
            expires_s=asked.expires_s,
            impatient=True,
            counted=True,
            rungs=_without_fallback(asked),
        )
        try:
            await run_leased(self.shared, self.dispatcher, other, client)
        except RejectedByModel as error:
            if error.error is ErrorCode.QUERY_OF_DEATH and ledger.resubmitted:
                raise  # it has just killed replicas there
            client.body, client.given_body, ledger.degraded = before
            ledger.model, ledger.attempt_id, ledger.expected_prompt_tokens = own
            return False
        return True


async def run_with_fallback(
    shared: Shared,
    alternatives: Sequence[Alternative],
    dispatcher: Dispatcher,
    request: Request,
    client: Connection,
) -> None:
    """As `run_leased`, of a request to `dispatcher` that those may answer, in their order."""
    try:
        await run_leased(shared, dispatcher, replace(request, impatient=True), client)
        return
    except NoRoom as error:
        if error.cause is RejectCause.SHED:
            raise
        rejected = error
    for alternative in alternatives:
        if client.commented:  # the head of the answer would not tell of it
            break
        if await alternative(rejected.cause, client):
            return
    client.flow.ledger.waits_again(time.monotonic())
    if rejected.cause not in (RejectCause.PATIENCE, RejectCause.LADDER):
        raise rejected
    at_home = replace(request, counted=True, rungs=_without_fallback(request))
    await run_leased(shared, dispatcher, at_home, client)


def _without_fallback(request: Request) -> tuple[Rung, ...]:
    return tuple(rung for rung in request.rungs if rung is not Rung.FALLBACK)
