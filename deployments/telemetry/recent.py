"""The last requests' ledgers, by the client's request id, for `raylane why`: some 3 KB each; their records are made only when asked for."""

from collections import OrderedDict

from deployments.telemetry.ledger import Ledger

KEPT = 2_000


class Recent:
    """At most `kept` closed ledgers; the oldest go first."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._ledgers: OrderedDict[str, Ledger] = OrderedDict()

    def add(self, ledger: Ledger) -> None:
        """Keeps a ledger whose metrics are counted (its gaps between tokens are dropped). Of an id used twice the last use is kept."""
        ledger.itl.clear()
        self._ledgers.pop(ledger.request_id, None)
        self._ledgers[ledger.request_id] = ledger
        if len(self._ledgers) > self._kept:
            self._ledgers.popitem(last=False)

    def get(self, request_id: str) -> Ledger | None:
        """The ledger, if it is still kept."""
        return self._ledgers.get(request_id)

    def __len__(self) -> int:
        return len(self._ledgers)
