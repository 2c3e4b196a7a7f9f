"""A gateway's end of its channel to the owner: what crosses on the way, and what comes twice."""

import time
from dataclasses import replace

import pytest

from deployments.cell.owners import Ownership
from deployments.ownership.channel import RemoteOwner
from deployments.ownership.messages import (
    Admitted,
    Cancel,
    Message,
    Placed,
    Refused,
    Release,
    Submit,
    admitted_of,
    decode,
    placed_of,
)
from deployments.scheduling import Admission, AdmissionKind, Ending, Lease, PickReason, Placement, Request


class Asks:
    """A submitter that notes what it is told."""

    def __init__(self) -> None:
        self.reported: list[str] = []

    def admitted(self, request_id: str, admission: Admission) -> None:
        self.reported.append("admitted" if admission.accepted else "rejected")

    def placed(self, placement: Placement, url: str) -> None:
        self.reported.append(f"placed {placement.lease.attempt_id} at {url}")

    def expired(self, request_id: str) -> None:
        self.reported.append("expired")

    def moved(self) -> None:
        self.reported.append("moved")


def request() -> Request:
    now = time.monotonic()
    return Request("a", 10, 10, now, now + 1.0, now + 60.0)


def admitted(kind: AdmissionKind = AdmissionKind.ADMIT) -> Admitted:
    return admitted_of("a", Admission(kind, "all"))


def lease(attempt: int = 1) -> Lease:
    return Lease(0, request(), "r1", 0.0, attempt, 10, 20, 5, 0)


def placed(attempt: int = 1) -> Placed:
    return placed_of(Placement(request(), lease(attempt), PickReason.ONLY_FIT, "all", False, 0.0, None), "http://r1")


def sent(owner: RemoteOwner) -> list[Message]:
    """What the owner will hear, but for the first submission."""
    return [message for line in owner._outbox._lines if not isinstance(message := decode(line), Submit)]


@pytest.fixture
async def owner() -> RemoteOwner:
    return RemoteOwner(Ownership("demo", 1, "other", "http://other"), 1)


@pytest.fixture
async def submitter(owner: RemoteOwner) -> Asks:
    asks = Asks()
    owner.submit(asks, request())
    return asks


async def test_a_cancel_crosses_the_admission(owner: RemoteOwner, submitter: Asks) -> None:
    owner.cancel("a")
    owner.take(admitted())
    assert sent(owner) == [Cancel("a"), Cancel("a")], "whoever admits what nobody waits for hears so"
    owner.take(admitted(AdmissionKind.REJECT))
    assert sent(owner) == [Cancel("a"), Cancel("a")]
    assert submitter.reported == []


async def test_a_cancel_crosses_the_placement(owner: RemoteOwner, submitter: Asks) -> None:
    owner.take(admitted())
    owner.cancel("a")
    owner.take(placed())
    assert sent(owner) == [Cancel("a"), Release("a-1", Ending.CANCELLED)]
    assert submitter.reported == ["admitted"]


async def test_a_placement_that_comes_twice_ends_no_lease(owner: RemoteOwner, submitter: Asks) -> None:
    for _ in range(2):
        owner.take(placed())
    assert sent(owner) == []
    owner.refused(submitter, lease(), None)
    owner.take(placed(2))
    owner.take(placed(2))
    assert [type(message) for message in sent(owner)] == [Refused]
    owner.release("a-2", Ending.FINISHED)
    assert submitter.reported == ["placed a-1 at http://r1", "placed a-2 at http://r1"]


async def test_a_refusal_names_the_attempt(owner: RemoteOwner, submitter: Asks) -> None:
    owner.take(placed(3))
    owner.refused(submitter, lease(3), None)
    (refused,) = sent(owner)
    assert isinstance(refused, Refused)
    assert (refused.attempt, refused.replica_id, refused.state) == (3, "r1", None)


async def test_one_that_waits_no_more_is_not_cancelled(owner: RemoteOwner, submitter: Asks) -> None:
    owner.take(placed())
    owner.cancel("a")
    assert sent(owner) == []
    owner.take(replace(admitted(), request_id="b", kind=AdmissionKind.REJECT))
    assert sent(owner) == []
