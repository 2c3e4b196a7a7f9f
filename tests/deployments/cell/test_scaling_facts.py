"""The owner's page: what is written on it is read again, whatever the scheduler has been through."""

from dataclasses import replace

import pytest

from deployments.cell.scaling_facts import ScalingFacts, read_scaling_facts
from deployments.scheduling import Ending, Snapshot, Usage
from deployments.scheduling.recorder import RecordingScheduler
from deployments.wire import WireError, encode
from tests.deployments.scheduling.test_groups import ALL, DEAR, make
from tests.deployments.scheduling.test_replay import drive
from tests.deployments.scheduling.world import POLICY, make_request, make_scheduler


def driven(seed: int) -> Snapshot:
    scheduler = RecordingScheduler(POLICY, lambda line: None)
    drive(scheduler, seed)
    return scheduler.snapshot(1_000.0)


def grouped() -> Snapshot:
    scheduler = make(ALL, d=DEAR)
    for number in range(9):
        scheduler.submit(make_request(f"q{number}", 300 * number + 1), 0.0)
        scheduler.step(0.0)
    lease, _ = next(iter(scheduler.leases.values()))
    scheduler.release(lease, Ending.FINISHED, Usage(1, 0, 50, 0), 3.0)
    return scheduler.snapshot(5.0)


@pytest.mark.parametrize("snapshot", [*map(driven, range(6)), grouped(), make_scheduler(0).snapshot(0.0)])
def test_what_is_written_is_read(snapshot: Snapshot) -> None:
    scaling_facts = ScalingFacts("org/model", 3, 0.25, snapshot, {"interactive": 0.99, "batch": 0.5}, 1.5)
    assert read_scaling_facts(encode(scaling_facts)) == scaling_facts


def test_what_is_no_page_is_refused_by_the_name_of_its_field() -> None:
    page = encode(ScalingFacts("m", "x", 0.0, driven(1), {}))  # type: ignore[arg-type]
    for payload, says in ((b"", "ScalingFacts"), (b"{}", "ScalingFacts"), (page, r"`\$\.epoch`")):
        with pytest.raises(WireError, match=says):
            read_scaling_facts(payload)


def test_reading_costs_little() -> None:
    """A thousand replicas: some hundred kB, not a megabyte."""
    snapshot = driven(1)
    one = snapshot.replicas[0]
    many = replace(
        snapshot, replicas=tuple(replace(one, replica_id=f"engine-model#{number:08}") for number in range(1_000))
    )
    assert len(encode(ScalingFacts("m", 1, 0.0, many, {}))) < 400_000
