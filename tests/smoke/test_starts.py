"""Where the time of a vLLM replica's start went."""

import pytest

from deployments.cell.lifecycle_log import read_lives
from deployments.starts.phases import Phase
from deployments.starts.start import ReplicaStart
from deployments.store import FILE_NAME
from deployments.wire import from_plain
from tests.live.cluster import LiveCluster

pytestmark = [pytest.mark.live, pytest.mark.contract, pytest.mark.timeout(300)]


def test_the_phases_of_each_start_add_up_to_its_wall_time(cluster: LiveCluster) -> None:
    for replica in cluster.replicas():
        start = from_plain(replica["start"], ReplicaStart)
        assert sum(start.seconds.values()) == pytest.approx(start.wall_s, rel=0.05)
        assert (
            min(start.seconds[phase] for phase in (Phase.ENVIRONMENT, Phase.LOAD, Phase.WARM_UP, Phase.FIRST_TOKEN)) > 0
        )
        assert [start.seconds.get(phase, 0) for phase in (Phase.FETCH, Phase.GRAPHS)] == [0, 0]


def test_every_way_to_ask_tells_the_same(cluster: LiveCluster) -> None:
    replicas = {replica["replica_id"]: from_plain(replica["start"], ReplicaStart) for replica in cluster.replicas()}
    events = [event for _, event in read_lives(cluster.run_dir / FILE_NAME)]
    recorded = {event.replica_id: event for event in events if isinstance(event, ReplicaStart)}
    shown = cluster.done("status", "--starts")
    for replica_id, start in replicas.items():
        assert recorded[replica_id].seconds == start.seconds
        assert f"was ready {start.wall_s:.1f} s after it was asked for" in shown
    metrics = cluster.ask("/metrics", cluster.owner_url()).text
    for phase in Phase:
        assert f'raylane_last_start_seconds{{model="demo",phase="{phase}"}}' in metrics
