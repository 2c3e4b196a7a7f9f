"""Owners: epochs only grow, every model has a living owner when there is one, and a restarted directory falls behind nobody."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from deployments.ownership.owners import SETTLE_S, SILENT_AFTER_S, Owners

MODELS = ("m1", "m2", "m3")
GATEWAYS = ("g1", "g2", "g3")


class OwnersMachine(RuleBasedStateMachine):
    """Gateways come, stop, fall silent; directories restart; engines remember the highest epoch that they were shown."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.owners = Owners(self.now)
        self.alive: dict[str, float] = {}
        self.believes: dict[str, dict[str, int]] = {name: {} for name in GATEWAYS}
        self.engine = dict.fromkeys(MODELS, 0)
        self.issued: dict[tuple[str, int], str] = {}

    def _heard(self) -> None:
        """What living gateways hear from the directory; an owner shows itself to the engine."""
        for model, owner in self.owners.owned.items():
            assert self.issued.setdefault((model, owner.epoch), owner.gateway_id) == owner.gateway_id or owner.epoch <= self.engine[model]
            for gateway in self.alive:
                self.believes[gateway].pop(model, None)
            if owner.gateway_id in self.alive:
                self.believes[owner.gateway_id][model] = owner.epoch
                if owner.epoch < self.engine[model]:
                    self.owners.overtaken(model, self.engine[model], self.now)
                    self._heard()
                    return
                self.engine[model] = owner.epoch

    @rule(gateway=st.sampled_from(GATEWAYS), passed=st.floats(0, 2))
    def register(self, gateway: str, passed: float) -> None:
        self.now += passed
        self.alive[gateway] = self.now
        self.owners.register(gateway, f"http://{gateway}", MODELS, self.believes[gateway], self.now)
        self._forget()
        self._heard()

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        gateway = data.draw(st.sampled_from(sorted(self.alive)))
        del self.alive[gateway]
        self.believes[gateway] = {}
        self.owners.leave(gateway, self.now)
        self._heard()

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def given_up(self, data: st.DataObject) -> None:
        """Another gateway doubts one that may well live: it goes on believing, until it hears or an engine tells it."""
        gateway = data.draw(st.sampled_from(sorted(self.alive)))
        self.owners.give_up(gateway, self.now)
        assert gateway in self.owners.lost
        assert gateway not in {owner.gateway_id for owner in self.owners.owned.values()}
        del self.alive[gateway]
        self._heard()

    @rule(passed=st.floats(0, 8))
    def time_passes(self, passed: float) -> None:
        self.now += passed
        self.owners.assign(self.now)
        self._forget()
        self._heard()

    @rule()
    def the_directory_restarts(self) -> None:
        self.owners = Owners(self.now, expected=2)

    def _forget(self) -> None:
        self.alive = {name: seen for name, seen in self.alive.items() if self.now - seen <= SILENT_AFTER_S}

    @invariant()
    def owners_live_and_are_not_behind(self) -> None:
        for model, owner in self.owners.owned.items():
            assert owner.gateway_id in self.owners.gateways
            assert owner.epoch >= 1
            assert owner.epoch >= self.engine[model] or owner.gateway_id not in self.alive


TestOwners = OwnersMachine.TestCase
TestOwners.settings = settings(max_examples=200, stateful_step_count=40)


def test_models_are_spread_and_move_when_their_owner_leaves() -> None:
    owners = Owners(0.0)
    for gateway in GATEWAYS:
        owners.register(gateway, gateway, MODELS, {}, SETTLE_S)
    owners.assign(SETTLE_S)
    first = dict(owners.owned)
    assert first["m1"].epoch == 1
    owners.leave(first["m1"].gateway_id, 2.0)
    assert owners.owned["m1"].epoch == 2
    assert owners.owned["m1"].gateway_id != first["m1"].gateway_id
    kept = [model for model in MODELS if first[model].gateway_id != first["m1"].gateway_id]
    assert all(owners.owned[model] == first[model] for model in kept)


def test_who_is_silent_loses_its_models() -> None:
    owners = Owners(0.0)
    owners.register("g1", "u1", MODELS, {}, SETTLE_S)
    assert {owner.gateway_id for owner in owners.owned.values()} == {"g1"}
    owners.register("g2", "u2", MODELS, {}, SETTLE_S + SILENT_AFTER_S + 0.1)
    assert {owner.gateway_id for owner in owners.owned.values()} == {"g2"}
    assert all(owner.epoch == 2 for owner in owners.owned.values())


def test_a_restarted_directory_believes_the_owners() -> None:
    owners = Owners(100.0, expected=3)
    owners.register("g2", "u2", MODELS, {}, 100.1)
    assert owners.owned == {}, "nothing is given out before the owners had time to say so"
    owners.register("g1", "u1", MODELS, {"m1": 7}, 100.2)
    assert (owners.owned["m1"].gateway_id, owners.owned["m1"].epoch) == ("g1", 7)
    owners.assign(100.0 + SETTLE_S)
    assert owners.owned["m2"].epoch == 1
    owners.overtaken("m2", 9, 102.0)
    assert owners.owned["m2"].epoch == 10
