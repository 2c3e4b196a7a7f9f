"""The end of a replica as this gateway sees it: why it ended, and which of its requests broke there
(`exchange.py`). The directory gets both."""

import asyncio
import logging
import time
from typing import Any

from deployments.cell.departure import MAX_DETAIL_CHARS, DepartureCause, Ended, MemberKind
from deployments.gateway.exchange import BrokenExchanges
from deployments.protocol import DrainReason, EngineFault, Failed, Load, ReplicaFacts, ReplicaState

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
    """Reports each end to the directory, with up to `_TRIES` tries while it is away. `directory`: an actor's handle,
    set before the first report."""

    def __init__(self, gateway_id: str, broken_exchanges: BrokenExchanges) -> None:
        self.directory: Any = None
        self._gateway_id = gateway_id
        self._broken_exchanges = broken_exchanges
        self._tasks: set[asyncio.Task[None]] = set()
        self._hurry = asyncio.Event()

    def ended(self, facts: ReplicaFacts, cause: DepartureCause, detail: str) -> None:
        task = asyncio.create_task(
            self._tell(facts, cause, detail[:MAX_DETAIL_CHARS], time.time()), name=f"departure-{facts.replica_id}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Sends at once what has not been reported yet."""
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
            facts.group_key,
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
            except Exception as error:  # any failure of Ray: the report is sent again
                log.info("the directory did not get the report on the end of %s: %r", facts.replica_id, error)
            if self._hurry.is_set():
                return
            await self._wait(_RETRY_S)
        log.warning("the directory never got the report on the end of %s (%s)", facts.replica_id, cause)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            pass
