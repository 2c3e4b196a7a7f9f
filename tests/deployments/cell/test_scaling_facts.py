"""The owner's page: what is written on it is read again, whatever the scheduler has been through."""

import json
from dataclasses import replace

import pytest

from deployments.cell.scaling_facts import ScalingFacts, read_scaling_facts
from deployments.scheduling import Ending, Snapshot, Usage
from deployments.scheduling.recorder import RecordingScheduler
from tests.deployments.scheduling.test_groups import ALL, DEAR, make
from tests.deployments.scheduling.test_replay import drive
from tests.deployments.scheduling.world import POLICY, make_request, make_scheduler


def driven(seed: int) -> Snapshot:
    scheduler = RecordingScheduler(POLICY, lambda line: None)
    drive(scheduler, seed)
    return replace(scheduler.snapshot(1_000.0), suspects=(), bans=0, aside=0)  # which concern no autoscaler


@pytest.mark.parametrize("seed", range(6))
def test_what_is_written_is_read(seed: int) -> None:
    snapshot = driven(seed)
    assert snapshot.flows
    assert any(lane.estimated for lane in snapshot.lanes)
    attainment = {"interactive": 0.99, "batch": 0.5}
    scaling_facts = ScalingFacts("org/model", 3, 0.25, snapshot, attainment, 1.5)
    assert read_scaling_facts(scaling_facts.encode()) == scaling_facts


def test_an_empty_scheduler_has_books_too() -> None:
    scaling_facts = ScalingFacts("m", 1, 0.0, make_scheduler(0).snapshot(0.0), {})
    assert read_scaling_facts(scaling_facts.encode()) == scaling_facts


def test_the_demand_on_groups_is_read_again() -> None:
    scheduler = make(ALL, d=DEAR)
    for number in range(9):
        scheduler.submit(make_request(f"q{number}", 300 * number + 1), 0.0)
        scheduler.step(0.0)
    lease, _ = next(iter(scheduler.leases.values()))
    scheduler.release(lease, Ending.FINISHED, Usage(1, 0, 50, 0), 3.0)
    snapshot = scheduler.snapshot(5.0)
    assert len(snapshot.demands) > 1
    assert any(one.running for one in snapshot.demands)
    assert [(one.group, one.finished, one.counted) for one in snapshot.groups] == [("dear", 1, 1)]
    assert read_scaling_facts(ScalingFacts("m", 1, 0.0, snapshot, {}).encode()).snapshot == snapshot


def test_the_demand_on_groups_without_replicas_is_read_again() -> None:
    scheduler = make(ALL)
    scheduler.submit(make_request("q"), 0.0)
    snapshot = scheduler.snapshot(1.0)
    assert (snapshot.groups, [one.waiting for one in snapshot.demands]) == ((), [1])
    assert read_scaling_facts(ScalingFacts("m", 1, 0.0, snapshot, {}).encode()).snapshot == snapshot


def test_what_waits_says_for_what() -> None:
    scheduler = make_scheduler(0)
    scheduler.submit(make_request("q"), 0.0)
    scaling_facts = ScalingFacts("m", 1, 0.0, scheduler.snapshot(1.0), {})
    assert read_scaling_facts(scaling_facts.encode()).snapshot.lanes[0].head_waits_for == "no_ready_replica"


def test_fields_of_a_newer_gateway_are_left_out() -> None:
    content = json.loads(ScalingFacts("m", 1, 0.0, driven(1), {}).encode())
    expected = read_scaling_facts(json.dumps(content).encode())
    for table in ("lanes", "replicas", "flows"):
        content["snapshot"][table]["fields"].append("news")
        for row in content["snapshot"][table]["rows"]:
            row.append(7)
    content["snapshot"]["news"] = content["news"] = 7
    assert read_scaling_facts(json.dumps(content).encode()) == expected


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"[]", b"{}", b"7", b'{"model": "m", "epoch": 1, "age_s": 0, "snapshot": {}}'],
)
def test_what_is_no_page_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_scaling_facts(payload)


def test_a_row_of_another_length_is_refused() -> None:
    content = json.loads(ScalingFacts("m", 1, 0.0, driven(1), {}).encode())
    content["snapshot"]["replicas"]["rows"][0].pop()
    with pytest.raises(ValueError, match=r"."):
        read_scaling_facts(json.dumps(content).encode())


def test_reading_costs_little() -> None:
    """A thousand replicas: some 100 kB, not a megabyte."""
    snapshot = driven(1)
    many = replace(
        snapshot,
        replicas=tuple(
            replace(snapshot.replicas[0], replica_id=f"engine-model#{number:08}") for number in range(1_000)
        ),
    )
    assert len(ScalingFacts("m", 1, 0.0, many, {}).encode()) < 120_000
