"""The end of a replica as this gateway sees it: why it ended, and which of its requests broke there. Both are told
to the directory."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deployments.cell.departure import MAX_DETAIL_CHARS, DepartureCause, Ended, Lost, MemberKind
from deployments.gateway.exchange import ReplicaDied
from deployments.gateway.flow import EndCause as FlowCause
from deployments.gateway.flow import RequestFlow
from deployments.openai.errors import ApiError, ErrorCode
from deployments.protocol import DrainReason, EngineFault, Failed, Load, ReplicaFacts, ReplicaState
from deployments.scheduling import Lease

REMEMBER_S = 60.0
"""A broken exchange counts for an end that is noticed so much later, and for none after that."""
_MAX_REPLICAS = 256


class BrokenExchanges:
    """By replica, until its end is told, or for `REMEMBER_S`: a connection may break without an end."""

    def __init__(self) -> None:
        self._by_replica: OrderedDict[str, list[tuple[float, Lost]]] = OrderedDict()

    @contextmanager
    def watching(self, lease: Lease, flow: RequestFlow) -> Iterator[None]:
        """Around one exchange of a request with a replica."""
        try:
            yield
        except ReplicaDied:
            self._note(lease, again=True)
            raise
        except ApiError as error:
            if error.error is ErrorCode.REPLICA_LOST:
                self._note(lease)
            raise
        except asyncio.CancelledError:
            if flow.cause is FlowCause.REPLICA_LOST:
                self._note(lease)
            raise
        if flow.ledger.error == ErrorCode.REPLICA_LOST.code:
            self._note(lease)

    def taken(self, replica_id: str) -> Lost:
        """What that replica took with it; asked once."""
        since_s, total = time.monotonic() - REMEMBER_S, Lost()
        for at_s, lost in self._by_replica.pop(replica_id, ()):
            if at_s >= since_s:
                total = total.plus(lost)
        return total

    def _note(self, lease: Lease, again: bool = False) -> None:
        lost = Lost(int(not again), int(again), lease.tokens, (lease.request.key,))
        now = time.monotonic()
        noted = self._by_replica.setdefault(lease.replica_id, [])
        while noted and noted[0][0] < now - REMEMBER_S:
            noted.pop(0)
        noted.append((now, lost))
        self._by_replica.move_to_end(lease.replica_id)
        if len(self._by_replica) > _MAX_REPLICAS:
            self._by_replica.popitem(last=False)


log = logging.getLogger("raylane.gateway")

SETTLE_S = 1.0
"""Within so long after its end all requests that it broke have noticed."""
_ANSWER_S = 5.0
_RETRY_S = 1.0
_TRIES = 600

_PLANNED = {
    DrainReason.STOP: DepartureCause.STOPPED,
    DrainReason.OPERATOR: DepartureCause.DRAINED,
    DrainReason.SPOT_NOTICE: DepartureCause.SPOT_NOTICE,
}


def cause_of(last: Load | None, failed: Failed | None, said_goodbye: bool, was_unresponsive: bool) -> DepartureCause:
    """Why a replica ended. `last`: what it said last of itself; `failed`: that its engine failed; `said_goodbye`: it
    ended its feed by itself; `was_unresponsive`: before its end nothing had been heard of it for so long that it got no
    new work."""
    if failed is not None:
        return DepartureCause.ENGINE_STALLED if failed.fault is EngineFault.STALLED else DepartureCause.ENGINE_DIED
    if last is not None and last.state is ReplicaState.UNHEALTHY:
        return DepartureCause.ENGINE_DIED
    if last is not None and last.drains_for is not None and said_goodbye:
        return _PLANNED[last.drains_for]
    return DepartureCause.UNRESPONSIVE if was_unresponsive else DepartureCause.PROCESS_DIED


class DepartureReporter:
    """One is told for each end. While the directory is away it is kept, for `_TRIES` tries. `directory`: an actor's
    handle, set before the first."""

    def __init__(self, gateway_id: str, broken_exchanges: BrokenExchanges) -> None:
        self.directory: Any = None
        self._gateway_id = gateway_id
        self._broken_exchanges = broken_exchanges
        self._tasks: set[asyncio.Task[None]] = set()
        self._hurry = asyncio.Event()

    def ended(self, facts: ReplicaFacts, cause: DepartureCause, detail: str) -> None:
        task = asyncio.create_task(
            self._tell(facts, cause, detail[:MAX_DETAIL_CHARS], time.time()), name=f"obituary-{facts.replica_id}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Tells at once what is still to be told."""
        self._hurry.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _tell(self, facts: ReplicaFacts, cause: DepartureCause, detail: str, at_unix_s: float) -> None:
        await self._wait(SETTLE_S)
        lost = self._broken_exchanges.taken(facts.replica_id)
        event = Ended(
            MemberKind.REPLICA,
            facts.replica_id,
            at_unix_s,
            cause,
            facts.model,
            facts.pid,
            self._gateway_id,
            lost,
            detail,
        )
        for _ in range(_TRIES):
            try:
                async with asyncio.timeout(_ANSWER_S):
                    await self.directory.ended.remote(event)
                return
            except Exception as error:  # any failure of Ray: it is told again
                log.info("the directory was not told of the end of %s: %r", facts.replica_id, error)
            if self._hurry.is_set():
                return
            await self._wait(_RETRY_S)
        log.warning("the directory was never told of the end of %s (%s)", facts.replica_id, cause)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            pass
