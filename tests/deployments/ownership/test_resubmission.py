"""A holder that lost its channel to the owner comes back to the same one, whatever was on its way: no id is placed twice, no lease is left."""

import time
from collections.abc import Iterator

import pytest

from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.messages import Admitted, Cancel, Hold, Message, Placed, Refused, Release, Submit, decode, waiting_of
from deployments.ownership.session import Session
from deployments.protocol import Finished, ReplicaFacts
from deployments.scheduling import Ending, Policy, RejectCause, Request

FACTS = ReplicaFacts("r1", "demo", "http://r1", 1, "n", "generate", 1_024, 8, 2_048, 65_536)


class Channel:
    """One channel of a gateway, at the owner's end. `told` is what came out of it."""

    numbers = 0

    def __init__(self, owner: LaneOwner, gateway_id: str = "there") -> None:
        Channel.numbers += 1
        self.session = Session(owner, gateway_id, Channel.numbers)

    def say(self, *messages: Message) -> None:
        for message in messages:
            self.session.take(message)

    @property
    def told(self) -> list[Message]:
        return [decode(line) for line in self.session._outbox._lines]

    @property
    def placed(self) -> list[str]:
        return [f"{one.request_id}-{one.attempt}" for one in self.told if isinstance(one, Placed)]

    @property
    def admitted(self) -> list[bool]:
        return [one.admission.accepted for one in self.told if isinstance(one, Admitted)]


@pytest.fixture
async def owner() -> LaneOwner:
    return LaneOwner(Policy())


def submit(attempts: int = 0, admitted: bool = True) -> Submit:
    now = time.monotonic()
    return Submit(waiting_of(Request("a", 10, 10, now, now + 1.0, now + 60.0, attempts=attempts), now), admitted)


def account(engine_id: str, sequences: int = 1) -> Finished:
    return Finished(engine_id, 200, sequences, 10, 0, 5, 0, 0.0, 0.1, 0.1, 0.1, 0.2)


def leases(owner: LaneOwner) -> int:
    return sum(replica.leases for replica in owner.snapshot().replicas)


@pytest.fixture(autouse=True)
def balanced(owner: LaneOwner) -> Iterator[None]:
    """Whatever happened, the books balance in the end."""
    yield
    snapshot = owner.snapshot()
    assert snapshot.placed + snapshot.adopted == sum(snapshot.endings.values())
    assert not owner.entries.live
    assert not owner.scheduler.lanes.jobs


async def test_the_channel_breaks_as_placed_is_answered(owner: LaneOwner) -> None:
    owner.replica_up(FACTS)
    first = Channel(owner)
    first.say(submit(admitted=False))
    assert first.placed == ["a-1"]
    first.session.end()
    second = Channel(owner)
    second.say(submit(admitted=False))  # neither answer had come
    assert (second.admitted, second.placed) == ([True], ["a-2"])
    assert leases(owner) == 1
    second.say(Release("a-2", Ending.FINISHED))


async def test_it_comes_back_before_the_owner_sees_that_it_was_gone(owner: LaneOwner) -> None:
    first = Channel(owner)
    first.say(submit())
    second = Channel(owner)
    second.say(submit())
    owner.replica_up(FACTS)
    assert (first.placed, second.placed) == ([], ["a-1"])
    first.say(Cancel("a"), Release("a-1", Ending.CANCELLED))  # what was on its way
    first.session.end()
    assert leases(owner) == 1
    second.say(Release("a-1", Ending.FINISHED))


async def test_an_earlier_channel_that_arrives_late_ends_nothing(owner: LaneOwner) -> None:
    owner.replica_up(FACTS)
    second = Session(owner, "there", 2)
    late = Session(owner, "there", 1)
    assert (second.is_open, late.is_open) == (True, False)
    second.take(submit())
    late.take(Cancel("a"))
    late.end()
    assert leases(owner) == 1
    second.take(Release("a-1", Ending.FINISHED))


async def test_a_refusal_is_lost_with_its_channel(owner: LaneOwner) -> None:
    owner.replica_up(FACTS)
    first = Channel(owner)
    first.say(submit())
    first.session.end()
    second = Channel(owner)
    second.say(submit(attempts=1))  # it had heard of a-1, which its replica refused
    assert second.placed == ["a-2"]
    assert owner.snapshot().endings["refused"] == 1
    second.say(Release("a-2", Ending.FINISHED))


async def test_what_ended_while_its_holder_was_gone_is_not_issued_again(owner: LaneOwner) -> None:
    owner.replica_up(FACTS)
    first = Channel(owner)
    first.say(submit())
    first.session.end()
    owner.replica_up(FACTS, [])  # it does not run there
    assert leases(owner) == 0
    second = Channel(owner)
    second.say(submit())
    assert second.placed == ["a-2"]
    second.session.end()
    owner.replica_lost("r1")
    third = Channel(owner)
    third.say(submit())
    third.session.end()  # given up while it waits
    owner.replica_up(FACTS)
    fourth = Channel(owner)
    fourth.say(submit())
    assert fourth.placed == ["a-3"]
    fourth.say(Release("a-3", Ending.FINISHED))


async def test_every_message_may_come_twice(owner: LaneOwner) -> None:
    owner.replica_up(FACTS)
    channel = Channel(owner)
    for _ in range(2):
        channel.say(submit())
    assert channel.placed == ["a-1"]
    refused = Refused(submit().waiting, "r1", 1, None)
    for _ in range(2):
        channel.say(refused)
    owner.replica_up(FACTS)
    channel.say(refused)
    assert channel.placed == ["a-1", "a-2"]
    for _ in range(2):
        channel.say(Hold("a-2"), Release("a-2", Ending.FINISHED))
    assert owner.snapshot().placed == 2


async def test_an_id_of_another_gateway_is_turned_away(owner: LaneOwner) -> None:
    mine, other = Channel(owner, "mine"), Channel(owner, "other")
    for _ in range(2):
        mine.say(submit())
        other.say(submit())
        owner.replica_up(FACTS)
    assert mine.placed == ["a-1"]
    assert [one.cause for one in other.told if isinstance(one, Admitted)] == [RejectCause.DUPLICATE_ID] * 2
    mine.say(Release("a-1", Ending.FINISHED))


async def test_an_answer_that_was_sent_before_its_holder_went_is_finished(owner: LaneOwner) -> None:
    """The release was lost with the channel; the engine's account had come before."""
    owner.replica_up(FACTS)
    channel = Channel(owner)
    channel.say(submit())
    owner.finished(account("a-1"))
    channel.session.end()
    assert owner.snapshot().endings["finished"] == 1


@pytest.mark.parametrize("sequences", [0, 1])
async def test_a_lease_without_a_holder_ends_with_its_engines_account(owner: LaneOwner, sequences: int) -> None:
    owner.replica_up(FACTS)
    channel = Channel(owner)
    channel.say(submit())
    channel.session.end()
    owner.finished(account("a-1", sequences))
    assert owner.snapshot().endings["finished" if sequences else "failed"] == 1
