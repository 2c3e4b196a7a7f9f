"""Which channel of each other gateway is its last, as the owner of a model sees them.

A gateway has one channel to the owner at a time. Where it opens another, the one before may still look alive here, and still bring what was sent on
it: that is out of date from then on. The channels are numbered by the gateway, since they may arrive in another order than they were opened.
"""

from deployments.ownership.roles import Holder


class Channels:
    """Of one owner. The number of the last one is remembered as long as the owner is."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, Holder | None]] = {}

    def open(self, holder: Holder, gateway_id: str, number: int) -> bool:
        """A channel opens, and the one before is ended. False for one that a later one has overtaken on the way."""
        last, before = self._last.get(gateway_id, (number, None))
        if number < last:
            return False
        self._last[gateway_id] = number, holder
        if before is not None:
            before.moved()
        return True

    @property
    def open_ones(self) -> list[Holder]:
        """The last of each gateway, where it stands."""
        return [holder for _, holder in self._last.values() if holder is not None]

    def ended(self, holder: Holder) -> None:
        """A channel ended; one that is not the last is no error."""
        for gateway_id, (number, last) in self._last.items():
            if last is holder:
                self._last[gateway_id] = number, None

    def end_all(self) -> None:
        """The owner decides nothing more."""
        for _, holder in tuple(self._last.values()):
            if holder is not None:
                holder.moved()
