"""What a dispatcher says to its owner, to engines and to those who wait, word by word: the owner here keeps what it is
told and decides nothing."""

import asyncio
import time
from collections.abc import Callable

import pytest

from cluster.spec import EngineSettings, Model
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.pending_request import QueueTimeout, Rejected
from deployments.ownership.roles import Submitter
from deployments.ownership.takeover import booking_of
from deployments.protocol import BOOKING_HEADER, EPOCH_HEADER, Finished, FirstTokens, ReplicaFacts, ReplicaState
from deployments.scheduling import (
    Admission,
    AdmissionKind,
    Ending,
    Lease,
    PickReason,
    Placement,
    RejectCause,
    Request,
    SchedulingPolicy,
)

MODEL = Model(name="demo", source="/nowhere", settings=EngineSettings(max_model_len=1_024))
FACTS = ReplicaFacts("r1", "demo", "http://r1", 1, "n", "generate", 1_024, 8, 2_048, 65_536)
QUEUED = Admission(AdmissionKind.QUEUE, "all")
FULL = Admission(AdmissionKind.REJECT, "all", RejectCause.LANE_FULL)


class Owner:
    """Another gateway, as far as the dispatcher knows. `reported` is what it was told, in order."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.reported: list[tuple[object, ...]] = []

    def submit(self, submitter: Submitter, request: Request, admitted: bool = False, hop: object = None) -> None:
        self.reported.append(("submit", request.request_id, request.attempts, admitted))

    def cancel(self, request_id: str) -> None:
        self.reported.append(("cancel", request_id))

    def hold(self, submitter: Submitter, attempt_id: str) -> None:
        self.reported.append(("hold", attempt_id))

    def first_token(self, attempt_id: str) -> None:
        self.reported.append(("first_token", attempt_id))

    def release(self, attempt_id: str, ending: Ending) -> None:
        self.reported.append(("release", attempt_id, ending))

    def refused(self, submitter: Submitter, lease: Lease, state: ReplicaState | None) -> None:
        self.reported.append(("refused", lease.attempt_id, state))


def request(name: str = "q", wait_s: float = 60.0) -> Request:
    now = time.monotonic()
    return Request(name, 10, 20, now, now + 1.0, now + wait_s)


def placement(one: Request, attempt: int = 1) -> Placement:
    lease = Lease(0, one, "r1", time.monotonic(), attempt, 10, 30, 20, 0)
    return Placement(one, lease, PickReason.ONLY_FIT, "all", False, 0.0, None)


class Counter:
    """A dispatcher that follows an owner, and requests that were placed there."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher(MODEL, "g1")
        self.owner = Owner(7)
        self.dispatcher.follow(self.owner)

    async def queued(self, name: str = "q", wait_s: float = 60.0) -> Request:
        """A request that was admitted."""
        one = request(name, wait_s)
        asking = asyncio.create_task(self.dispatcher.submit(one))
        await asyncio.sleep(0)
        self.dispatcher.admitted(name, QUEUED)
        assert await asking is QUEUED
        return one

    async def leased(self, name: str = "q", attempt: int = 1) -> Lease:
        """...and placed."""
        one = await self.queued(name)
        self.dispatcher.placed(placement(one, attempt), "http://there")
        lease = (await self.dispatcher.placement(one)).lease
        self.owner.reported.clear()
        return lease


@pytest.fixture
async def at() -> Counter:
    return Counter()


async def test_a_request_is_submitted_as_new_and_its_admission_is_the_answer(at: Counter) -> None:
    await at.queued()
    assert at.owner.reported == [("submit", "q", 0, False)]
    assert len(at.dispatcher) == 1


async def test_a_rejected_request_is_forgotten(at: Counter) -> None:
    asking = asyncio.create_task(at.dispatcher.submit(request()))
    await asyncio.sleep(0)
    at.dispatcher.admitted("q", FULL)
    assert await asking is FULL
    assert len(at.dispatcher) == 0


async def test_engines_are_shown_the_epoch_of_the_placement_and_its_booking(at: Counter) -> None:
    lease = await at.leased()
    at.dispatcher.follow(Owner(9))
    assert at.dispatcher.credentials(lease) == {EPOCH_HEADER: "7", BOOKING_HEADER: booking_of(lease, "g1").encode()}
    at.dispatcher.release(lease, Ending.FINISHED)
    assert at.dispatcher.credentials(lease)[EPOCH_HEADER] == "0"


