"""What a cell says of itself: only what can take new work counts."""

import pytest

from deployments.peering import model_digest
from deployments.scheduling.replica import ReplicaStatus
from tests.autoscaling.facts import lane_like, replica_like
from tests.autoscaling.scaler.moments import moment


@pytest.mark.parametrize(
    "status", [one for one in ReplicaStatus if one not in (ReplicaStatus.READY, ReplicaStatus.EJECTED)]
)
def test_a_replica_that_takes_nothing_new_is_not_in_the_digest(status: ReplicaStatus) -> None:
    """A replica under a spot notice drains: from then on peers see a smaller cell, and its load goes elsewhere."""
    ready = replica_like("ready", ReplicaStatus.READY, 8, 32, 800, 100_000, 0, 0.03)
    other = replica_like("other", status, 1, 32, 100, 100_000, 0, 0.03)
    alone = model_digest("m", moment().showing(replicas=(ready,)).snapshot)
    both = model_digest("m", moment().showing(replicas=(ready, other)).snapshot)
    assert both == alone
    assert (both.replicas, both.max_sequences, both.free_sequences) == (1, 32, 24)
    assert both.load == pytest.approx(0.25)


def test_what_waits_takes_free_sequences() -> None:
    """Guests wait to be let in one by one: a home that counted only what runs would hand over their room again."""
    ready = replica_like("ready", ReplicaStatus.READY, 3, 16, 300, 100_000, 0, 0.03)
    for waiting, free in ((0, 13), (9, 4), (40, 0)):
        lanes = (lane_like("short", waiting - waiting // 3, 100.0, 1.0), lane_like("long", waiting // 3, 100.0, 1.0))
        stated = model_digest("m", moment().showing(replicas=(ready,), lanes=lanes).snapshot)
        assert stated.free_sequences == free
        assert stated.load == pytest.approx(1 - free / 16)
