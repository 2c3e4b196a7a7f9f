"""Parts that die: others are unharmed, nobody's stream ends without a word, the dead are replaced, and the books
balance."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from deployments.protocol import Load, ReplicaState
from tests.live.clients import ask, clients
from tests.live.cluster import LiveCluster, eventually, live_cluster
from tests.live.replica import Replica, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]


async def test_a_replica_killed_before_the_first_byte_costs_no_request(cluster: LiveCluster, tell: list[str]) -> None:
    victim = cluster.replicas()[0]
    async with clients() as session:
        whole = [
            asyncio.create_task(ask(session, cluster.url, stream=False, max_tokens=400, prompt=f"{number}, 2, 3,"))
            for number in range(16)
        ]
        await asyncio.to_thread(eventually, lambda: all(replica["leases"] > 2 for replica in cluster.replicas()))
        os.kill(victim["pid"], signal.SIGKILL)
        answers = await asyncio.gather(*whole)
    assert [(answer.status, answer.end) for answer in answers] == [(200, "done")] * len(answers)
    assert victim["replica_id"] not in {answer.replica for answer in answers}
    await asyncio.to_thread(eventually, lambda: any(record["resubmitted"] for record in cluster.records()))
    again = [record for record in cluster.records() if record["resubmitted"]]
    assert {record["resubmitted"] for record in again} == {"replica_lost"}
    assert {record["attempts"] for record in again} == {2}
    tell.append(f"kill -9 of a replica with {len(again)} whole answers under way: all of them came from the other one")
    await asyncio.to_thread(eventually, cluster.is_whole, 180)


async def test_an_engine_core_killed_before_the_first_byte_costs_no_request(
    cluster: LiveCluster, tell: list[str]
) -> None:
    victim = cluster.replicas()[0]
    core = cluster.engine_core(victim["pid"])
    before = len(cluster.records())
    async with clients() as session:
        whole = [
            asyncio.create_task(ask(session, cluster.url, stream=False, max_tokens=400, prompt=f"{number}, 4, 5,"))
            for number in range(16)
        ]
        await asyncio.to_thread(eventually, lambda: all(replica["leases"] > 2 for replica in cluster.replicas()))
        core.kill()
        answers = await asyncio.gather(*whole)
    assert [(answer.status, answer.end) for answer in answers] == [(200, "done")] * len(answers)
    again = [record["resubmitted"] for record in cluster.records()[before:] if record["resubmitted"]]
    assert set(again) <= {"engine_died", "replica_lost"}
    assert again
    tell.append(
        f"kill -9 of an engine's core with {len(again)} whole answers under way ({', '.join(sorted(set(again)))}): all "
        "of them came"
    )
    await asyncio.to_thread(
        eventually, lambda: victim["replica_id"] not in {r["replica_id"] for r in cluster.replicas()}, 180
    )
    await asyncio.to_thread(eventually, cluster.is_whole, 180)


async def test_requests_that_wait_survive_the_loss_of_all_replicas(cluster: LiveCluster) -> None:
    for replica in cluster.replicas():
        os.kill(replica["pid"], signal.SIGKILL)
    async with clients() as session:
        await asyncio.sleep(1.5)
        answers = await asyncio.gather(*(ask(session, cluster.url) for _ in range(5)))
    assert {answer.end for answer in answers} == {"done"}
    await asyncio.to_thread(eventually, cluster.is_whole, 180)


async def test_a_stopped_core_as_its_replica_tells(cluster: LiveCluster) -> None:
    """At the replica's own door: its feed says that it is unhealthy, and then its streams end with an error within 5
    s."""
    replica = Replica(cluster, cluster.replicas()[0])
    async with (
        replica.session() as session,
        replica.feed(session) as messages,
        replica.stream(session, "stopped-1") as response,
    ):
        await response.content.readline()
        cluster.engine_core(replica.pid).send_signal(signal.SIGSTOP)
        await until(messages, lambda message: isinstance(message, Load) and message.state is ReplicaState.UNHEALTHY)
        rest = await asyncio.wait_for(response.content.read(), 5)
        assert b'"error"' in rest
    await asyncio.to_thread(
        eventually, lambda: replica.replica_id not in {r["replica_id"] for r in cluster.replicas()}, 180
    )
    await asyncio.to_thread(eventually, cluster.is_whole, 180)
    _, alive = await asyncio.to_thread(psutil.wait_procs, replica.family, 60)
    assert not alive
    await asyncio.to_thread(cluster.settle)


def replica_pids(cluster: LiveCluster) -> dict[str, int]:
    """The replicas' processes, by the replicas' ids."""
    return {replica["replica_id"]: replica["pid"] for replica in cluster.replicas()}


def controller_knows(cluster: LiveCluster, pids: dict[str, int]) -> bool:
    """Whether the Serve controller that runs now has asked each of the replicas who it is, and goes on with it."""
    temp_dir = Path(json.loads((cluster.run_dir / "state.json").read_text())["ray_temp_dir"])
    logs = [
        temp_dir / f"session_latest/logs/serve/controller_{one.pid}.log"
        for one in named(cluster, "ray::ServeController")
    ]
    text = "".join(log.read_text() for log in logs if log.exists())
    return all(f"(PID: {pid})" in text for pid in pids.values())


def named(cluster: LiveCluster, name: str) -> set[psutil.Process]:
    """The cluster's processes of that name."""
    found = set()
    for process in cluster.family():
        try:
            if " ".join(process.cmdline()).startswith(name):
                found.add(process)
        except psutil.Error:
            continue
    return found


def test_kill_9_of_up_leaves_nothing_that_down_does_not_clean(tmp_path_factory: pytest.TempPathFactory) -> None:
    from tests.live.cluster import can_bind, shared_memory_of

    folder = tmp_path_factory.mktemp("killed")
    with pytest.raises(AssertionError, match="killed on purpose"), live_cluster(folder, "killed") as cluster:  # noqa: PT012
        family = cluster.family()
        shared = shared_memory_of(family)
        time.sleep(6)  # until `up` has looked at /dev/shm
        temp_dir = cluster.run_dir / "state.json"
        assert temp_dir.exists()
        cluster.process.kill()
        cluster.process.wait()
        result = cluster.cli("down")
        assert (result.returncode, "its leftovers are removed" in result.stdout) == (0, True), result.stderr
        _, alive = psutil.wait_procs(family, timeout=10)
        assert not alive
        assert can_bind(int(cluster.url.rpartition(":")[2]))
        assert not [name for name in shared if os.path.exists(name)]
        raise AssertionError("killed on purpose")