async def test_a_replica_is_found_by_the_dispatchers_own_feed_or_else_by_the_owners_word(at: Counter) -> None:
    lease = await at.leased()
    assert at.dispatcher.url_of(lease) == "http://there"
    at.dispatcher.replica_up(FACTS)
    assert at.dispatcher.url_of(lease) == "http://r1"
    at.dispatcher.replica_lost("r1")
    assert at.dispatcher.url_of(lease) is None


async def test_the_owner_hears_once_of_a_first_token(at: Counter) -> None:
    lease = await at.leased()
    for _ in range(2):
        at.dispatcher.first_token(lease)
    at.dispatcher.first_tokens(FirstTokens(("q-1", "q-2", "other-1")))
    assert at.owner.reported == [("first_token", "q-1")]
    second = await at.leased("r")
    at.dispatcher.first_tokens(FirstTokens(("r-1",)))
    at.dispatcher.first_token(second)
    assert at.owner.reported == [("first_token", "r-1")]


async def test_a_lease_is_released_once_and_only_the_one_that_stands(at: Counter) -> None:
    lease = await at.leased()
    stale = placement(lease.request, 9).lease
    at.dispatcher.release(stale, Ending.FAILED)
    for _ in range(2):
        at.dispatcher.release(lease, Ending.CANCELLED)
    assert (at.owner.reported, len(at.dispatcher)) == ([("release", "q-1", Ending.CANCELLED)], 0)


async def test_a_refused_lease_waits_for_the_next_attempt(at: Counter) -> None:
    at.dispatcher.replica_up(FACTS)
    lease = await at.leased()
    at.dispatcher.first_token(lease)
    at.owner.reported.clear()
    at.dispatcher.refused(lease, ReplicaState.DRAINING)
    assert (at.owner.reported, at.dispatcher.replicas.is_ready("r1")) == (
        [("refused", "q-1", ReplicaState.DRAINING)],
        False,
    )
    at.dispatcher.placed(placement(lease.request, 2), "http://there")
    again = (await at.dispatcher.placement(lease.request)).lease
    at.dispatcher.first_token(again)
    assert at.owner.reported[1:] == [("first_token", "q-2")]


async def test_a_refused_one_for_which_there_is_no_room_is_turned_away(at: Counter) -> None:
    lease = await at.leased()
    at.dispatcher.refused(lease, None)
    waiting = asyncio.create_task(at.dispatcher.placement(lease.request))
    await asyncio.sleep(0)
    at.dispatcher.admitted("q", FULL)
    with pytest.raises(Rejected) as rejected:
        await waiting
    assert rejected.value.admission is FULL
    assert rejected.value.args == (RejectCause.LANE_FULL,)
    at.dispatcher.admitted("nobody", FULL)


async def test_what_waits_is_handed_to_the_next_owner_and_what_runs_is_told_to_it(at: Counter) -> None:
    lease = await at.leased("runs")
    await at.queued("waits")
    asking = asyncio.create_task(at.dispatcher.submit(request("asks")))
    await asyncio.sleep(0)
    at.dispatcher.follow(None)
    assert at.dispatcher.owner is None
    following = Owner(8)
    at.dispatcher.follow(following)
    assert following.reported == [("hold", "runs-1"), ("submit", "waits", 0, True), ("submit", "asks", 0, False)]
    assert at.dispatcher.handed_on == 1
    at.dispatcher.hand_on(time.monotonic())
    assert len(following.reported) == 3, "each once"
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    at.dispatcher.release(lease, Ending.FINISHED)
    assert following.reported[3:] == [("cancel", "asks"), ("release", "runs-1", Ending.FINISHED)]


async def test_without_an_owner_requests_wait_and_those_that_waited_too_long_give_up(at: Counter) -> None:
    at.dispatcher.follow(None)
    asking = asyncio.create_task(at.dispatcher.submit(request("asks", wait_s=5.0)))
    await asyncio.sleep(0)
    at.dispatcher.hand_on(time.monotonic())
    await asyncio.sleep(0)
    assert not asking.done()
    at.dispatcher.hand_on(time.monotonic() + 5.0)
    with pytest.raises(QueueTimeout):
        await asking
    assert (len(at.dispatcher), at.owner.reported) == (0, [])


async def test_a_wait_that_ran_out_at_the_owner(at: Counter) -> None:
    one = await at.queued()
    at.dispatcher.expired("nobody")
    at.dispatcher.expired("q")
    with pytest.raises(QueueTimeout):
        await at.dispatcher.placement(one)
    assert len(at.dispatcher) == 0


