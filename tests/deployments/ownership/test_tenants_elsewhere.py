"""Owners of one model in two cells exchange digests: a tenant's limit counts once."""

from dataclasses import dataclass, field
from typing import Any

from deployments.ownership.peering import LanePeering
from deployments.ownership.record import Records
from deployments.scheduling import RejectCause, Scheduler, TenantUse
from deployments.scheduling.policy import policy_of
from tests.deployments.peering.setups import KEY, MODEL, make_request, make_spec

TENANT: dict[str, Any] = {"name": "a", "keys": [KEY + "0"]}


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Owner:
    """A scheduler and its peering, without gateways."""

    cell: str
    clock: Clock
    limits: dict[str, float]
    scheduler: Scheduler = field(init=False)
    peering: LanePeering = field(init=False)
    asked: int = 0

    def __post_init__(self) -> None:
        spec = make_spec(tenants=[{**TENANT, **self.limits}])
        self.scheduler = Scheduler(policy_of(spec))

        def nothing(*_: Any, **__: Any) -> Any:
            raise AssertionError("no request is handed over here")

        self.peering = LanePeering(spec, self.cell, MODEL, 1, self.scheduler, Records(), nothing, nothing, self.clock)

    def ask(self) -> RejectCause | None:
        """A request of the tenant arrives."""
        self.asked += 1
        return self.scheduler.submit(
            make_request(f"{self.cell}{self.asked}", self.clock.now, tenant="a"), self.clock.now
        ).cause


def exchange(owners: list[Owner]) -> None:
    """Each asks all, and hears them."""
    by_cell = {owner.cell: owner for owner in owners}
    for owner in owners:
        for cell, question in owner.peering.ask().items():
            if cell in by_cell:
                assert owner.peering.heard(by_cell[cell].peering.digest(question)) is None


def two(**limits: float) -> tuple[Owner, Owner, Clock]:
    clock = Clock()
    eu, us = (Owner(cell, clock, limits) for cell in ("eu", "us"))
    exchange([eu, us])
    return eu, us, clock


def test_what_one_cell_admits_the_other_one_does_not() -> None:
    eu, us, clock = two(requests_per_minute=3.0)
    assert [eu.ask(), eu.ask()] == [None, None]
    assert eu.scheduler.tenant_use() == (TenantUse("a", 2, 300, 2),)
    clock.now += 1.0
    exchange([eu, us])
    assert [us.ask(), us.ask()] == [None, RejectCause.TENANT_REQUESTS]
    clock.now += 1.0
    exchange([eu, us])
    assert eu.ask() is RejectCause.TENANT_REQUESTS
    clock.now += 20.0
    assert eu.ask() is None


def test_requests_at_once_of_a_cell_that_is_not_heard_count_no_more() -> None:
    eu, us, clock = two(max_concurrency=2)
    assert [eu.ask(), eu.ask()] == [None, None]
    clock.now += 0.5
    exchange([eu, us])
    assert us.ask() is RejectCause.TENANT_CONCURRENCY
    clock.now += 3.0
    us.peering.ask()
    assert us.ask() is None


def test_a_guest_counts_at_its_home_alone() -> None:
    eu, us, clock = two(requests_per_minute=1.0)
    assert eu.ask() is None
    guest = make_request("guest", clock.now, tenant="a")
    object.__setattr__(guest, "guest_of", "eu")
    assert us.scheduler.submit(guest, clock.now).cause is None
    assert us.scheduler.tenant_use() == ()
