"""Hops at the gateway that makes them: which words of the owner, the peer and the client change what, and what happens
when the owner changes."""

import asyncio
from collections.abc import Callable

import pytest

from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.hop_messages import (
    HopBroke,
    HopFinished,
    HopFirstByte,
    HopRejected,
    HopReport,
    HopTaken,
)
from deployments.ownership.record import GuestNotTaken, Records, RequestState, TakenByPeer
from deployments.ownership.roles import Submitter
from deployments.peering import HandOverReason, HopFacts, HopRefusal
from deployments.protocol import ReplicaState
from deployments.scheduling import (
    Admission,
    AdmissionKind,
    Ending,
    Lease,
    PickReason,
    Placement,
    Request,
)
from tests.deployments.ownership.dispatcher_rig import MODEL, request

ADMITTED = Admission(AdmissionKind.QUEUE, "all")


def facts(name: str = "q", number: int = 1) -> HopFacts:
    where = frozenset({"eu", "us"})
    return HopFacts(
        name, "eu", 1, number, 1, HandOverReason.SOONER, "demo", "interactive", "", where, where, 0, 1, 60, 1, 1
    )


class Owner:
    """Decides nothing; keeps what it is told. `hears`: what it does at a report, in the same moment."""

    def __init__(self, records: Records, epoch: int = 1) -> None:
        self.records = records
        self.epoch = epoch
        self.submitted: list[tuple[Request, bool, HopFacts | None]] = []
        self.reports: list[HopReport] = []
        self.cancelled: list[str] = []
        self.released: list[tuple[str, Ending]] = []
        self.hears: Callable[[HopReport], None] = lambda report: None

    def submit(
        self, submitter: Submitter, request: Request, admitted: bool = False, hop: HopFacts | None = None
    ) -> None:
        self.submitted.append((request, admitted, hop))
        self.records.begin(request.request_id, 0, RequestState.WAITING, submitter)
        if hop is None:
            submitter.admitted(request.request_id, ADMITTED)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def hold(self, submitter: Submitter, attempt_id: str) -> None: ...

    def first_token(self, attempt_id: str) -> None: ...

    def died(self, attempt_id: str) -> None: ...

    def release(self, attempt_id: str, ending: Ending) -> None:
        self.released.append((attempt_id, ending))

    def refused(self, submitter: Submitter, lease: Lease, state: ReplicaState | None) -> None: ...

    def hop_reported(self, report: HopReport) -> None:
        self.reports.append(report)
        self.hears(report)


class Carrier:
    """Makes no hop; keeps what it is told."""

    def __init__(self) -> None:
        self.offers: list[tuple[str, int]] = []
        self.withdrawn: list[int] = []

    def offer(self, peer: str, hop: HopFacts) -> None:
        self.offers.append((peer, hop.number))

    def withdraw(self, number: int) -> None:
        self.withdrawn.append(number)


class Setting:
    """A dispatcher with one request, which waits."""

    def __init__(self) -> None:
        self.dispatcher, self.carrier = Dispatcher(MODEL, "here"), Carrier()
        self.owner = Owner(self.dispatcher.records)
        self.dispatcher.follow(self.owner)

    async def submit(self, name: str = "q") -> asyncio.Task[Placement]:
        one = request(name)
        assert (await self.dispatcher.submit(one, self.carrier)).accepted
        waiting = asyncio.create_task(self.dispatcher.placement(one))
        await asyncio.sleep(0)
        return waiting

    async def with_peer(self) -> None:
        """The request's hop is confirmed."""
        waiting = await self.submit()
        self.dispatcher.hop_offered("us", facts())
        self.dispatcher.hops.taken("q", 1)
        self.dispatcher.hop_confirmed("q", 1)
        with pytest.raises(TakenByPeer):
            await waiting

    def place(self, attempt: int = 1) -> Lease:
        lease = Lease(0, request("q"), "r1", 0.0, attempt, 10, 20, 10, 0)
        record = self.dispatcher.records.get("q")
        assert record is not None
        self.dispatcher.records.move(record, RequestState.RUNNING, lease)
        self.dispatcher.placed(Placement(lease, PickReason.ONLY_FIT, "all", False, 0.0, None), "http://r1")
        return lease


@pytest.fixture
async def setting() -> Setting:
    return Setting()


async def test_a_hop_that_goes_well(setting: Setting) -> None:
    waiting, dispatcher, hops = await setting.submit(), setting.dispatcher, setting.dispatcher.hops
    dispatcher.hop_offered("us", facts())
    assert setting.carrier.offers == [("us", 1)]
    assert not hops.first_byte("q", 1), "no byte reaches the client before the owner has confirmed the hop"
    hops.taken("q", 1)
    assert not waiting.done()
    dispatcher.hop_confirmed("q", 1)
    with pytest.raises(TakenByPeer) as taken:
        await waiting
    assert (taken.value.peer, taken.value.number) == ("us", 1)
    assert hops.first_byte("q", 1)
    assert hops.first_byte("q", 1)
    hops.finished("q", 1)
    hops.finished("q", 1)
    assert setting.owner.reports == [HopTaken("q", 1), HopFirstByte("q", 1), HopFinished("q", 1)]
    assert (len(dispatcher), hops.get("q"), setting.carrier.withdrawn, setting.owner.cancelled) == (0, None, [], [])


