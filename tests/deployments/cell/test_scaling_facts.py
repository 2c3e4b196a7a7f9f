"""The owner's page: what is written on it is read again, whatever the scheduler has been through."""

import pytest

from deployments.cell.scaling_facts import ScalingFacts, read_scaling_facts
from deployments.scheduling import Ending, Snapshot, Usage
from deployments.scheduling.recorder import RecordingScheduler
from deployments.wire import WireError, encode
from tests.deployments.scheduling.test_groups import ALL, DEAR, make
from tests.deployments.scheduling.test_replay import drive
from tests.deployments.scheduling.world import POLICY, make_request, make_scheduler


def driven(seed: int) -> Snapshot:
    scheduler = RecordingScheduler(POLICY, lambda entry: None)
    drive(scheduler, seed)
    return scheduler.snapshot(1_000.0)


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(6))
def test_what_is_written_is_read(seed: int) -> None:
    snapshot = driven(seed)
    assert snapshot.flows
    assert any(lane.estimated for lane in snapshot.lanes)
    attainment = {"interactive": 0.99, "batch": 0.5}
    scaling_facts = ScalingFacts("org/model", 3, 0.25, snapshot, attainment, 1.5)
    assert read_scaling_facts(encode(scaling_facts)) == scaling_facts


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
    assert read_scaling_facts(encode(ScalingFacts("m", 1, 0.0, snapshot, {}))).snapshot == snapshot


@pytest.mark.parametrize("groups", [False, True], ids=["one group", "several groups"])
def test_books_without_replicas_are_read_again(groups: bool) -> None:
    scheduler = make(ALL) if groups else make_scheduler(0)
    for waiting in (0, 1):
        if waiting:
            scheduler.submit(make_request("q"), 0.0)
        scaling_facts = ScalingFacts("m", 1, 0.0, scheduler.snapshot(1.0), {})
        snapshot = read_scaling_facts(encode(scaling_facts)).snapshot
        assert snapshot == scaling_facts.snapshot
        assert (snapshot.groups, [one.waiting for one in snapshot.demands]) == ((), [1] * (waiting and groups))
    assert snapshot.lanes[0].head_waits_for == "no_ready_replica"


@pytest.mark.parametrize("payload", [b"", b"{", b"\x90", b"\x80", b"\x07", encode({"model": "m", "epoch": "7"})])
def test_what_is_no_page_is_refused(payload: bytes) -> None:
    with pytest.raises(WireError, match="ScalingFacts"):
        read_scaling_facts(payload)
