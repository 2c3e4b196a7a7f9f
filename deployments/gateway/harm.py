"""What a replica that dies takes with it, as this gateway sees it: the requests whose exchange with it broke. Told to the directory with its end."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from deployments.cell.departure import Lost
from deployments.gateway.exchange import Died
from deployments.gateway.flow import Cause, Flow
from deployments.openai.errors import ApiError, ErrorCode
from deployments.scheduling import Lease

REMEMBER_S = 60.0
"""A broken exchange counts for an end that is noticed so much later, and for none after that."""
_MOST_REPLICAS = 256


class Harm:
    """By replica, until its end is told, or for `REMEMBER_S`: a connection may break without an end."""

    def __init__(self) -> None:
        self._by_replica: OrderedDict[str, list[tuple[float, Lost]]] = OrderedDict()

    @contextmanager
    def watching(self, lease: Lease, flow: Flow) -> Iterator[None]:
        """Around one exchange of a request with a replica."""
        try:
            yield
        except Died:
            self._note(lease, again=True)
            raise
        except ApiError as error:
            if error.error is ErrorCode.REPLICA_LOST:
                self._note(lease)
            raise
        except asyncio.CancelledError:
            if flow.cause is Cause.REPLICA_LOST:
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
        if len(self._by_replica) > _MOST_REPLICAS:
            self._by_replica.popitem(last=False)