async def test_a_request_that_the_peer_rejects_goes_on_waiting(setting: Setting) -> None:
    waiting, dispatcher = await setting.submit(), setting.dispatcher
    dispatcher.hop_offered("us", facts())
    dispatcher.hops.rejected("q", 2, HopRefusal.LATE)
    dispatcher.hops.rejected("q", 1, HopRefusal.LATE)
    dispatcher.hops.rejected("q", 1, HopRefusal.LATE)
    assert setting.owner.reports == [HopRejected("q", 1, HopRefusal.LATE)]
    dispatcher.hop_offered("ap", facts(number=2))
    assert setting.carrier.offers == [("us", 1), ("ap", 2)]
    lease = setting.place()
    assert (await waiting).lease == lease
    assert setting.carrier.withdrawn == [2], "home was first"
    dispatcher.hops.taken("q", 2)
    assert len(setting.owner.reports) == 1, "what comes late of it changes nothing"
    dispatcher.release(lease, Ending.FINISHED)


async def test_an_offer_that_is_withdrawn(setting: Setting) -> None:
    waiting, dispatcher = await setting.submit(), setting.dispatcher
    dispatcher.hop_offered("us", facts())
    dispatcher.hop_withdrawn("q", 9)
    assert setting.carrier.withdrawn == []
    dispatcher.hop_withdrawn("q", 1)
    dispatcher.hop_confirmed("q", 1)
    assert (setting.carrier.withdrawn, dispatcher.hops.get("q"), waiting.done()) == ([1], None, False)
    waiting.cancel()


async def test_after_the_first_byte_a_withdrawal_is_ignored(setting: Setting) -> None:
    await setting.with_peer()
    assert setting.dispatcher.hops.first_byte("q", 1)
    setting.dispatcher.hop_withdrawn("q", 1)
    assert setting.carrier.withdrawn == []
    setting.dispatcher.hops.finished("q", 1)


async def test_a_hop_that_breaks_before_the_first_byte_gives_the_request_back(setting: Setting) -> None:
    await setting.with_peer()
    dispatcher, leases = setting.dispatcher, []
    setting.owner.hears = lambda report: leases.append(setting.place())  # at once, in the same moment
    dispatcher.hops.broke("q", 1)
    assert setting.owner.reports[-1] == HopBroke("q", 1)
    placement = await dispatcher.placement(request("q"))
    assert placement.lease in leases
    assert (setting.carrier.withdrawn, setting.owner.released) == ([], [])
    dispatcher.release(placement.lease, Ending.FINISHED)
    assert len(dispatcher) == 0


async def test_a_hop_that_breaks_after_the_first_byte_is_over(setting: Setting) -> None:
    await setting.with_peer()
    assert setting.dispatcher.hops.first_byte("q", 1)
    setting.dispatcher.hops.broke("q", 1)
    assert setting.owner.reports[-1] == HopBroke("q", 1)
    assert setting.dispatcher.hops.get("q") is None


async def test_a_request_without_a_carrier_goes_nowhere(setting: Setting) -> None:
    one = request("q")
    await setting.dispatcher.submit(one)
    setting.dispatcher.hop_offered("us", facts())
    assert setting.owner.reports == [HopBroke("q", 1)]


# Owners that change.
async def test_a_confirmed_hop_that_breaks_under_the_next_owner_gives_it_the_request(setting: Setting) -> None:
    await setting.with_peer()
    dispatcher, second = setting.dispatcher, Owner(setting.dispatcher.records, 2)
    dispatcher.follow(second)
    dispatcher.hops.broke("q", 1)
    ((again, admitted, _),) = second.submitted
    assert (again.hops, admitted, second.reports) == (1, True, []), "it has had its one hop"
    waiting = asyncio.create_task(dispatcher.placement(request("q")))
    lease = setting.place()
    assert (await waiting).lease == lease
    dispatcher.release(lease, Ending.FINISHED)


# Requests that wait in no lane, and guests.
async def test_a_guest_that_is_not_taken(setting: Setting) -> None:
    one, hop = request("q@eu"), facts()
    submitting = asyncio.create_task(setting.dispatcher.submit(one, None, hop))
    await asyncio.sleep(0)
    assert [(sent.request_id, given) for sent, _, given in setting.owner.submitted] == [("q@eu", hop)]
    setting.dispatcher.guest_refused("q@eu", HopRefusal.LATE)
    with pytest.raises(GuestNotTaken) as refused:
        await submitting
    assert refused.value.refusal is HopRefusal.LATE
    assert len(setting.dispatcher) == 0
    setting.dispatcher.guest_refused("q@eu", HopRefusal.LATE)


async def test_a_guest_that_is_here_is_not_taken_again(setting: Setting) -> None:
    """A recorded hop comes while the first one is served, whose books it must not touch."""
    one, hop = request("q@eu"), facts()
    submitting = asyncio.create_task(setting.dispatcher.submit(one, None, hop))
    await asyncio.sleep(0)
    for _ in range(2):
        with pytest.raises(GuestNotTaken) as refused:
            await asyncio.wait_for(setting.dispatcher.submit(one, None, hop), 1)
        assert refused.value.refusal is HopRefusal.REPLAYED
        setting.dispatcher.admitted("q@eu", ADMITTED)
    assert (await submitting).accepted
    assert (len(setting.owner.submitted), len(setting.dispatcher)) == (1, 1)


async def test_an_admitted_guest_goes_to_the_next_owner_with_its_hop(setting: Setting) -> None:
    one, hop = request("q@eu"), facts()
    submitting = asyncio.create_task(setting.dispatcher.submit(one, None, hop))
    await asyncio.sleep(0)
    setting.dispatcher.admitted("q@eu", ADMITTED)
    assert (await submitting).accepted
    second = Owner(setting.dispatcher.records, 2)
    setting.dispatcher.follow(second)
    assert [(admitted, given) for _, admitted, given in second.submitted] == [(True, hop)]
