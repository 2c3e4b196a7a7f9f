"""This end of a channel, against an owner that says what the test tells it: what is sent, who is told, what crosses on
the wire."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from deployments.cell.owners import Ownership
from deployments.ownership.channel import NotOwner, RemoteOwner
from deployments.ownership.messages import (
    LANES_PATH,
    Admitted,
    Beat,
    Cancel,
    Expired,
    FirstToken,
    GuestRefused,
    Hold,
    Message,
    Placed,
    PlacedAtPeer,
    Recalled,
    Refused,
    Release,
    Submit,
    decode,
    encode,
)
from deployments.ownership.roles import PeerLease
from deployments.peering import HopRefusal
from deployments.protocol import ReplicaState
from deployments.scheduling import (
    Admission,
    AdmissionKind,
    Ending,
    Lease,
    PickReason,
    Placement,
    RejectCause,
    Request,
    WaitReason,
)
from tests.deployments.gateway.rig import until
from tests.deployments.ownership.peering_rig import guest_facts

FACTS = guest_facts("q", 4)
REQUEST = Request("q", 70, 30, 0.0, 5.0, 60.0, 2, "batch", "b", (7, 8), 64, 3)
LEASE = Lease(0, REQUEST, "r1", 1.0, 4, 140, 300, 31, 1)
PLACED = Placed("q", "r1", "http://r1", PickReason.LEAST_DECODE, "long", True, 3.5, [1.0, 2.0], 4, 140, 300, 31, 1)
ADMITTED = Admitted("q", AdmissionKind.QUEUE, "long", None, [1.0, 2.0], None, None, WaitReason.ITL)
REJECTED = dataclasses.replace(ADMITTED, kind=AdmissionKind.REJECT, cause=RejectCause.LANE_FULL)


class Submitter:
    """Keeps what it was told, in order."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def admitted(self, request_id: str, admission: Admission) -> None:
        self.heard.append(("admitted", request_id, admission))

    def placed(self, placement: Placement, url: str) -> None:
        self.heard.append(("placed", placement, url))

    def expired(self, request_id: str) -> None:
        self.heard.append(("expired", request_id))

    def moved(self) -> None:
        self.heard.append(("moved",))

    def handed_over(self, peer_lease: PeerLease) -> None:
        self.heard.append(("handed over", peer_lease))

    def recalled(self, attempt_id: str) -> None:
        self.heard.append(("recalled", attempt_id))

    def guest_refused(self, request_id: str, refusal: HopRefusal) -> None:
        self.heard.append(("guest_refused", request_id, refusal))


