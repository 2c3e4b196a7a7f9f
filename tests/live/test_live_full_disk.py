"""`raylane up` with simulated engines whose logs lie on a disk that fills: everything is answered, and the logs go on
when there is room."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.live.clients import clients
from tests.live.cluster import LiveCluster, eventually, held, simulated_spec
from tests.small_disk import small_disk

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

CLIENTS = 16


async def test_a_full_disk_under_the_logs(tmp_path: Path, tell: list[str]) -> None:
    with small_disk(tmp_path / "disk") as disk:
        spec = simulated_spec(1)
        spec["gateway"] |= {"decision_log": str(disk.path / "decisions")}
        with held(tmp_path, "full-disk", spec) as cluster:
            async with clients() as session:
                await load(session, cluster, spec, 100)
                disk.fill()
                await load(session, cluster, spec, 300)
                (failing,) = cluster.ask("/raylane/status").json()["gateway"]["failing_logs"]
                assert failing["name"].startswith("decisions of ")
                shown = " ".join(cluster.cli("status", "--once").stdout.split())
                assert "cannot be written (OSError: [Errno 28] No space left on device)" in shown
                disk.free()
                await load(session, cluster, spec, 100)

                def writes_again() -> bool:
                    return not cluster.ask("/raylane/status").json()["gateway"]["failing_logs"]

                await asyncio.to_thread(eventually, writes_again)
                await load(session, cluster, spec, 100)
            cluster.settle()
        replayed = cluster.cli("replay", *map(str, (disk.path / "decisions").glob("*.log")))
        assert (replayed.returncode, "inputs are missing in" in replayed.stdout) == (0, True), (
            replayed.stdout + replayed.stderr
        )
        tell.append(
            f"lost {failing['lost_lines']} lines of the decision log and no request; "
            f"{' '.join(replayed.stdout.split())}"
        )


async def load(session: aiohttp.ClientSession, cluster: LiveCluster, spec: dict[str, Any], requests: int) -> None:
    """So many requests, some streamed; each must be answered."""
    rest = iter(range(requests))

    async def client() -> None:
        for number in rest:
            body = {
                "model": spec["models"][0]["name"],
                "prompt": f"{number}: one two three",
                "max_tokens": 8,
                "stream": number % 2 == 0,
            }
            async with session.post(cluster.url + "/v1/completions", json=body) as response:
                assert response.status == 200, await response.text()
                await response.read()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
