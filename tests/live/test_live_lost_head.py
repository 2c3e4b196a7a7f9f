"""A head that is gone for longer than nodes once waited for it, on three test hosts.

Ray's limit is shortened, to a twentieth: 30 s for the ten minutes of before, 2,160 s for the half day of now.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import yaml

from cluster.launch.environment import JOINED_ENVIRONMENT
from tests.live.host_cluster import KEY, WORKERS, Operator, bare_hosts
from tests.live.hosts import on_test_hosts
from tests.live.test_live_deploy_hosts import zoned_spec
from tests.live.test_live_hosts import Traffic

pytestmark = on_test_hosts()
A, B = WORKERS
LIMIT = "RAY_gcs_rpc_server_reconnect_timeout_s"
BEFORE_S, NOW_S = 600, int(JOINED_ENVIRONMENT[LIMIT])
SHORTER = 20
AWAY_S = BEFORE_S / SHORTER + 25
"""Nodes end some seconds after the limit."""


@pytest.fixture
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    folder = tmp_path_factory.mktemp("h")
    with bare_hosts(folder, zoned_spec(folder)) as cell:
        yield Operator(cell)


def write(folder: Path, limit_s: int) -> None:
    content = zoned_spec(folder)
    content["regions"][0]["deploy"]["environment"] = {LIMIT: str(limit_s)}
    (folder / "spec.yaml").write_text(yaml.safe_dump(content))


async def test_requests_are_answered_while_the_head_is_away_for_longer_than_the_old_limit(operator: Operator) -> None:
    cell = operator.cell
    for limit_s in (BEFORE_S // SHORTER, NOW_S // SHORTER):
        write(cell.folder, limit_s)
        await asyncio.to_thread(operator.deploy)
        await asyncio.to_thread(cell.until_whole, A, B)
        traffic = Traffic(B)
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {KEY}"}) as session:
            load = asyncio.create_task(traffic.run(session, 2))
            await asyncio.sleep(3)
            assert cell.head.kill() > 3
            await asyncio.sleep(AWAY_S)
            traffic.stop.set()
            await load
        ends = Counter(one.end for one in traffic.answers)
        cell.note(f"limit {limit_s} s, head away for {AWAY_S:.0f} s: {dict(ends)}")
        assert (set(ends) == {"done"}) == (limit_s > AWAY_S), ends
    operator.deploy("--down")
