"""Which gateway owns which model's decisions, and under which epoch. Pure: the directory holds it, the tests drive it.

An epoch is issued once, for one gateway, and only grows; the engines refuse what was overtaken (`engine/fence.py`), so nothing here has to be right
about who is alive: a gateway that is given up too early loses its models, and nothing else. A directory that restarts knows nothing: it learns the
epochs from the gateways that register, and, where one was missed, from the engine that refused it (`overtaken`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SILENT_AFTER_S = 6.0
"""A gateway that did not register for so long is given up."""
SETTLE_S = 5.0
"""A new directory gives out no model that nobody claims before all gateways that are expected have registered, or this long has passed."""
_REMEMBERED = 64


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
    models: frozenset[str]


class Owners:
    """The owners of a cell's models. `lost` names the gateways that were given up last, as opposed to those that left."""

    def __init__(self, now: float, expected: int = 1) -> None:
        self.owned: dict[str, Ownership] = {}
        self.lost: tuple[str, ...] = ()
        self._gateways: dict[str, _Gateway] = {}
        self._epochs: dict[str, int] = {}
        self._expected = expected
        self._settled_s = now + SETTLE_S

    @property
    def gateways(self) -> dict[str, str]:
        """The gateways that live, with their addresses."""
        return {gateway_id: gateway.url for gateway_id, gateway in self._gateways.items()}

    def register(self, gateway_id: str, url: str, models: Iterable[str], owned: Mapping[str, int], now: float) -> None:
        """A gateway lives. `models` are those that it could own, `owned` the epochs under which it believes to own some."""
        self._gateways[gateway_id] = _Gateway(url, now, frozenset(models))
        self.lost = tuple(lost for lost in self.lost if lost != gateway_id)
        for model, epoch in owned.items():
            if epoch > self._epochs.get(model, 0):  # this directory is younger than that epoch
                self._epochs[model] = epoch
                self.owned[model] = Ownership(model, epoch, gateway_id, url)
        self.assign(now)

    def leave(self, gateway_id: str, now: float) -> None:
        """A gateway stops: its models go to others. An unknown one is no error."""
        self._gateways.pop(gateway_id, None)
        self.assign(now)

    def give_up(self, gateway_id: str, now: float) -> None:
        """A gateway was found dead or silent by another one: its models go to others. If it lives it may register again."""
        self._lose(gateway_id)
        self.assign(now)

    def overtaken(self, model: str, highest: int, now: float) -> None:
        """An engine has seen an epoch that is higher than the owner's: the model gets one above it."""
        if highest >= self._epochs.get(model, 0):
            self._epochs[model] = highest
            self.owned.pop(model, None)
            self.assign(now)

    def assign(self, now: float) -> None:
        """Gives up the silent, and gives each model without a living owner to the gateway that owns the fewest. Called now and then."""
        for gateway_id in [key for key, gateway in self._gateways.items() if now - gateway.seen_s > SILENT_AFTER_S]:
            self._lose(gateway_id)
        wanted = {model for gateway in self._gateways.values() for model in gateway.models}
        for model in sorted(wanted | self.owned.keys()):
            owner = self.owned.get(model)
            if owner is not None and owner.gateway_id in self._gateways:
                continue
            self.owned.pop(model, None)
            if len(self._gateways) >= self._expected or now >= self._settled_s or self._epochs.get(model):
                self._give(model)

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
        epoch = self._epochs[model] = self._epochs.get(model, 0) + 1
        self.owned[model] = Ownership(model, epoch, chosen, self._gateways[chosen].url)
