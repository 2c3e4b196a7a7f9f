"""Everything that can end in a cell ends: status, the terminal of `raylane up`, `explain` and metrics name each loss
with its cause, and take no planned end for one."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from deployments.cell.membership import JOIN_EVERY_S
from deployments.gateway.feeds import LOST_AFTER_S
from tests.live.clients import ask, clients
from tests.live.cluster import LiveCluster, eventually, held, simulated_spec

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

MODEL = "llama-3.1-8b-simulated"
STREAMS = 16


async def test_each_end_is_told_with_its_cause(tmp_path: Path, tell: list[str]) -> None:
    with held(tmp_path, "departures", spec()) as cluster:
        await asyncio.to_thread(eventually, lambda: cluster.is_whole() and len(cluster.gateways()) == 2)
        names = {
            "replica": await killed_replica(cluster),
            "gateway": await killed(cluster, "gateway", gateway_pid),
            "controller": await killed(cluster, "controller", lambda cell: process_of(cell, "ServeController")),
            "directory": await killed(cluster, "directory", lambda cell: process_of(cell, "ray::Directory")),
        }
        unresponsive = await stopped_replica(cluster)
        drained = await drained_replica(cluster)
        status = " ".join(cluster.done("status", "--once").split())
        ended = cluster.done("explain", "--ended", "--log", str(cluster.run_dir / "cell.sqlite"))
        metrics = [
            cluster.ask("/metrics", url).text
            for url in (gateway["cell_url"] for gateway in cluster.status()["gateways"])
        ]
    printed = cluster.log.read_text()
    for text in (ended, printed, status):
        assert f"replica {short(names['replica'])}" in text
        assert f"gateway {names['gateway']} lost (process_died)" in text
        assert "Serve's controller lost (process_died)" in text
        assert "the directory lost (process_died)" in text
        assert f"replica {short(unresponsive)}" in text
        assert "lost (unresponsive)" in text
    assert f"replica {short(drained)} ended as planned (drained)" in status
    assert "ended as planned" not in printed, "whoever wanted an end knows of it"
    assert " lost (" not in printed.partition("Stopping:")[2]
    assert printed.count(" lost (") == 5, printed
    for kind, cause in (
        ("replica", "process_died"),
        ("gateway", "process_died"),
        ("controller", "process_died"),
        ("replica", "unresponsive"),
    ):
        counted = [
            line
            for page in metrics
            for line in page.splitlines()
            if line.startswith("raylane_departures_total") and f'kind="{kind}"' in line
        ]
        assert any(f'cause="{cause}"' in line for line in counted), (kind, cause, counted)
    tell.append(
        "\n".join(
            line
            for line in printed.splitlines()
            if " lost (" in line or " was ready after" in line or "responded again" in line
        )
    )


async def test_all_that_are_killed_at_once_are_told_with_what_was_lost(tmp_path: Path, tell: list[str]) -> None:
    """As the kernel or Ray's memory monitor does it: both gateways, the directory and a replica, under streams."""
    with held(tmp_path, "together", spec()) as cluster:
        await asyncio.to_thread(eventually, lambda: cluster.is_whole() and len(cluster.gateways()) == 2)
        gateways, victim = cluster.gateways(), cluster.replicas()[0]
        directory = await asyncio.to_thread(process_of, cluster, "ray::Directory")
        async with clients() as session:
            tasks = [
                asyncio.create_task(ask(session, cluster.url, model=MODEL, max_tokens=4_000)) for _ in range(STREAMS)
            ]
            await asyncio.to_thread(eventually, lambda: sum(one["leases"] for one in cluster.replicas()) == STREAMS)
            await asyncio.sleep(2 * JOIN_EVERY_S)  # until the directory has heard of them
            for pid in (directory, *gateways.values(), victim["pid"]):
                os.kill(pid, signal.SIGKILL)
            answers = await asyncio.gather(*tasks)
        assert {answer.end for answer in answers} == {"cut"}

        def told() -> bool:
            try:
                return {*gateways, victim["replica_id"]} <= {one["who"] for one in departures(cluster)}
            except (requests.RequestException, KeyError):
                return False  # no gateway has come in their place yet

        await asyncio.to_thread(eventually, told, 240)
        await asyncio.to_thread(eventually, cluster.is_whole, 240)
        ended = {one["who"]: one for one in departures(cluster)}
        lost = [ended[who]["lost"] for who in gateways]
        assert {ended[who]["cause"] for who in (*gateways, victim["replica_id"])} == {"process_died"}
        assert [one["cause"] for one in ended.values() if one["kind"] == "directory"] == ["process_died"]
        assert sum(one["broken"] + one["placed_again"] for one in lost) == STREAMS
    tell.append(f"killed at once: {STREAMS} streams cut, lost with the gateways: {[one['broken'] for one in lost]}")