class Owner:
    """The other end. `got` is what it was sent, beats apart."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.query: dict[str, str] = {}
        self.status = 200
        self._say: asyncio.Queue[Message | None] = asyncio.Queue()
        self._news = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        app = web.Application()
        app.router.add_post(LANES_PATH, self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def say(self, *messages: Message) -> None:
        for message in messages:
            self._say.put_nowait(message)

    def hang_up(self) -> None:
        self._say.put_nowait(None)

    async def until(self, count: int) -> list[Message]:
        """Waits for so many messages."""
        async with asyncio.timeout(20), self._news:
            await self._news.wait_for(lambda: len(self.got) >= count)
        return self.got

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.query = dict(request.query)
        if self.status != 200:
            return web.Response(status=self.status)
        response = web.StreamResponse()
        await response.prepare(request)
        listening = asyncio.create_task(self._listen(request))
        while (message := await self._say.get()) is not None:
            await response.write(encode(message))
        listening.cancel()
        return response

    async def _listen(self, request: web.Request) -> None:
        while line := await request.content.readline():
            if not isinstance(message := decode(line), Beat):
                async with self._news:
                    self.got.append(message)
                    self._news.notify_all()


class Channel:
    """A channel that stands."""

    def __init__(self, owner: Owner, remote: RemoteOwner, running: asyncio.Task[None]) -> None:
        self.owner, self.remote, self.running = owner, remote, running
        self.submitter = Submitter()

    async def heard(self, *messages: Message) -> list[tuple[object, ...]]:
        """What the submitter hears of these, each of which has been read when this returns."""
        mark = Submitter()
        self.remote.submit(mark, dataclasses.replace(REQUEST, request_id="mark"))
        self.owner.say(*messages, Expired("mark"))
        await until(lambda: bool(mark.heard))
        return self.submitter.heard


@pytest.fixture
async def channel() -> AsyncIterator[Channel]:
    owner = Owner()
    url = await owner.start()
    remote, opened = RemoteOwner(Ownership("demo", 7, "other", url), 5), asyncio.Event()
    async with aiohttp.ClientSession() as session:
        running = asyncio.create_task(remote.run(session, "me", opened.set))
        owner.say(Beat())
        await asyncio.wait_for(opened.wait(), 20)
        yield Channel(owner, remote, running)
        owner.hang_up()
        await asyncio.wait_for(asyncio.wait([running]), 20)
    await owner.stop()


async def test_the_channel_names_itself(channel: Channel) -> None:
    assert channel.owner.query == {"model": "demo", "gateway": "me", "epoch": "7", "channel": "5"}
    assert channel.remote.epoch == 7


async def test_everything_that_an_owner_is_told_is_sent(channel: Channel) -> None:
    remote = channel.remote
    remote.submit(channel.submitter, REQUEST, True)
    remote.cancel("q")
    remote.cancel("q")
    remote.hold(channel.submitter, "q-1")
    remote.first_token("q-2")
    remote.release("q-3", Ending.CANCELLED)
    remote.refused(channel.submitter, LEASE, ReplicaState.DRAINING)
    remote.refused(channel.submitter, LEASE, None)
    submit, *rest, drained, unreachable = await channel.owner.until(7)
    assert isinstance(submit, Submit)
    assert submit.admitted
    assert dataclasses.replace(submit.waiting.request(0.0), arrived_s=0.0, deadline_s=5.0, expires_s=60.0) == REQUEST
    assert rest == [Cancel("q"), Hold("q-1"), FirstToken("q-2"), Release("q-3", Ending.CANCELLED)], (
        "what is given up already is not again"
    )
    for message, state in ((drained, "draining"), (unreachable, None)):
        assert isinstance(message, Refused)
        assert (message.waiting.request_id, message.replica_id, message.attempt, message.state) == ("q", "r1", 4, state)


async def test_a_request_is_admitted_and_placed(channel: Channel) -> None:
    channel.remote.submit(channel.submitter, REQUEST)
    admitted, placed = await channel.heard(ADMITTED, PLACED)
    assert admitted == ("admitted", "q", ADMITTED.admission)
    assert placed[0] == "placed"
    assert placed[2] == "http://r1"
    assert isinstance(placed[1], Placement)
    assert placed[1].request == REQUEST
    assert await channel.heard(PLACED, Expired("q")) == [admitted, placed], "it waits no more"
    channel.remote.hold(channel.submitter, "last")
    sent = await channel.owner.until(4)
    assert [type(message) for message in sent] == [Submit, Submit, Submit, Hold], "what is said twice ends no lease"


async def test_a_refused_request_is_placed_again(channel: Channel) -> None:
    channel.remote.refused(channel.submitter, LEASE, None)
    ((kind, _, _),) = await channel.heard(PLACED)
    assert kind == "placed"


@pytest.mark.parametrize("end", [REJECTED, Expired("q")])
async def test_what_was_turned_away_or_expired_is_over(channel: Channel, end: Message) -> None:
    channel.remote.submit(channel.submitter, REQUEST)
    assert len(await channel.heard(end)) == 1
    channel.remote.cancel("q")
    channel.remote.hold(channel.submitter, "last")
    assert Cancel("q") not in await channel.owner.until(3)
    assert len(await channel.heard(end, end)) == 1


async def test_a_cancel_that_crosses_the_admission_is_said_again(channel: Channel) -> None:
    channel.remote.submit(channel.submitter, REQUEST)
    channel.remote.cancel("q")
    assert await channel.heard(ADMITTED, REJECTED) == []
    channel.remote.hold(channel.submitter, "last")
    sent = [message for message in await channel.owner.until(5) if isinstance(message, Cancel)]
    assert sent == [Cancel("q"), Cancel("q")], "the second for the admission; a rejection needs none"


async def test_a_cancel_that_crosses_the_placement_ends_the_lease(channel: Channel) -> None:
    channel.remote.submit(channel.submitter, REQUEST)
    channel.remote.cancel("q")
    assert await channel.heard(PLACED) == []
    assert Release("q-4", Ending.CANCELLED) in await channel.owner.until(4)


async def test_nothing_is_sent_after_the_end(channel: Channel) -> None:
    channel.owner.hang_up()
    await asyncio.wait_for(channel.running, 20)
    channel.remote.submit(channel.submitter, REQUEST)
    assert channel.remote._outbox._lines == []
    channel.owner.say(Beat())


async def test_whoever_does_not_own_the_model_is_named() -> None:
    owner = Owner()
    owner.status = 409
    url = await owner.start()
    async with aiohttp.ClientSession() as session:
        with pytest.raises(NotOwner, match=r"^other answered 409$"):
            await RemoteOwner(Ownership("demo", 7, "other", url)).run(session, "me", lambda: None)
    assert owner.query["channel"] == "0"
    await owner.stop()


# Hand-overs.
async def test_a_guest_is_sent_with_its_hop_and_refused_once(channel: Channel) -> None:
    channel.remote.submit(channel.submitter, REQUEST, False, FACTS)
    (sent,) = await channel.owner.until(1)
    assert isinstance(sent, Submit)
    assert sent.hop == FACTS
    refused = GuestRefused("q", HopRefusal.LATE)
    assert await channel.heard(refused, refused) == [("guest_refused", "q", HopRefusal.LATE)]
    channel.remote.cancel("q")
    channel.remote.hold(channel.submitter, "last")
    assert Cancel("q") not in await channel.owner.until(3), "the owner does not have it"


async def test_a_request_is_handed_over_and_recalled(channel: Channel) -> None:
    channel.remote.submit(channel.submitter, REQUEST)
    placed = PlacedAtPeer("us", 4, FACTS, 0.25)
    heard = await channel.heard(placed, Recalled("q-4"), Recalled("q-5"))
    (_, peer_lease), *rest = heard
    assert isinstance(peer_lease, PeerLease)
    assert (peer_lease.peer, peer_lease.hop, peer_lease.answer_s) == ("us", FACTS, 0.25)
    assert (peer_lease.lease.attempt_id, peer_lease.lease.request) == ("q-4", REQUEST)
    assert rest == [("recalled", "q-4")], "nobody holds another attempt"


async def test_what_a_peer_refuses_waits_again_and_may_be_placed(channel: Channel) -> None:
    channel.remote.submit(channel.submitter, REQUEST)
    ((_, peer_lease),) = await channel.heard(PlacedAtPeer("us", 4, FACTS, 0.25))
    assert isinstance(peer_lease, PeerLease)
    channel.remote.refused(channel.submitter, peer_lease.lease, HopRefusal.LOST)
    (refused,) = [one for one in await channel.owner.until(3) if isinstance(one, Refused)]
    assert (refused.attempt, refused.state, refused.refusal) == (4, None, HopRefusal.LOST)
    assert (await channel.heard(PLACED))[-1][0] == "placed"


async def test_what_is_handed_over_when_nobody_wants_it_any_more_is_released(channel: Channel) -> None:
    channel.remote.submit(channel.submitter, REQUEST)
    channel.remote.cancel("q")
    assert await channel.heard(PlacedAtPeer("us", 4, FACTS, 0.25)) == []
    assert Release("q-4", Ending.CANCELLED) in await channel.owner.until(4)
