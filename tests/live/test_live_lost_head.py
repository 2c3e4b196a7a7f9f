"""A head that is gone for longer than nodes once waited for it, on three test hosts.

Ray's limit is shortened, to a twentieth: 30 s for the ten minutes of before, 2,160 s for the half day of now.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator

import aiohttp
import pytest
import yaml

from cluster.launch.environment import JOINED_ENVIRONMENT
from cluster.spec import load_spec
from tests.live.host_cluster import KEY, WORKERS, HostCluster, host_spec
from tests.live.hosts import lacking, test_hosts
from tests.live.test_live_deploy_hosts import Operator
from tests.live.test_live_hosts import Traffic

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(lacking()), reason=f"test hosts need {lacking()}"),
]
A, B = WORKERS
LIMIT = "RAY_gcs_rpc_server_reconnect_timeout_s"
BEFORE_S, NOW_S = 600, int(JOINED_ENVIRONMENT[LIMIT])
SHORTER = 20
AWAY_S = BEFORE_S / SHORTER + 25
"""Nodes end some seconds after the limit."""


@pytest.fixture
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    folder = tmp_path_factory.mktemp("h")
    with test_hosts(folder, 3) as hosts:
        (folder / "spec.yaml").write_text(yaml.safe_dump(host_spec(folder, {"kind": "rocksdb"})))
        yield Operator(HostCluster(folder, hosts, load_spec(folder / "spec.yaml")))


def write(operator: Operator, limit_s: int) -> None:
    operator.write()
    file = operator.cell.folder / "spec.yaml"
    content = yaml.safe_load(file.read_text())
    content["regions"][0]["deploy"]["environment"] = {LIMIT: str(limit_s)}
    file.write_text(yaml.safe_dump(content))


async def test_requests_are_answered_while_the_head_is_away_for_longer_than_the_old_limit(operator: Operator) -> None:
    cell = operator.cell
    for limit_s in (BEFORE_S // SHORTER, NOW_S // SHORTER):
        write(operator, limit_s)
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