def spec() -> dict[str, Any]:
    """Two gateways, and two simulated replicas that are there at once."""
    content = simulated_spec(2)
    content["models"][0]["health"] |= {"timeout_s": 600}  # Serve leaves a stopped replica alone
    content["gateway"] |= {"replicas": 2}
    return content


def short(replica_id: str) -> str:
    return replica_id.rpartition("#")[2]


def departures(cluster: LiveCluster) -> list[dict[str, Any]]:
    return list(cluster.status()["departures"])


async def departed(cluster: LiveCluster, kind: str, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The last departure of that kind, once it is as wanted."""
    await asyncio.to_thread(
        eventually, lambda: any(one["kind"] == kind and holds(one) for one in departures(cluster)), 180
    )
    return [one for one in departures(cluster) if one["kind"] == kind][-1]


async def killed_replica(cluster: LiveCluster) -> str:
    """Under streams: some had a byte of their answer, and those that had none came from the other one."""
    victim = cluster.replicas()[0]
    async with clients() as session:
        tasks = [asyncio.create_task(ask(session, cluster.url, model=MODEL, max_tokens=400)) for _ in range(STREAMS)]
        tasks += [
            asyncio.create_task(ask(session, cluster.url, model=MODEL, max_tokens=400, stream=False))
            for _ in range(STREAMS)
        ]
        await asyncio.to_thread(
            eventually, lambda: all(replica["leases"] >= STREAMS // 2 for replica in cluster.replicas())
        )
        os.kill(victim["pid"], signal.SIGKILL)
        answers = await asyncio.gather(*tasks)
    one = await departed(cluster, "replica", lambda one: one["replaced_by"])
    await asyncio.to_thread(eventually, lambda: len(cluster.records()) >= 2 * STREAMS)
    errors = sum(answer.end == "error" for answer in answers)
    again = sum(record["resubmitted"] == "replica_lost" for record in cluster.records())
    assert (one["who"], one["cause"], one["pid"]) == (victim["replica_id"], "process_died", victim["pid"])
    assert (one["lost"]["broken"], one["lost"]["placed_again"]) == (errors, again)
    assert errors + again > 0
    assert one["lost"]["digests"]
    await asyncio.to_thread(eventually, cluster.is_whole)
    assert one["replaced_by"] in {replica["replica_id"] for replica in cluster.replicas()}
    return str(one["who"])


async def killed(cluster: LiveCluster, kind: str, pid_of: Callable[[LiveCluster], int]) -> str:
    """A process that is no replica, with SIGKILL. Replicas stay."""
    before = {replica["pid"] for replica in cluster.replicas()}
    os.kill(await asyncio.to_thread(pid_of, cluster), signal.SIGKILL)
    one = await departed(cluster, kind, lambda one: one["replaced_by"])
    assert one["cause"] == "process_died"
    await asyncio.to_thread(eventually, lambda: cluster.is_whole() and len(cluster.gateways()) == 2)
    assert {replica["pid"] for replica in cluster.replicas()} == before
    return str(one["who"])


def gateway_pid(cluster: LiveCluster) -> int:
    """The model's owner."""
    return cluster.gateways()[cluster.model()["owner"]]


def process_of(cluster: LiveCluster, name: str) -> int:
    return next(process.pid for process in cluster.family() if name in " ".join(process.cmdline()))


async def stopped_replica(cluster: LiveCluster) -> str:
    """One that is stopped for so long that it is given up, and goes on then."""
    victim = cluster.replicas()[0]
    psutil.Process(victim["pid"]).suspend()
    try:
        one = await departed(cluster, "replica", lambda one: one["who"] == victim["replica_id"])
    finally:
        psutil.Process(victim["pid"]).resume()
    assert one["cause"] == "unresponsive"
    back = await departed(cluster, "replica", lambda one: one["who"] == victim["replica_id"] and one["back_unix_s"])
    assert back["back_unix_s"] - back["at_unix_s"] < LOST_AFTER_S
    await asyncio.to_thread(eventually, cluster.is_whole)
    return str(one["who"])


async def drained_replica(cluster: LiveCluster) -> str:
    """One that an operator drains, by its short name."""
    victim = cluster.replicas()[1]
    await asyncio.to_thread(cluster.done, "drain", short(victim["replica_id"]))
    one = await departed(cluster, "replica", lambda one: one["who"] == victim["replica_id"] and one["replaced_by"])
    assert one["cause"] == "drained"
    await asyncio.to_thread(eventually, cluster.is_whole)
    return str(one["who"])
