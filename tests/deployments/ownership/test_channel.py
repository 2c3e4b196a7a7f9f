"""A channel, both its ends: what crosses comes out as it went in, nonsense is refused by the name of its field, silence
is noticed, and messages that come twice or late change nothing. Whole runs are in `test_shaky_cell.py`."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import aiohttp
import hypothesis.strategies as st
import pytest
from aiohttp import web
from hypothesis import given

from deployments.cell.owners import Ownership
from deployments.ownership import channel, messages
from deployments.ownership.channel import MessageOutbox, NotOwner, RemoteOwner, Session
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.messages import (
    LANES_PATH,
    VERSION,
    Admitted,
    Beat,
    Cancel,
    Died,
    Expired,
    FirstToken,
    GuestRefused,
    Hold,
    Message,
    MessageReader,
    Opening,
    Placed,
    PlacedAtPeer,
    Recalled,
    Refused,
    Release,
    Submit,
    Suspected,
    encode,
    moved,
)
from deployments.ownership.record import GuestNotTaken, Rejected, RequestState
from deployments.ownership.roles import PeerLease
from deployments.peering import HopFacts, HopRefusal
from deployments.protocol import Finished, FirstTokens, ReplicaState
from deployments.scheduling import Admission, Binding, Ending, Lease, Placement, RejectCause, Request, SchedulingPolicy
from deployments.scheduling.policy import TenantPolicy
from deployments.wire import WireError
from tests.deployments.ownership.dispatcher_rig import MODEL
from tests.deployments.ownership.lane_owner_rig import account, facts, request
from tests.deployments.ownership.peering_rig import PeeredOwner, guest_facts, owner_time
from tests.http_server import answering

KINDS: tuple[type[Message], ...] = (
    Submit,
    Cancel,
    Hold,
    FirstToken,
    Died,
    Release,
    Refused,
    Admitted,
    Placed,
    Expired,
    Suspected,
    Beat,
    PlacedAtPeer,
    Recalled,
    GuestRefused,
    Finished,
)
st.register_type_strategy(int, st.integers(-(1 << 63), 1 << 63))
st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(HopFacts, st.just(guest_facts()))
MESSAGES: st.SearchStrategy[Message] = st.one_of(*(st.from_type(kind) for kind in KINDS))
OPENING = encode(Opening(VERSION))


@pytest.mark.whole
@given(st.lists(MESSAGES, max_size=4), st.integers(1, 200))
def test_messages_cross_in_whatever_pieces_they_come(messages: list[Message], size: int) -> None:
    data, reader = OPENING + b"".join(map(encode, messages)), MessageReader()
    found = [one for start in range(0, len(data), size) for one in reader.feed(data[start : start + size])]
    assert found == messages
    assert [type(one) for one in found] == [type(one) for one in messages]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (encode(Opening(9)), rf"begins with Opening\(version=9\); allowed: Opening\(version={VERSION}\)"),
        (encode(Beat()), r"begins with Beat\(\)"),
        (OPENING + encode(Release("a", "no")), r"Release: .* at `\$\.ending`"),  # type: ignore[arg-type]
        (OPENING + encode(Cancel(5)), r"Cancel: .* at `\$\.request_id`"),  # type: ignore[arg-type]
        (b"nonsense\n", r"of \d+ bytes; allowed: 1048576"),
        (b"\x00\x00\x00\x01\x01", "tuple"),
        (b"\x00\x00\x00\x04\x92\xa1x\x80", "kind 'x'"),
    ],
)
def test_what_is_no_message_is_refused_and_named(data: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        MessageReader().feed(data)


def test_a_request_keeps_its_age_on_another_clock() -> None:
    one = request()
    there = moved(one, 1_000.0)
    assert [there.arrived_s - one.arrived_s, there.deadline_s - one.deadline_s, there.expires_s - one.expires_s] == (
        pytest.approx([1_000.0] * 3)
    )


async def test_messages_are_sent_at_once_in_order_and_a_beat_where_there_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "BEAT_S", 0.001)
    outbox = MessageOutbox()
    pieces = outbox.pieces()
    outbox.put(Cancel("a"))
    assert await anext(pieces) == OPENING + encode(Cancel("a"))
    assert await anext(pieces) == encode(Beat())
    outbox.put(Cancel("b"))
    outbox.close()
    outbox.put(Cancel("c"))
    assert [piece async for piece in pieces] == [encode(Cancel("b"))]


async def test_an_outbox_that_nobody_reads_closes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_MAX_MESSAGES", 3)
    outbox = MessageOutbox()
    for name in "abcd":
        outbox.put(Cancel(name))
    assert [piece async for piece in outbox.pieces()] == [OPENING + encode(Cancel("a")) + encode(Cancel("b"))]


class Ends:
    """Both ends of a channel, and what is under way: nothing crosses before it is let."""

    def __init__(self, owner: LaneOwner) -> None:
        self.owner, self.dispatcher = owner, Dispatcher(MODEL, "other")
        self.remote = RemoteOwner(Ownership("demo", 1, "g", ""), 1, self.dispatcher.records, self.dispatcher)
        self.session = Session(owner, "other", 1)
        self.readers = MessageReader(), MessageReader()
        self.dispatcher.follow(self.remote)

    def crosses(self) -> list[Message]:
        """All that is under way arrives, until nothing is; returns what the owner has said."""
        said: list[Message] = []
        while self.remote._outbox._messages or self.session._outbox._messages:
            up, self.remote._outbox._messages = self.remote._outbox._messages, []
            for message in self.readers[0].feed(b"".join(up)):
                self.session.take(message)
            down, self.session._outbox._messages = self.session._outbox._messages, []
            for message in self.readers[1].feed(b"".join(down)):
                said.append(message)
                self.remote.take(message)
        return said

    async def submitted(self, one: Request) -> Admission:
        submitting = asyncio.create_task(self.dispatcher.submit(one))
        await asyncio.sleep(0)
        self.crosses()
        return await submitting

    async def placed(self) -> Placement:
        """A request that runs."""
        assert (await self.submitted(request())).accepted
        return await self.dispatcher.placement(request())


@pytest.fixture
async def ends(owner: LaneOwner) -> AsyncIterator[Ends]:
    made = Ends(owner)
    yield made
    made.crosses()
    assert (len(made.dispatcher), [*owner.records], owner.scheduler.is_idle) == (0, [], True)


async def test_both_ends_hold_one_record_of_a_request_and_messages_move_both(ends: Ends) -> None:
    placement = await ends.placed()
    here, there = ends.dispatcher.records.get("q"), ends.owner.records.get("q")
    assert here is not None
    assert there is not None
    assert here.state is there.state is RequestState.RUNNING
    assert (placement.lease.attempt_id, ends.dispatcher.url_of(placement.lease)) == ("q-1", "http://r1")
    replica = ends.owner.scheduler.fleet.by_id["r1"]
    for _ in range(2):  # the replica's word, and the first byte
        ends.dispatcher.first_tokens(FirstTokens(("nobody-1", "q-1")))
        assert len(ends.remote._outbox._messages) == 1
        ends.dispatcher.first_token(placement.lease)
    ends.crosses()
    assert (replica.prefill_tokens, len(replica.leases)) == (0, 1)
    ends.dispatcher.refused(placement.lease, None)
    assert here.state is RequestState.WAITING
    ends.crosses()
    ends.owner.replica_up(facts())
    ends.crosses()
    again = await ends.dispatcher.placement(request())
    assert again.lease.attempt_id == "q-2"
    ends.dispatcher.release(again.lease, Ending.FINISHED)
    ends.crosses()
    assert there.state is RequestState.ENDED
    ends.dispatcher.peer_finished(account("q-2"))
    ends.crosses()
    assert (there.state, ends.owner.snapshot().counted) == (RequestState.CLOSED, 1)


async def test_a_request_that_is_rejected_after_all(ends: Ends) -> None:
    ends.owner.replica_state("r1", ReplicaState.DRAINING)
    assert (await ends.submitted(request())).accepted
    ends.owner.expect_replica(time.monotonic() + 300.0)
    ends.crosses()
    with pytest.raises(Rejected) as rejected:
        await ends.dispatcher.placement(request())
    assert rejected.value.admission.cause is RejectCause.STARTING


async def test_a_request_may_run_again_under_its_id(ends: Ends) -> None:
    """No other model had room for what was rejected here."""
    placement = await ends.placed()
    ends.dispatcher.release(placement.lease, Ending.CANCELLED)
    ends.crosses()
    again = await ends.placed()
    assert again.lease.attempt_id == "q-2"
    ends.dispatcher.release(again.lease, Ending.FINISHED)


async def test_a_request_whose_answer_is_kept_is_only_counted(ends: Ends) -> None:
    ends.owner.configure(SchedulingPolicy(tenants={"a": TenantPolicy(requests_per_minute=1)}), Binding())
    causes = []
    for name in ("x", "y"):
        one = replace(request(), request_id=name, prompt_tokens=0, max_tokens=0, tenant="a", cached=True)
        causes.append((await ends.submitted(one)).cause)
    assert causes == [None, RejectCause.TENANT_REQUESTS]
    snapshot = ends.owner.snapshot()
    assert (snapshot.submitted, len(ends.dispatcher), [*ends.owner.records]) == (0, 0, [])


async def test_what_a_peer_has_is_recalled_and_a_guest_refused_over_the_channel(ends: Ends) -> None:
    lease, told = (await ends.placed()).lease, []
    ends.dispatcher.when_lost(lease, lambda: told.append("lost"))
    ends.session.recalled("q-1")
    ends.crosses()
    assert told == ["lost"]
    ends.dispatcher.release(lease, Ending.CANCELLED)
    with pytest.raises(GuestNotTaken, match=r"^spec$"):
        await ends.submitted(replace(request("guest"), guest_of="us"))


async def test_a_lease_at_a_peer_crosses_with_all_that_becomes_of_it() -> None:
    with owner_time() as clock:
        home = PeeredOwner(clock)
        home.helpful()
        ends, one = Ends(home.owner), home.request()
        assert (await ends.submitted(one)).accepted
        first = await ends.dispatcher.placement(one)
        assert isinstance(first, PeerLease)
        ends.dispatcher.came_back(first.lease, HopRefusal.LATE)
        ends.crosses()
        home.helpful()
        ends.crosses()
        again = await ends.dispatcher.placement(one)
        assert isinstance(again, PeerLease)
        assert {first.peer, again.peer} == {"us", "ap"}
        record = ends.dispatcher.records.get("q")
        assert record is not None
        assert record.state is RequestState.AWAY
        ends.dispatcher.first_token(again.lease)
        ends.dispatcher.release(again.lease, Ending.FINISHED)
        ends.dispatcher.peer_finished(account(again.lease.attempt_id))
        ends.crosses()
        assert (len(ends.dispatcher), home.is_clean(), home.owner.snapshot().counted) == (0, True, 1)
        home.owner.close()


async def test_times_of_another_clock_are_moved_to_the_owners(owner: LaneOwner) -> None:
    owner.replica_state("r1", None)
    session, one, sent_s = Session(owner, "other"), moved(request(), 1_000.0), time.monotonic() + 1_000.0
    lease = Lease(9, replace(one, request_id="r"), "r1", sent_s, 1, 10, 30, 20, 0)
    for message in (Submit(one, False, sent_s), Refused(lease, None, sent_s, None)):
        session.take(message)
    ends = [job.request.expires_s - time.monotonic() for job in owner.scheduler.lanes.jobs.values()]
    assert ends == pytest.approx([60.0, 60.0], abs=5.0)
    session.end()


async def test_who_has_sent_a_request_again_gives_up_only_that(owner: LaneOwner) -> None:
    """A peer sends a hop to a second gateway of the cell, too, and leaves: the first one still waits."""
    owner.replica_state("r1", None)
    first, second = Session(owner, "first"), Session(owner, "second")
    submit = Submit(request(), False, time.monotonic())
    first.take(submit)
    for message in (submit, Cancel("q")):
        second.take(message)
    assert list(owner.scheduler.lanes.jobs) == ["q"]
    first.take(Cancel("q"))
    assert owner.scheduler.lanes.jobs == {}


async def open_channel(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], opened: Callable[[], None] = lambda: None
) -> None:
    """To an owner that answers so."""
    dispatcher = Dispatcher(MODEL, "me")
    async with answering(LANES_PATH, answer) as url, aiohttp.ClientSession() as session:
        ownership = Ownership("demo", 7, "other", url)
        await RemoteOwner(ownership, 5, dispatcher.records, dispatcher).run(session, "me", opened)


async def test_who_does_not_own_the_model_says_so() -> None:
    queries: list[dict[str, str]] = []

    async def refuse(request: web.Request) -> web.Response:
        queries.append(dict(request.query))
        return web.Response(status=409)

    with pytest.raises(NotOwner, match=r"^other answered 409$"):
        await open_channel(refuse)
    assert queries == [{"model": "demo", "gateway": "me", "epoch": "7", "channel": "5"}]


@pytest.mark.parametrize(
    ("first", "error"),
    [(OPENING + encode(Beat()), TimeoutError), (encode(Opening(9)), WireError)],
    ids=["silent", "other"],
)
async def test_an_owner_that_falls_silent_or_speaks_another_version_is_noticed(
    monkeypatch: pytest.MonkeyPatch, first: bytes, error: type[Exception]
) -> None:
    monkeypatch.setattr(messages, "UNRESPONSIVE_AFTER_S", 0.3)
    opened: list[float] = []

    async def begins(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(first)
        await asyncio.sleep(60)
        return response

    with pytest.raises(error):
        await open_channel(begins, lambda: opened.append(time.monotonic()))
    assert len(opened) == 1
