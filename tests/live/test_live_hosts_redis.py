"""The cell on three test hosts (`test_live_hosts.py`) whose head keeps its state in Redis: Redis is killed and comes
back with what it had on disk."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from tests.live.cluster import eventually
from tests.live.host_cluster import HEAD, REDIS, WORKERS, HostCluster, host_cluster
from tests.live.hosts import lacking
from tests.live.test_live_hosts import Traffic, streams, tenant

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(lacking("redis-server")), reason=f"test hosts need {lacking('redis-server')}"),
]
A, B = WORKERS


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCluster]:
    with host_cluster(tmp_path_factory.mktemp("r"), {"kind": "redis", "address": REDIS}) as cluster:
        done = cluster.up()
        assert done.returncode == 0, done.stdout + done.stderr
        yield cluster


async def test_redis_killed_breaks_no_stream(cell: HostCluster) -> None:
    await asyncio.to_thread(cell.until_whole, A, B)
    before = set(cell.replicas(A))
    traffic = Traffic(A)
    async with tenant() as session:
        load = asyncio.create_task(traffic.run(session))
        running = [*await streams(session, A, 4), *await streams(session, B, 4)]
        began = time.monotonic()
        assert cell.head.kill("redis-server") == 1
        await asyncio.sleep(10)  # what the head does about it has begun
        await asyncio.to_thread(eventually, lambda: HEAD in cell.alive_nodes(), 180)
        back_s = time.monotonic() - began
        ended = await asyncio.gather(*running)
        traffic.stop.set()
        await load
    assert [one.end for one in ended] == ["done"] * 8, ended
    assert traffic.not_done(set()) == []
    await asyncio.to_thread(cell.until_whole, A, B)
    assert set(cell.replicas(A)) == before
    again = await asyncio.to_thread(cell.up)
    assert again.returncode == 0, again.stdout + again.stderr
    assert set(cell.replicas(A)) == before
    cell.note(
        f"Redis killed: Ray answers after {back_s:.1f} s; {len(traffic.answers)} requests meanwhile, all answered"
    )
