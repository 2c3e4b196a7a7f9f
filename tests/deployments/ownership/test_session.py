"""The owner's end of a channel: what another gateway asks is done, what is decided is sent, and what is left when it
breaks."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.messages import (
    Admitted,
    Beat,
    Cancel,
    FirstToken,
    GuestRefused,
    Message,
    Placed,
    PlacedAtPeer,
    Recalled,
    Refused,
    Release,
    Submit,
    admitted_of,
    decode,
    waiting_of,
)
from deployments.ownership.session import Session
from deployments.peering import HopRefusal
from deployments.protocol import ReplicaFacts, ReplicaState
from deployments.scheduling import Admission, AdmissionKind, Ending, Request, SchedulingPolicy
from tests.deployments.ownership.peering_rig import PeeredOwner, RealClock, guest_facts

FACTS = ReplicaFacts("r1", "demo", "http://r1", 1, "n", "generate", 1_024, 8, 2_048, 65_536)


def request(name: str = "q", wait_s: float = 60.0) -> Request:
    now = time.monotonic()
    return Request(name, 10, 10, now, now + 1.0, now + wait_s)


def submit(name: str = "q", admitted: bool = False, wait_s: float = 60.0) -> Submit:
    return Submit(waiting_of(request(name, wait_s), time.monotonic()), admitted)


class Line:
    """A session, and what it sends."""

    def __init__(self, owner: LaneOwner, gateway: str = "other", channel: int = 1) -> None:
        self.session = Session(owner, gateway, channel)
        self._lines = self.session.lines()
        self._read: list[Message] = []

    async def sent(self, count: int) -> list[Message]:
        """The next so many messages, beats apart."""
        async with asyncio.timeout(20):
            while len(self._read) < count:
                piece = await anext(self._lines)
                self._read += [message for line in piece.splitlines() if not isinstance(message := decode(line), Beat)]
        found, self._read = self._read[:count], self._read[count:]
        return found

    async def rest(self) -> list[Message]:
        """All that is still to come, once it has ended."""
        return self._read + [
            m async for piece in self._lines for line in piece.splitlines() if not isinstance(m := decode(line), Beat)
        ]


@pytest.fixture
async def owner() -> AsyncIterator[LaneOwner]:
    made = LaneOwner(SchedulingPolicy(max_waiting=3))
    made.replicas.up(FACTS)
    yield made
    made.close()


async def test_a_channel_begins_with_a_sign_of_life(owner: LaneOwner) -> None:
    assert decode(await anext(Session(owner, "other").lines())) == Beat()


async def test_a_request_is_taken_through_its_life(owner: LaneOwner) -> None:
    line = Line(owner)
    line.session.take(submit())
    (admitted,) = await line.sent(1)
    assert isinstance(admitted, Admitted)
    assert (admitted.request_id, admitted.kind) == ("q", AdmissionKind.QUEUE)
    owner.replica_up(FACTS)
    (placed,) = await line.sent(1)
    assert isinstance(placed, Placed)
    assert (placed.request_id, placed.replica_id, placed.url, placed.attempt) == ("q", "r1", "http://r1", 1)
    replica = owner.scheduler.fleet.by_id["r1"]
    assert replica.prefill_tokens == 10
    line.session.take(FirstToken("q-1"))
    assert replica.prefill_tokens == 0
    line.session.take(Release("q-1", Ending.FINISHED))
    assert (replica.leases, owner.scheduler.tally.endings["finished"]) == ({}, 1)


async def test_a_channel_that_broke_leaves_nothing_waiting_and_takes_nothing_more(owner: LaneOwner) -> None:
    line = Line(owner)
    line.session.take(submit())
    line.session.end()
    line.session.end()
    assert (line.session.is_open, owner.scheduler.lanes.jobs) == (False, {})
    line.session.take(submit("late"))
    assert owner.scheduler.lanes.jobs == {}
    assert [type(message) for message in await line.rest()] == [Admitted]


async def test_a_later_channel_ends_the_one_before_and_an_earlier_one_is_closed_from_the_start(
    owner: LaneOwner,
) -> None:
    first, second = Line(owner, channel=1), Line(owner, channel=3)
    assert (first.session.is_open, second.session.is_open, second.session.gateway_id) == (False, True, "other")
    overtaken = Line(owner, channel=2)
    assert not overtaken.session.is_open
    overtaken.session.take(submit())
    assert owner.scheduler.lanes.jobs == {}
    owner.close()
    assert not second.session.is_open


async def test_who_has_sent_a_request_again_gives_up_only_that(owner: LaneOwner) -> None:
    """A peer sends a hop to a second gateway of the cell, too, and leaves: the first one still waits."""
    first, second = Line(owner, "first"), Line(owner, "second")
    first.session.take(submit())
    for message in (submit(), Cancel("q")):
        second.session.take(message)
    (rejected,) = await second.sent(1)
    assert isinstance(rejected, Admitted)
    assert rejected.cause == "duplicate_id"
    assert list(owner.scheduler.lanes.jobs) == ["q"]
    first.session.take(Cancel("q"))
    assert owner.scheduler.lanes.jobs == {}


async def test_what_its_replica_refuses_waits_again(owner: LaneOwner) -> None:
    line = Line(owner)
    owner.replica_up(FACTS)
    line.session.take(submit())
    await line.sent(2)
    waiting = waiting_of(request(), time.monotonic())
    line.session.take(Refused(waiting, "r1", 1, ReplicaState.DRAINING))
    assert list(owner.scheduler.lanes.jobs) == ["q"]
    assert not owner.scheduler.fleet.by_id["r1"].leases


def test_an_admission_crosses_with_its_wait_estimate() -> None:
    admission = Admission(AdmissionKind.QUEUE, "long", None, (1.0, 2.0), 3.0, None)
    assert admitted_of("q", admission).admission == admission


# Hand-overs.
@pytest.fixture
async def peered() -> AsyncIterator[PeeredOwner]:
    made = PeeredOwner(RealClock())
    made.helpful()
    yield made
    made.owner.close()


async def test_a_hand_over_goes_over_the_channel(peered: PeeredOwner) -> None:
    line = Line(peered.owner)
    line.session.take(submit())
    admitted, first = await line.sent(2)
    assert isinstance(admitted, Admitted)
    assert isinstance(first, PlacedAtPeer)
    assert (first.hop.attempt_id, first.hop.home, first.attempt) == ("q-1", "eu", 1)
    line.session.take(Refused(waiting_of(request(), time.monotonic()), "", 1, None, HopRefusal.LATE))
    peered.helpful()
    (second,) = await line.sent(1)
    assert isinstance(second, PlacedAtPeer)
    assert {first.peer, second.peer} == {"us", "ap"}
    line.session.take(FirstToken("q-2", 0.1))
    line.session.take(Release("q-2", Ending.FINISHED))
    assert peered.is_clean()


async def test_what_a_silent_peer_has_is_recalled_over_the_channel(peered: PeeredOwner) -> None:
    line = Line(peered.owner)
    line.session.take(submit())
    await line.sent(2)
    for peer in peered.peering.core.peers.by_cell.values():
        peer.heard_s -= 60.0
    peered.peering.ask()
    assert await line.sent(1) == [Recalled("q-1")]
    line.session.take(Release("q-1", Ending.CANCELLED))


async def test_a_guest_that_is_refused_hears_so_over_the_channel(peered: PeeredOwner) -> None:
    line, hop = Line(peered.owner), guest_facts(residency=frozenset({"us"}))
    guest = waiting_of(hop.guest(request("g"), time.monotonic()), time.monotonic())
    line.session.take(Submit(guest, False, hop))
    assert await line.sent(1) == [GuestRefused("g-1@us", HopRefusal.RESIDENCY)]
