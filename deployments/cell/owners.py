"""Which gateway owns which model's decisions, and under which epoch. Pure: the directory holds it, the tests drive it.

An epoch is issued once, for one gateway, and only grows; the engines refuse what was overtaken (`engine/fence.py`), so
nothing here has to be right about who is alive: a gateway that is given up too early loses its models, and nothing
else.

That no epoch is issued twice rests on what the directory knows when it starts again: the epochs that it kept
(`directory.py`), and where those are lost, what gateways and replicas have seen and tell as they register. An epoch
above all of these is new. Where an epoch is missed all the same (its file is lost, and nobody who has seen it has
registered yet), the first engine that has seen it refuses the new owner, and says so (`overtaken`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

UNRESPONSIVE_AFTER_S = 6.0
"""A gateway that did not register for so long is given up."""
STALL_S = 2.0
"""Someone speaks to the directory at least so often, where anyone lives (`REGISTER_EVERY_S`): in longer silence it
stood still itself."""
SETTLE_S = 5.0
"""A new directory gives out no model that nobody claims before all gateways that are expected have registered, or this
long has passed."""
_REMEMBERED = 64
_NONE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Ownership:
    """`epoch` is larger than that of any owner before; `url` is where the owner takes requests for leases."""

    model: str
    epoch: int
    gateway_id: str
    url: str


@dataclass(slots=True)
class _Gateway:
    url: str
    seen_s: float
    """In the time that the directory ran (`Owners._ran_s`)."""
    models: frozenset[str]


class Owners:
    """The owners of a cell's models. `lost` names the gateways that were given up last, as opposed to those that
    left."""

    def __init__(self, now: float, expected: int = 1, epochs: Mapping[str, int] = _NONE) -> None:
        self.owned: dict[str, Ownership] = {}
        self.lost: tuple[str, ...] = ()
        self.epochs: dict[str, int] = dict(epochs)
        """The highest epoch of each model that was issued, or that anyone has seen."""
        self._gateways: dict[str, _Gateway] = {}
        self._had_owner: set[str] = set()
        self._expected = expected
        self._settled_s = now + SETTLE_S
        self._now_s, self._ran_s = now, 0.0

    @property
    def gateways(self) -> dict[str, str]:
        """The gateways that live, with their addresses."""
        return {gateway_id: gateway.url for gateway_id, gateway in self._gateways.items()}

    def register(
        self,
        gateway_id: str,
        url: str,
        models: Iterable[str],
        owned: Mapping[str, int],
        now: float,
        seen: Mapping[str, int] = _NONE,
    ) -> None:
        """A gateway lives. `models` are those that it could own, `owned` the epochs under which it believes to own
        some, `seen` the highest that it has heard of."""
        self._run(now)
        self._gateways[gateway_id] = _Gateway(url, self._ran_s, frozenset(models))
        self.lost = tuple(lost for lost in self.lost if lost != gateway_id)
        for model, epoch in owned.items():
            owner = self.owned.get(model)
            if (
                owner is not None and owner.epoch == epoch and owner.gateway_id != gateway_id
            ):  # issued twice, since what was kept was lost
                del self.owned[model]
            elif epoch >= self.epochs.get(model, 0) and (owner is None or epoch > owner.epoch):
                # This directory is younger than that owner.
                self._own(Ownership(model, epoch, gateway_id, url))
        self.saw(seen, now)
        self.assign(now)

    def saw(self, seen: Mapping[str, int], now: float) -> None:
        """Someone has seen those epochs: they are not issued again."""
        self._run(now)
        for model, epoch in seen.items():
            self.epochs[model] = max(epoch, self.epochs.get(model, 0))

    def leave(self, gateway_id: str, now: float) -> None:
        """A gateway stops: its models go to others. An unknown one is no error."""
        self._gateways.pop(gateway_id, None)
        self.assign(now)

    def give_up(self, gateway_id: str, now: float) -> None:
        """A gateway was found dead or unresponsive by another one: its models go to others. If it lives it may register
        again."""
        self._lose(gateway_id)
        self.assign(now)

    def overtaken(self, model: str, highest: int, now: float) -> None:
        """An engine has refused an owner, since it has seen the epoch `highest`. Where that is the rightful owner's, or
        an earlier one, the refused was an owner before; where it is higher, the model gets one above it."""
        self.saw({model: highest}, now)
        owner = self.owned.get(model)
        if owner is not None and owner.epoch < highest:
            del self.owned[model]
        self.assign(now)

    def assign(self, now: float) -> None:
        """Gives up the unresponsive, and gives each model without a living owner to the gateway that owns the fewest.
        Called now and then."""
        self._run(now)
        for gateway_id in [
            key for key, gateway in self._gateways.items() if self._ran_s - gateway.seen_s > UNRESPONSIVE_AFTER_S
        ]:
            self._lose(gateway_id)
        settled = len(self._gateways) >= self._expected or now >= self._settled_s
        desired = {model for gateway in self._gateways.values() for model in gateway.models}
        for model in sorted(desired | self.owned.keys()):
            owner = self.owned.get(model)
            if (
                owner is not None
                and owner.gateway_id in self._gateways
                and (owner.epoch == self.epochs[model] or not settled)
            ):
                # of an epoch above the owner's, the owner may be about to register; the others would not follow this
                # one
                continue
            self.owned.pop(model, None)
            if settled or model in self._had_owner:
                self._give(model)

    def _run(self, now: float) -> None:
        """While the directory stood still, nobody was silent: who spoke meanwhile may be heard next."""
        self._ran_s += min(now - self._now_s, STALL_S)
        self._now_s = now

    def _lose(self, gateway_id: str) -> None:
        self._gateways.pop(gateway_id, None)
        if gateway_id not in self.lost:
            self.lost = (*self.lost, gateway_id)[-_REMEMBERED:]

    def _give(self, model: str) -> None:
        able = [gateway_id for gateway_id, gateway in self._gateways.items() if model in gateway.models]
        if not able:
            return
        load = {gateway_id: sum(owner.gateway_id == gateway_id for owner in self.owned.values()) for gateway_id in able}
        chosen = min(able, key=lambda gateway_id: (load[gateway_id], gateway_id))
        self._own(Ownership(model, self.epochs.get(model, 0) + 1, chosen, self._gateways[chosen].url))

    def _own(self, ownership: Ownership) -> None:
        self.owned[ownership.model] = ownership
        self.epochs[ownership.model] = ownership.epoch
        self._had_owner.add(ownership.model)
