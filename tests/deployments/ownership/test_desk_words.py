"""What a desk says to its owner, to engines and to those who wait, word by word: the owner here keeps what it is told and decides nothing."""

import asyncio
import time
from collections.abc import Callable

import pytest

from cluster.spec import EngineSettings, Model
from deployments.ownership.booking import booking_of
from deployments.ownership.desk import Desk
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.roles import Holder
from deployments.ownership.ticket import QueueTimeout, Rejected
from deployments.protocol import BOOKING_HEADER, EPOCH_HEADER, Finished, FirstTokens, ReplicaFacts, ReplicaState
from deployments.scheduling import Admission, AdmissionKind, Ending, Lease, PickReason, Placement, Policy, RejectCause, Request

MODEL = Model(name="demo", source="/nowhere", settings=EngineSettings(max_model_len=1_024))
FACTS = ReplicaFacts("r1", "demo", "http://r1", 1, "n", "generate", 1_024, 8, 2_048, 65_536)
QUEUED = Admission(AdmissionKind.QUEUE, "all")
FULL = Admission(AdmissionKind.REJECT, "all", RejectCause.LANE_FULL)


class Owner:
    """Another gateway, as far as the desk knows. `told` is what it was told, in order."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.told: list[tuple[object, ...]] = []

    def submit(self, holder: Holder, request: Request, admitted: bool = False) -> None:
        self.told.append(("submit", request.request_id, request.attempts, admitted))

    def cancel(self, request_id: str) -> None:
        self.told.append(("cancel", request_id))

    def hold(self, holder: Holder, engine_id: str) -> None:
        self.told.append(("hold", engine_id))

    def first_token(self, engine_id: str) -> None:
        self.told.append(("first_token", engine_id))

    def release(self, engine_id: str, ending: Ending) -> None:
        self.told.append(("release", engine_id, ending))

    def refused(self, holder: Holder, lease: Lease, state: ReplicaState | None) -> None:
        self.told.append(("refused", lease.engine_id, state))


def request(name: str = "q", wait_s: float = 60.0) -> Request:
    now = time.monotonic()
    return Request(name, 10, 20, now, now + 1.0, now + wait_s)


def placement(one: Request, attempt: int = 1) -> Placement:
    lease = Lease(0, one, "r1", time.monotonic(), attempt, 10, 30, 20, 0)
    return Placement(one, lease, PickReason.ONLY_FIT, "all", False, 0.0, None)


class Counter:
    """A desk that follows an owner, and requests that were placed there."""

    def __init__(self) -> None:
        self.desk = Desk(MODEL, "g1")
        self.owner = Owner(7)
        self.desk.follow(self.owner)

    async def queued(self, name: str = "q", wait_s: float = 60.0) -> Request:
        """A request that was admitted."""
        one = request(name, wait_s)
        asking = asyncio.create_task(self.desk.submit(one))
        await asyncio.sleep(0)
        self.desk.admitted(name, QUEUED)
        assert await asking is QUEUED
        return one

    async def leased(self, name: str = "q", attempt: int = 1) -> Lease:
        """...and placed."""
        one = await self.queued(name)
        self.desk.placed(placement(one, attempt), "http://there")
        lease = (await self.desk.placement(one)).lease
        self.owner.told.clear()
        return lease


@pytest.fixture
async def at() -> Counter:
    return Counter()


async def test_a_request_is_submitted_as_new_and_its_admission_is_the_answer(at: Counter) -> None:
    await at.queued()
    assert at.owner.told == [("submit", "q", 0, False)]
    assert len(at.desk) == 1


async def test_a_rejected_request_is_forgotten(at: Counter) -> None:
    asking = asyncio.create_task(at.desk.submit(request()))
    await asyncio.sleep(0)
    at.desk.admitted("q", FULL)
    assert await asking is FULL
    assert len(at.desk) == 0


async def test_engines_are_shown_the_epoch_of_the_placement_and_its_booking(at: Counter) -> None:
    lease = await at.leased()
    at.desk.follow(Owner(9))
    assert at.desk.credentials(lease) == {EPOCH_HEADER: "7", BOOKING_HEADER: booking_of(lease, "g1").encode()}
    at.desk.release(lease, Ending.FINISHED)
    assert at.desk.credentials(lease)[EPOCH_HEADER] == "0"


async def test_a_replica_is_found_by_the_desks_own_feed_or_else_by_the_owners_word(at: Counter) -> None:
    lease = await at.leased()
    assert at.desk.url_of(lease) == "http://there"
    at.desk.replica_up(FACTS)
    assert at.desk.url_of(lease) == "http://r1"
    at.desk.replica_lost("r1")
    assert at.desk.url_of(lease) is None


async def test_the_owner_hears_once_of_a_first_token(at: Counter) -> None:
    lease = await at.leased()
    for _ in range(2):
        at.desk.first_token(lease)
    at.desk.first_tokens(FirstTokens(("q-1", "q-2", "other-1")))
    assert at.owner.told == [("first_token", "q-1")]
    second = await at.leased("r")
    at.desk.first_tokens(FirstTokens(("r-1",)))
    at.desk.first_token(second)
    assert at.owner.told == [("first_token", "r-1")]


async def test_a_lease_is_released_once_and_only_the_one_that_stands(at: Counter) -> None:
    lease = await at.leased()
    stale = placement(lease.request, 9).lease
    at.desk.release(stale, Ending.FAILED)
    for _ in range(2):
        at.desk.release(lease, Ending.CANCELLED)
    assert (at.owner.told, len(at.desk)) == ([("release", "q-1", Ending.CANCELLED)], 0)


async def test_a_refused_lease_waits_for_the_next_attempt(at: Counter) -> None:
    at.desk.replica_up(FACTS)
    lease = await at.leased()
    at.desk.first_token(lease)
    at.owner.told.clear()
    at.desk.refused(lease, ReplicaState.DRAINING)
    assert (at.owner.told, at.desk.replicas.is_ready("r1")) == ([("refused", "q-1", ReplicaState.DRAINING)], False)
    at.desk.placed(placement(lease.request, 2), "http://there")
    again = (await at.desk.placement(lease.request)).lease
    at.desk.first_token(again)
    assert at.owner.told[1:] == [("first_token", "q-2")]


async def test_a_refused_one_for_which_there_is_no_room_is_turned_away(at: Counter) -> None:
    lease = await at.leased()
    at.desk.refused(lease, None)
    waiting = asyncio.create_task(at.desk.placement(lease.request))
    await asyncio.sleep(0)
    at.desk.admitted("q", FULL)
    with pytest.raises(Rejected) as rejected:
        await waiting
    assert rejected.value.admission is FULL
    assert rejected.value.args == (RejectCause.LANE_FULL,)
    at.desk.admitted("nobody", FULL)


async def test_what_waits_is_handed_to_the_next_owner_and_what_runs_is_told_to_it(at: Counter) -> None:
    lease = await at.leased("runs")
    await at.queued("waits")
    asking = asyncio.create_task(at.desk.submit(request("asks")))
    await asyncio.sleep(0)
    at.desk.follow(None)
    assert at.desk.owner is None
    following = Owner(8)
    at.desk.follow(following)
    assert following.told == [("hold", "runs-1"), ("submit", "waits", 0, True), ("submit", "asks", 0, False)]
    assert at.desk.handed_on == 1
    at.desk.hand_on(time.monotonic())
    assert len(following.told) == 3, "each once"
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    at.desk.release(lease, Ending.FINISHED)
    assert following.told[3:] == [("cancel", "asks"), ("release", "runs-1", Ending.FINISHED)]


async def test_without_an_owner_requests_wait_and_those_that_waited_too_long_give_up(at: Counter) -> None:
    at.desk.follow(None)
    asking = asyncio.create_task(at.desk.submit(request("asks", wait_s=5.0)))
    await asyncio.sleep(0)
    at.desk.hand_on(time.monotonic())
    await asyncio.sleep(0)
    assert not asking.done()
    at.desk.hand_on(time.monotonic() + 5.0)
    with pytest.raises(QueueTimeout):
        await asking
    assert (len(at.desk), at.owner.told) == (0, [])


async def test_a_wait_that_ran_out_at_the_owner(at: Counter) -> None:
    one = await at.queued()
    at.desk.expired("nobody")
    at.desk.expired("q")
    with pytest.raises(QueueTimeout):
        await at.desk.placement(one)
    assert len(at.desk) == 0


async def test_who_gives_up_is_cancelled_at_the_owner_or_releases_what_it_never_saw(at: Counter) -> None:
    waits, placed = await at.queued("waits"), await at.queued("placed")
    tasks = [asyncio.create_task(at.desk.placement(one)) for one in (waits, placed)]
    await asyncio.sleep(0)
    at.owner.told.clear()
    for task in tasks:
        task.cancel()
    at.desk.placed(placement(placed), "http://there")
    await asyncio.wait(tasks)
    released = ("release", "placed-1", Ending.CANCELLED)
    assert at.owner.told == [released, ("cancel", "waits"), ("cancel", "placed")], "the last of which finds nothing that waits"
    at.desk.placed(placement(waits), "http://there")
    assert at.owner.told[3:] == [("release", "waits-1", Ending.CANCELLED)]


async def test_an_overtaken_lease_waits_for_the_later_owner(at: Counter) -> None:
    lease = await at.leased()
    at.desk.overtaken(lease, 8)
    assert at.owner.told == [("release", "q-1", Ending.FAILED)], "the owner is told, and not asked again at once"
    at.desk.hand_on(time.monotonic())
    assert len(at.owner.told) == 1
    later = Owner(8)
    at.desk.follow(later)
    assert later.told == [("submit", "q", 1, True)]


async def test_an_overtaken_lease_goes_to_a_later_owner_that_is_known_already(at: Counter) -> None:
    lease = await at.leased()
    later = Owner(8)
    at.desk.follow(later)
    at.desk.overtaken(lease, 8)
    assert later.told == [("hold", "q-1"), ("release", "q-1", Ending.FAILED), ("submit", "q", 1, True)]


async def test_an_owner_that_is_overtaken_hears_of_it(at: Counter) -> None:
    heard: list[int] = []
    at.desk.on_overtaken = heard.append
    lease = await at.leased()
    at.desk.overtaken(lease, 8)
    assert heard == [], "this gateway is not the owner"
    own = LaneOwner(Policy(), epoch=8, replicas=at.desk.replicas)
    at.desk.on_ready = own.replica_up
    at.desk.follow(own)
    at.desk.replica_up(FACTS)
    one = request("mine")
    await at.desk.submit(one)
    mine = (await at.desk.placement(one)).lease
    at.desk.overtaken(mine, 9)
    assert heard == [9]
    own.close()


async def test_a_whole_answer_outlives_its_replica_and_who_is_cut_is_told_once(at: Counter) -> None:
    told: list[str] = []

    def tell(name: str) -> Callable[[], None]:
        return lambda: told.append(name)

    leases = {name: await at.leased(name) for name in ("whole", "cut", "aborted")}
    for name, lease in leases.items():
        at.desk.when_lost(lease, tell(name))
    for name, sequences in (("whole-1", 1), ("aborted-1", 0), ("whole-2", 0), ("nobody-1", 1)):
        at.desk.finished(Finished(name, 200, sequences, 10, 0, 5, 0, 0.0, 0.1, 0.1, 0.1, 0.2))
    at.desk.replica_lost("other")
    for _ in range(2):
        at.desk.replica_lost("r1")
    assert told == ["cut", "aborted"]
    assert at.desk.url_of(leases["whole"]) == "http://there"


async def test_a_desk_is_ready_with_an_owner_and_an_open_replica(at: Counter) -> None:
    assert not at.desk.is_ready
    at.desk.replica_up(FACTS)
    assert at.desk.is_ready
    at.desk.cordon(frozenset({"r1"}))
    assert not at.desk.is_ready
    at.desk.cordon(frozenset())
    at.desk.follow(None)
    assert not at.desk.is_ready
    own = LaneOwner(Policy(), replicas=at.desk.replicas)
    at.desk.follow(own)
    assert not at.desk.is_ready, "no replica has seen its epoch"
    own.replica_up(FACTS)
    assert at.desk.is_ready
    assert at.desk.own is own
    at.desk.replica_state("r1", None)
    assert not at.desk.is_ready
    at.desk.follow(at.owner)
    assert (at.desk.own, at.desk.snapshot(), own._closed) == (None, None, True)
