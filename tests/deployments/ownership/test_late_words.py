"""Whom a dispatcher follows: an older word moves nobody, and what an owner before had under way changes nothing under
the next."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import aiohttp
import pytest

from deployments.cell.owners import Ownership
from deployments.ownership import owner_tracker as module
from deployments.ownership.owner_tracker import Overtaken, OwnerTracker
from deployments.ownership.takeover import Running
from deployments.scheduling import Binding, Lease, SchedulingPolicy
from tests.deployments.ownership.dispatcher_rig import Dispatcher, facts, make_dispatcher, request

MINE, OTHERS = "me", "other"


class Registrar:
    """Notes what the directory is told."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, int]] = []

    def overtaken(self, model: str, highest: int) -> None:
        self.reported.append((model, highest))

    def doubt(self, gateway_id: str) -> None:
        self.reported.append((gateway_id, 0))


class Claims:
    """In place of `claim`: each waits for its answer, though its task is cancelled meanwhile."""

    def __init__(self) -> None:
        self.answers: dict[int, asyncio.Future[list[Running]]] = {}
        self.cancelled: list[int] = []

    async def __call__(self, session: object, facts: object, epoch: int, now: float) -> list[Running]:
        answer = self.answers[epoch] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            self.cancelled.append(epoch)
            return await answer


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Claims:
    held = Claims()
    monkeypatch.setattr(module, "claim", held)
    return held


@pytest.fixture
def registrar() -> Registrar:
    return Registrar()


@pytest.fixture
async def one(registrar: Registrar) -> OwnerTracker:
    dispatcher = Dispatcher(make_dispatcher().model, MINE)
    return OwnerTracker(
        dispatcher, MINE, cast(aiohttp.ClientSession, None), registrar, lambda: (SchedulingPolicy(), Binding())
    )


@pytest.fixture(autouse=True)
def closed(one: OwnerTracker) -> Iterator[None]:
    """Nothing goes on after the test."""
    yield
    assert one._orphans is None, "the test closes it"


def word(epoch: int, gateway_id: str = MINE) -> Ownership:
    return Ownership("demo", epoch, gateway_id, f"http://{gateway_id}")


async def soon(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_an_older_word_of_the_directory_moves_nobody(one: OwnerTracker) -> None:
    one.reported(word(2))
    own = one.dispatcher.own
    assert one.epoch == 2
    for late in (word(1, OTHERS), word(2), None, word(1)):
        one.reported(late)
    assert one.dispatcher.own is own
    assert (one.taken_over, one.highest) == (1, 2)
    one.reported(word(3))
    assert (one.epoch, one.taken_over) == (3, 2)
    one.close()


async def test_a_late_refusal_of_an_owner_before_does_not_depose_the_next(
    one: OwnerTracker, claims: Claims, registrar: Registrar
) -> None:
    one.dispatcher.replica_up(facts())
    one.reported(word(1))
    await soon(lambda: 1 in claims.answers)
    one.reported(word(3))
    await soon(lambda: 3 in claims.answers)
    claims.answers[1].set_exception(Overtaken(3))
    claims.answers[3].set_result([])
    await soon(lambda: one.dispatcher.own is not None and one.dispatcher.own.scheduler.fleet.by_id)
    assert (one.epoch, registrar.reported, claims.cancelled) == (3, [], [1])
    one.close()


async def test_a_late_claim_of_an_owner_before_brings_it_nothing(one: OwnerTracker, claims: Claims) -> None:
    one.dispatcher.replica_up(facts())
    one.reported(word(1))
    before = one.dispatcher.own
    assert before is not None
    await soon(lambda: 1 in claims.answers)
    one.reported(word(3))
    await soon(lambda: 3 in claims.answers)
    reported = Running(Lease(0, request("a"), "r1", 0.0, 1, 10, 20, 5, 0), False)
    claims.answers[1].set_result([reported])
    claims.answers[3].set_result([reported])
    await soon(lambda: one.dispatcher.own is not None and one.dispatcher.own.snapshot().adopted)
    assert (before.snapshot().adopted, before.entries.live) == (0, 0)
    one.close()


async def test_an_engines_refusal_is_told_with_the_epoch_that_it_has_seen(
    one: OwnerTracker, claims: Claims, registrar: Registrar
) -> None:
    one.dispatcher.replica_up(facts())
    one.reported(word(1))
    await soon(lambda: 1 in claims.answers)
    claims.answers[1].set_exception(Overtaken(5))
    await soon(lambda: registrar.reported)
    assert (one.epoch, one.highest, registrar.reported) == (None, 5, [("demo", 5)])
    one.close()