async def test_who_gives_up_is_cancelled_at_the_owner_or_releases_what_it_never_saw(at: Counter) -> None:
    waits, placed = await at.queued("waits"), await at.queued("placed")
    tasks = [asyncio.create_task(at.dispatcher.placement(one)) for one in (waits, placed)]
    await asyncio.sleep(0)
    at.owner.reported.clear()
    for task in tasks:
        task.cancel()
    at.dispatcher.placed(placement(placed), "http://there")
    await asyncio.wait(tasks)
    released = ("release", "placed-1", Ending.CANCELLED)
    assert at.owner.reported == [released, ("cancel", "waits"), ("cancel", "placed")], (
        "the last of which finds nothing that waits"
    )
    at.dispatcher.placed(placement(waits), "http://there")
    assert at.owner.reported[3:] == [("release", "waits-1", Ending.CANCELLED)]


async def test_an_overtaken_lease_waits_for_the_later_owner(at: Counter) -> None:
    lease = await at.leased()
    at.dispatcher.overtaken(lease, 8)
    assert at.owner.reported == [("release", "q-1", Ending.FAILED)], "the owner is told, and not asked again at once"
    at.dispatcher.hand_on(time.monotonic())
    assert len(at.owner.reported) == 1
    later = Owner(8)
    at.dispatcher.follow(later)
    assert later.reported == [("submit", "q", 1, True)]


async def test_an_overtaken_lease_goes_to_a_later_owner_that_is_known_already(at: Counter) -> None:
    lease = await at.leased()
    later = Owner(8)
    at.dispatcher.follow(later)
    at.dispatcher.overtaken(lease, 8)
    assert later.reported == [("hold", "q-1"), ("release", "q-1", Ending.FAILED), ("submit", "q", 1, True)]


async def test_an_owner_that_is_overtaken_hears_of_it(at: Counter) -> None:
    heard: list[int] = []
    at.dispatcher.on_overtaken = heard.append
    lease = await at.leased()
    at.dispatcher.overtaken(lease, 8)
    assert heard == [], "this gateway is not the owner"
    own = LaneOwner(SchedulingPolicy(), epoch=8, replicas=at.dispatcher.replicas)
    at.dispatcher.on_ready = own.replica_up
    at.dispatcher.follow(own)
    at.dispatcher.replica_up(FACTS)
    one = request("mine")
    await at.dispatcher.submit(one)
    mine = (await at.dispatcher.placement(one)).lease
    at.dispatcher.overtaken(mine, 9)
    assert heard == [9]
    own.close()


async def test_a_whole_answer_outlives_its_replica_and_who_is_cut_is_told_once(at: Counter) -> None:
    reported: list[str] = []

    def tell(name: str) -> Callable[[], None]:
        return lambda: reported.append(name)

    leases = {name: await at.leased(name) for name in ("whole", "cut", "aborted")}
    for name, lease in leases.items():
        at.dispatcher.when_lost(lease, tell(name))
    for name, sequences in (("whole-1", 1), ("aborted-1", 0), ("whole-2", 0), ("nobody-1", 1)):
        at.dispatcher.finished(Finished(name, 200, sequences, 10, 0, 5, 0, 0.0, 0.1, 0.1, 0.1, 0.2))
    at.dispatcher.replica_lost("other")
    for _ in range(2):
        at.dispatcher.replica_lost("r1")
    assert reported == ["cut", "aborted"]
    assert at.dispatcher.url_of(leases["whole"]) == "http://there"


async def test_a_dispatcher_is_ready_with_an_owner_and_an_open_replica(at: Counter) -> None:
    assert not at.dispatcher.is_ready
    at.dispatcher.replica_up(FACTS)
    assert at.dispatcher.is_ready
    at.dispatcher.cordon(frozenset({"r1"}))
    assert not at.dispatcher.is_ready
    at.dispatcher.cordon(frozenset())
    at.dispatcher.follow(None)
    assert not at.dispatcher.is_ready
    own = LaneOwner(SchedulingPolicy(), replicas=at.dispatcher.replicas)
    at.dispatcher.follow(own)
    assert not at.dispatcher.is_ready, "no replica has seen its epoch"
    own.replica_up(FACTS)
    assert at.dispatcher.is_ready
    assert at.dispatcher.own is own
    at.dispatcher.replica_state("r1", None)
    assert not at.dispatcher.is_ready
    at.dispatcher.follow(at.owner)
    assert (at.dispatcher.own, at.dispatcher.snapshot(), own._closed) == (None, None, True)
