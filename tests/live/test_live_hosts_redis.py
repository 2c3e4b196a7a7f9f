"""The cell on three test hosts (`test_live_hosts.py`) whose head keeps its state in Redis: Redis is killed and comes
back with what it had on disk."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.live.host_cluster import REDIS, WORKERS, HostCluster, host_cluster
from tests.live.hosts import on_test_hosts
from tests.live.test_live_hosts import breaks_nothing

pytestmark = on_test_hosts("redis-server")
A, B = WORKERS


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCluster]:
    with host_cluster(tmp_path_factory.mktemp("r"), {"kind": "redis", "address": REDIS}) as cluster:
        done = cluster.up()
        assert done.returncode == 0, done.stdout + done.stderr
        yield cluster


async def test_redis_killed_breaks_no_stream(cell: HostCluster) -> None:
    async def kill() -> None:
        assert cell.head.kill("redis-server") == 1
        await asyncio.sleep(10)  # what the head does about it has begun

    cell.note(f"Redis killed: {await breaks_nothing(cell, kill)}")
