"""Queries of death are known to all gateways of a cell, and to whoever becomes the owner next."""

import logging
import time
from dataclasses import replace

import pytest

from deployments.cell.owners import Ownership
from deployments.ownership.channel import RemoteOwner, Session
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.messages import Message, MessageReader, Suspected
from deployments.ownership.takeover import KnownSuspicions
from deployments.scheduling import Ending, Lease, RejectCause, Request, SchedulingPolicy, Suspicion
from deployments.scheduling.suspects import MAX
from tests.deployments.ownership.dispatcher_rig import MODEL, facts, make_dispatcher, request


def of_body(name: str, body: str = "deadly") -> Request:
    return replace(request(name), digest=body)


async def killed(dispatcher: Dispatcher, name: str, replica: str) -> None:
    """A request whose replica dies when a part of its answer was sent."""
    dispatcher.replica_up(facts(replica))
    asked = of_body(name)
    assert (await dispatcher.submit(asked)).accepted
    lease = (await dispatcher.placement(asked)).lease
    dispatcher.died(lease)
    dispatcher.release(lease, Ending.FAILED)
    dispatcher.replica_lost(replica)


def heard(session: Session) -> list[Message]:
    return MessageReader().feed(b"".join(session._outbox._messages))


async def cause(dispatcher: Dispatcher, name: str) -> RejectCause | None:
    return (await dispatcher.submit(of_body(name))).cause


async def test_the_owner_tells_its_own_gateway_those_that_are_there_and_those_that_come(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dispatcher = make_dispatcher()
    assert dispatcher.own is not None
    there = Session(dispatcher.own, "g2")
    await killed(dispatcher, "a", "r1")
    await killed(dispatcher, "b", "r2")
    assert [(one.suspicion.key, one.suspicion.deaths) for one in heard(there) if isinstance(one, Suspected)] == [
        ("deadly", 1),
        ("deadly", 2),
    ]
    late = Session(dispatcher.own, "g3")
    (reported,) = heard(late)
    assert isinstance(reported, Suspected)
    assert (reported.suspicion.key, reported.suspicion.deaths) == ("deadly", 2)
    assert [(known.key, known.deaths) for known in dispatcher.suspicions.all()] == [("deadly", 2)]
    (alarm,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert (
        alarm == "ALARM: query of death: 2 replicas died while a body of digest deadly ran; it is refused from now on"
    )


async def test_whoever_becomes_the_owner_knows_what_it_heard() -> None:
    other, now = Dispatcher(MODEL, "g2"), time.monotonic()
    remote = RemoteOwner(Ownership("demo", 1, "g1", "http://g1"), 1, other.records, other)
    other.follow(remote)
    for key, deaths in (("deadly", 2), ("innocent", 1), ("innocent", 0)):
        remote.take(Suspected(Suspicion(key, deaths, False, 70.0), 100.0))
    owner = LaneOwner(SchedulingPolicy(), replicas=other.replicas, epoch=2, records=other.records)
    other.follow(owner)
    assert await cause(other, "again") is RejectCause.QUERY_OF_DEATH
    (known,) = owner.scheduler.suspects.all(now)
    assert (known.key, known.deaths) == ("deadly", 2)
    assert known.since_s == pytest.approx(now - 30.0, abs=5.0)


async def test_another_gateway_s_word_of_a_death_counts() -> None:
    dispatcher = make_dispatcher()
    assert dispatcher.own is not None
    session = Session(dispatcher.own, "g2")
    for number in range(2):
        dispatcher.replica_up(facts(f"r{number}"))
        asked = of_body(f"q{number}")
        dispatcher.own.submit(session, asked)
        lease: Lease = next(
            lease for lease, _ in dispatcher.own.scheduler.leases.values() if lease.request.request_id == f"q{number}"
        )
        dispatcher.own.died(lease.attempt_id)
        dispatcher.own.release(lease.attempt_id, Ending.FAILED)
        dispatcher.replica_lost(f"r{number}")
    assert await cause(dispatcher, "mine") is RejectCause.QUERY_OF_DEATH


async def test_a_completed_run_is_told_too() -> None:
    dispatcher = make_dispatcher()
    await killed(dispatcher, "a", "r1")
    assert dispatcher.suspicions.all() != ()
    dispatcher.replica_up(facts("r2"))
    asked = of_body("b")
    assert (await dispatcher.submit(asked)).accepted
    placement = await dispatcher.placement(asked)
    dispatcher.release(placement.lease, Ending.FINISHED)
    assert dispatcher.suspicions.all() == ()


def test_a_copy_is_bounded() -> None:
    known = KnownSuspicions()
    known.take(Suspicion(f"d{number}", 1, False, 0.0) for number in range(MAX + 5))
    assert len(known.all()) == MAX
    assert known.all()[0].key == "d5"
