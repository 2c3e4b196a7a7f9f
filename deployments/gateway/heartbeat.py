"""Says to a streamed request's client, while it waits, that it waits and for about how long: comments of the event stream, which clients skip, or an
event that its API has for it (`dialect.py`).

Load balancers cut a connection on which nothing came for a minute. A stream that has begun is never commented on: a comment might land inside an
event. The flows' sweep calls `Heartbeat.turn` (`flow.py`), so that a request that does not wait for long costs no timer.
"""

import asyncio
from collections.abc import Sequence

from deployments.gateway.connection import Connection
from deployments.gateway.exchange import SIMULATED_MARK
from deployments.openai.dialect import Dialect
from deployments.telemetry.ledger import Ledger


class Heartbeat:
    """One request's. The first comes `every_s` after `now`, and brings the head of the answer: 200, and what is known of the request by then."""

    def __init__(self, client: Connection, ledger: Ledger, every_s: float, now: float, simulated: bool, dialect: Dialect = Dialect.OPENAI) -> None:
        self._client = client
        self._ledger = ledger
        self._dialect = dialect
        self._every_s = every_s
        self._next_s = now + every_s
        self._marks: Sequence[tuple[bytes, bytes]] = (SIMULATED_MARK,) if simulated else ()
        self._task: asyncio.Task[None] | None = None

    def turn(self, now: float) -> None:
        """Sends a comment if one is due. A client that has not read the last one gets no more."""
        if now < self._next_s or (self._task is not None and not self._task.done()):
            return
        self._next_s = now + self._every_s
        self._task = self._client.comment(self._dialect.heartbeat(wait_comment(self._ledger, now)), self._marks)


def wait_comment(ledger: Ledger, now: float) -> str:
    """What the request waits for, and how long still, by what was promised when it was taken in."""
    if ledger.placed_s is not None:
        return "placed, waiting for the first token"
    if ledger.eta_s is None or ledger.submitted_s is None:
        return "waiting"
    waited_s = now - ledger.submitted_s
    p50_s, p95_s = (max(0.0, eta_s - waited_s) for eta_s in ledger.eta_s)
    if p95_s == 0.0:
        return "waiting, for longer than expected"
    return f"waiting, expected wait {p50_s:.0f} s p50, {p95_s:.0f} s p95"
