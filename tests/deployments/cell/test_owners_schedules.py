"""Owners over random schedules: an epoch is issued once, and every model gets a living owner whom the others follow."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from deployments.cell.owners import SETTLE_S, Owners, Ownership

MODELS = ("m1", "m2")
GATEWAYS = ("g1", "g2", "g3")
ONE_GATEWAY, ONE_MODEL = st.sampled_from(GATEWAYS), st.sampled_from(MODELS)


class Member:
    """A gateway: what it was told last of each model (`owner_tracker.py`), and where an engine has refused it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reported: dict[str, Ownership] = {}
        self.highest: dict[str, int] = {}
        self.deposed: dict[str, int] = {}

    @property
    def owned(self) -> dict[str, int]:
        mine = {model: word.epoch for model, word in self.reported.items() if word.gateway_id == self.name}
        return {model: epoch for model, epoch in mine.items() if self.deposed.get(model) != epoch}

    def hear(self, owners: Owners) -> None:
        for model, word in owners.owned.items():
            if model not in self.reported or word.epoch >= self.reported[model].epoch:
                self.reported[model] = word
                self.highest[model] = max(word.epoch, self.highest.get(model, 0))


class OwnersMachine(RuleBasedStateMachine):
    """Gateways come, stop, fall silent, hear late or never; directories restart with the epochs that they kept; engines
    remember the highest epoch that they were shown."""

    KEEPS = True

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.kept: dict[str, int] = {}
        self.owners = Owners(self.now, expected=2)
        self.members = {name: Member(name) for name in GATEWAYS}
        self.engine = dict.fromkeys(MODELS, 0)
        self.issued: dict[tuple[str, int], str] = {}
        self.before: dict[str, Ownership] = {}
        self.reported = dict.fromkeys(MODELS, 0)

    def changed(self, reported: dict[str, int] | None = None) -> None:
        """What the directory decided is written down, then heard of. `reported`: the epochs that somebody told it just
        before."""
        for model, epoch in (reported or {}).items():
            self.reported[model] = max(epoch, self.reported[model])
        for model, owner in self.owners.owned.items():
            believed = self.members[owner.gateway_id].owned.get(model) == owner.epoch
            if owner != self.before.get(model) and not believed:
                assert owner.epoch > self.reported[model], "a new epoch is above all that anyone reported"
            if self.KEEPS:
                assert self.issued.setdefault((model, owner.epoch), owner.gateway_id) == owner.gateway_id, (
                    "an epoch has one owner"
                )
        self.before = dict(self.owners.owned)
        self.kept = dict(self.owners.epochs)

    @rule(gateway=ONE_GATEWAY, passed=st.floats(0, 2))
    def registers(self, gateway: str, passed: float) -> None:
        self.now += passed
        member = self.members[gateway]
        self.owners.register(gateway, f"http://{gateway}", MODELS, member.owned, self.now, dict(member.highest))
        self.changed(member.highest)

    @rule(gateway=ONE_GATEWAY)
    def hears(self, gateway: str) -> None:
        self.members[gateway].hear(self.owners)

    @rule(gateway=ONE_GATEWAY, model=ONE_MODEL)
    def shows_itself_to_an_engine(self, gateway: str, model: str) -> None:
        member = self.members[gateway]
        epoch = member.owned.get(model)
        if epoch is None:
            return
        highest = self.engine[model]
        if epoch >= highest:
            assert not self.KEEPS or self.issued[model, epoch] == gateway, (
                "an engine never takes the word of two owners under one epoch"
            )
            self.engine[model] = epoch
            return
        member.deposed[model] = epoch
        member.highest[model] = max(highest, member.highest[model])
        before = self.owners.owned.get(model)
        self.owners.overtaken(model, highest, self.now)
        if (
            before is not None
            and before.epoch >= highest
            and self.now >= SETTLE_S
            and before.epoch == self.kept.get(model)
        ):
            assert self.owners.owned.get(model) == before or before.gateway_id not in self.owners.gateways, (
                "a stale gateway deposes nobody"
            )
        self.changed({model: highest})

    @rule(model=ONE_MODEL)
    def a_replica_registers(self, model: str) -> None:
        self.owners.saw({model: self.engine[model]}, self.now)
        self.changed({model: self.engine[model]})

    @rule(gateway=ONE_GATEWAY)
    def leaves(self, gateway: str) -> None:
        self.members[gateway] = Member(gateway)
        self.owners.leave(gateway, self.now)
        self.changed()

    @rule(gateway=ONE_GATEWAY)
    def is_given_up(self, gateway: str) -> None:
        """Another gateway doubts one that may well live: it goes on believing, until it hears or an engine tells it."""
        self.owners.give_up(gateway, self.now)
        assert gateway in self.owners.lost
        assert gateway not in {owner.gateway_id for owner in self.owners.owned.values()}
        self.changed()

    @rule(passed=st.floats(0, 2), times=st.integers(1, 4))
    def time_passes(self, passed: float, times: int) -> None:
        for _ in range(times):
            self.now += passed
            self.owners.assign(self.now)
            self.changed()

    @rule()
    def the_directory_restarts(self) -> None:
        self.owners = Owners(self.now, expected=2, epochs=self.kept)
        self.before = {}

    @invariant()
    def owners_live(self) -> None:
        for owner in self.owners.owned.values():
            assert owner.gateway_id in self.owners.gateways
            assert owner.epoch >= 1

    def teardown(self) -> None:
        """Once all can talk to each other again, each model has an owner that all follow and no engine refuses."""
        for _ in range(3):
            self.now += SETTLE_S
            for name in GATEWAYS:
                self.registers(name, 0.0)
            for name in GATEWAYS:
                self.hears(name)
                for model in MODELS:
                    self.shows_itself_to_an_engine(name, model)
        for model in MODELS:
            assert len({member.reported[model] for member in self.members.values()}) == 1
            owner = self.owners.owned[model]
            assert self.members[owner.gateway_id].owned[model] == owner.epoch == self.engine[model]


class ForgetfulMachine(OwnersMachine):
    """The same where what a directory kept is lost with it: it issues nothing that anyone has reported to it, and in
    the end all follow one owner."""

    KEEPS = False

    @rule()
    def the_directory_restarts(self) -> None:
        self.owners = Owners(self.now, expected=2)
        self.before = {}
        self.reported = dict.fromkeys(MODELS, 0)


TestOwners = pytest.mark.whole(OwnersMachine.TestCase)
TestOwners.settings = settings(max_examples=settings.default.max_examples * 2, stateful_step_count=40)
TestForgetful = pytest.mark.whole(ForgetfulMachine.TestCase)
TestForgetful.settings = settings(stateful_step_count=40)
