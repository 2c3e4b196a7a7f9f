"""A submitter that lost its channel to the owner comes back to the same one, whatever was on its way: no id is placed
twice, no lease is left."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from deployments.ownership import entries as module
from deployments.ownership.entries import Entries, EntryState
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.messages import (
    Admitted,
    Cancel,
    Hold,
    Message,
    Placed,
    Refused,
    Release,
    Submit,
    decode,
    waiting_of,
)
from deployments.ownership.session import Session
from deployments.ownership.takeover import Running
from deployments.protocol import Finished, ReplicaFacts
from deployments.scheduling import Ending, Lease, RejectCause, Request, SchedulingPolicy

FACTS = ReplicaFacts("r1", "demo", "http://r1", 1, "n", "generate", 1_024, 8, 2_048, 65_536)


class Channel:
    """One channel of a gateway, at the owner's end. `reported` is what came out of it."""

    numbers = 0

    def __init__(self, owner: LaneOwner, gateway_id: str = "there") -> None:
        Channel.numbers += 1
        self.session = Session(owner, gateway_id, Channel.numbers)

    def say(self, *messages: Message) -> None:
        for message in messages:
            self.session.take(message)

    @property
    def reported(self) -> list[Message]:
        return [decode(line) for line in self.session._outbox._lines]

    @property
    def placed(self) -> list[str]:
        return [f"{one.request_id}-{one.attempt}" for one in self.reported if isinstance(one, Placed)]

    @property
    def admitted(self) -> list[bool]:
        return [one.admission.accepted for one in self.reported if isinstance(one, Admitted)]


@pytest.fixture
async def owner() -> LaneOwner:
    return LaneOwner(SchedulingPolicy())


def submit(attempts: int = 0, admitted: bool = True) -> Submit:
    now = time.monotonic()
    return Submit(waiting_of(Request("a", 10, 10, now, now + 1.0, now + 60.0, attempts=attempts), now), admitted)


def account(attempt_id: str, sequences: int = 1) -> Finished:
    return Finished(attempt_id, 200, sequences, 10, 0, 5, 0, 0.0, 0.1, 0.1, 0.1, 0.2)


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


async def test_what_waits_and_is_submitted_again_is_answered_again(owner: LaneOwner) -> None:
    channel = Channel(owner)
    for _ in range(2):
        channel.say(submit(admitted=False))
    assert channel.admitted == [True, True]
    assert len(owner.scheduler.lanes.jobs) == 1
    channel.say(Cancel("a"))


async def test_an_id_of_another_gateway_is_turned_away(owner: LaneOwner) -> None:
    mine, other = Channel(owner, "mine"), Channel(owner, "other")
    for _ in range(2):
        mine.say(submit())
        other.say(submit())
        owner.replica_up(FACTS)
    assert mine.placed == ["a-1"]
    assert [one.cause for one in other.reported if isinstance(one, Admitted)] == [RejectCause.DUPLICATE_ID] * 2
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


async def test_what_ended_is_not_adopted_again(owner: LaneOwner) -> None:
    """A claim was answered before the lease ended, and is heard of after that; also of a lease that only its submitter
    had told of."""
    owner.replica_up(FACTS)
    channel = Channel(owner)
    channel.say(submit())
    reported = Running(Lease(0, submit().waiting.request(time.monotonic()), "r1", 0.0, 1, 10, 20, 5, 0), True)
    channel.say(Release("a-1", Ending.FINISHED))
    owner.replica_up(FACTS, [reported])
    owner.finished(account("a-1"))
    owner.replica_up(FACTS, [reported])
    declared = replace(reported, lease=replace(reported.lease, request=replace(reported.lease.request, request_id="b")))
    channel.say(Hold("b-1"), Release("b-1", Ending.FINISHED))
    owner.replica_up(FACTS, [declared])
    gone = replace(reported, lease=replace(reported.lease, request=replace(reported.lease.request, request_id="c")))
    owner.finished(account("c-1"))
    owner.replica_up(FACTS, [gone])
    assert owner.snapshot().adopted == 0


async def test_a_lease_of_an_owner_before_is_its_submitters_whoever_speaks_first(owner: LaneOwner) -> None:
    request = submit().waiting.request(time.monotonic())
    for name, submitter_first in (("a", True), ("b", False)):
        reported = Running(Lease(0, replace(request, request_id=name), "r1", 0.0, 2, 10, 20, 5, 0), True)
        channel = Channel(owner, name)
        if submitter_first:
            channel.say(Hold(f"{name}-2"))
        owner.replica_up(FACTS, [reported])
        if not submitter_first:
            assert owner.entries.replicas_of_orphans == {"r1"}
            channel.say(Hold(f"{name}-2"))
        assert owner.entries.replicas_of_orphans == set()
        channel.say(Refused(waiting_of(replace(request, request_id=name), time.monotonic()), "r2", 2, None))
        assert channel.placed == [f"{name}-3"], "an adopted one waits as its submitter describes it"
        channel.say(Release(f"{name}-3", Ending.FINISHED))
    assert owner.snapshot().adopted == 2


async def test_each_attempt_is_the_next_whatever_the_lease_was(owner: LaneOwner) -> None:
    owner.replica_up(FACTS)
    channel = Channel(owner)
    channel.say(submit(attempts=4))
    for attempt in (5, 6):
        channel.say(Refused(submit().waiting, "r2", attempt, None))
    owner.replica_lost("r1")
    channel.say(Refused(submit().waiting, "r2", 7, None))
    owner.replica_up(FACTS)
    assert channel.placed == ["a-5", "a-6", "a-7", "a-8"]
    channel.say(Release("a-8", Ending.FINISHED))


def test_the_table_takes_no_other_way() -> None:
    entries = Entries()
    entry = entries.begin("a", 0, EntryState.WAITING)
    for state in (EntryState.ORPHANED, EntryState.ENDED, EntryState.DECLARED):
        with pytest.raises(AssertionError, match=rf"a-0: waiting -> {state}"):
            entries.move(entry, state)
    entries.move(entry, EntryState.CLOSED)
    assert entries.get("a") is None, "one that was never placed is forgotten at once"
    entries.begin("a", 2, EntryState.DECLARED)
    with pytest.raises(AssertionError, match="attempt 1 after 2"):
        entries.begin("a", 1, EntryState.RUNNING)


def test_the_table_forgets_the_oldest_that_ended_and_nothing_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 3)
    entries = Entries()
    entries.begin("departure_tracker", 1, EntryState.DECLARED)
    entries.begin("again", 1, EntryState.CLOSED)
    again = entries.begin("again", 1, EntryState.WAITING)
    for number in range(10):
        entries.begin(str(number), 1, EntryState.CLOSED)
    names = ["departure_tracker", "again", *map(str, range(10))]
    assert [name for name in names if entries.get(name)] == ["departure_tracker", "again", "7", "8", "9"]
    assert entries.live == 2
    entries.move(again, EntryState.CLOSED)
    assert [name for name in names if entries.get(name)] == ["departure_tracker", "again", "8", "9"]
