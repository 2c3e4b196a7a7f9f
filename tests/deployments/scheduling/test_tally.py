"""Which promises count as kept, which as missed, and which as neither."""

import dataclasses

import pytest

from deployments.gateway.placed import turned_away
from deployments.scheduling import Admission, AdmissionKind, RejectCause
from deployments.scheduling.request import Job
from deployments.scheduling.tally import FlowTally, Tally
from tests.deployments.scheduling.world import make_request


def job(name: str = "q", lane: str = "short") -> Job:
    """Two sequences of 70 tokens that arrived at 10, with a first token promised by 15."""
    made = Job(dataclasses.replace(make_request(name, 70, now=10.0, sequences=2), traffic_class="batch"), 1)
    made.home_name, made.cost = lane, 300.0
    return made


@pytest.fixture
def tally() -> Tally:
    return Tally()


def outcome(tally: Tally) -> tuple[int, int]:
    """Kept and missed."""
    flow = tally.flows.get(("short", "batch"), FlowTally())
    return flow.met, flow.missed


def test_arrivals_are_counted_by_lane_and_class(tally: Tally) -> None:
    for _ in range(2):
        tally.arrived(job())
    tally.arrived(job(lane="long"))
    assert tally.flows == {
        ("short", "batch"): FlowTally(2, 600.0, 280, 0, 0, 5.0),
        ("long", "batch"): FlowTally(1, 300.0, 140, 0, 0, 5.0),
    }


@pytest.mark.parametrize("cause", RejectCause)
def test_a_rejection_misses_its_slo_where_the_client_is_not_told_that_it_erred(
    tally: Tally, cause: RejectCause
) -> None:
    """But for a duplicate, whose first request is judged."""
    told = turned_away("m", "t", Admission(AdmissionKind.REJECT, "short", cause)).error.status
    for _ in range(2):
        tally.rejected(job(), cause)
    assert outcome(tally) == (0, 2 if told == 503 and cause is not RejectCause.DUPLICATE_ID else 0)


def test_guests_are_the_demand_of_their_home_alone(tally: Tally) -> None:
    served, rejected = job(), job()
    for guest in (served, rejected):
        guest.request = dataclasses.replace(guest.request, guest_of="us")
        guest.groups = ("default",)
        tally.arrived(guest)
    tally.first_token(served, 12.0)
    tally.rejected(rejected, RejectCause.LANE_FULL)
    assert (tally.flows, tally.demands) == ({}, {})
    assert tally.guests == FlowTally(2, 600.0, 280, 1, 1, 5.0)
