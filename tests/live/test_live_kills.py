"""Parts that die: others are unharmed, nobody's stream ends without a word, the dead are replaced, and the books
balance."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import requests

from deployments.protocol import Load, ReplicaState
from tests.live.clients import Answer, ask, clients
from tests.live.cluster import LiveCluster, eventually, live_cluster
from tests.live.replica import Replica, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]


async def under_load(cluster: LiveCluster, act: Callable[[], None], desired: int = 40) -> list[Answer]:
    """The answers of long streams during which `act` is done."""
    async with clients() as session:
        tasks = [
            asyncio.create_task(ask(session, cluster.url, max_tokens=600, prompt=f"{number}, 2, 3,"))
            for number in range(desired)
        ]
        await asyncio.to_thread(eventually, lambda: all(replica["leases"] > 0 for replica in cluster.replicas()))
        await asyncio.sleep(1.0)  # into the streams
        await asyncio.to_thread(act)
        return list(await asyncio.gather(*tasks))


def hit(answers: list[Answer], replica_id: str) -> tuple[list[Answer], list[Answer]]:
    """Those that ran on that replica, and the others."""
    return [a for a in answers if a.replica == replica_id], [a for a in answers if a.replica != replica_id]


async def test_kill_9_of_a_replica(cluster: LiveCluster, tell: list[str]) -> None:
    before = cluster.model()["endings"]
    victim = cluster.replicas()[0]
    family = cluster.family(victim["pid"])
    killed: list[float] = []

    def kill() -> None:
        os.kill(victim["pid"], signal.SIGKILL)
        killed.append(time.monotonic())
        psutil.wait_procs(family, timeout=30)
        killed.append(time.monotonic())

    answers = await under_load(cluster, kill)
    assert not [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    gone_s = killed[1] - killed[0]
    assert gone_s < 10
    dead, others = hit(answers, victim["replica_id"])
    assert dead
    assert others
    assert [answer for answer in answers if answer.end == "cut"] == []
    assert {answer.end for answer in others} == {"done"}
    reported = [answer for answer in dead if answer.end == "error"]
    assert {answer.code for answer in reported} <= {"replica_lost"}
    assert reported
    await asyncio.to_thread(eventually, cluster.is_whole, 180)
    back_s = time.monotonic() - killed[0]
    assert victim["replica_id"] not in {replica["replica_id"] for replica in cluster.replicas()}
    after = (await asyncio.to_thread(cluster.settle))["endings"]
    assert after["failed"] - before["failed"] >= len(
        reported
    )  # a lease whose request was placed again may have ended so, too
    tell.append(
        f"kill -9 of a replica: {len(reported)} told, {len(others)} unharmed, its children gone in {gone_s:.2f} s, two "
        f"replicas again in {back_s:.0f} s"
    )


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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_an_engine_core_alone(cluster: LiveCluster, tell: list[str], number: signal.Signals) -> None:
    before = cluster.model()["endings"]
    victim = cluster.replicas()[0]
    family = cluster.family(victim["pid"])
    core = cluster.engine_core(victim["pid"])
    at: list[float] = []

    def strike() -> None:
        core.send_signal(number)
        at.append(time.monotonic())
        _, alive = psutil.wait_procs([psutil.Process(victim["pid"])], timeout=60)
        assert not alive  # by itself: Serve would need three health checks
        at.append(time.monotonic())

    answers = await under_load(cluster, strike)
    dead, others = hit(answers, victim["replica_id"])
    assert [answer for answer in answers if answer.end == "cut"] == []
    assert {answer.end for answer in others} == {"done"}
    assert {(answer.end, answer.code) for answer in dead} <= {("error", "replica_lost"), ("done", None)}
    dead = [answer for answer in dead if answer.end == "error"]
    reported_s = max(answer.ended_s for answer in dead) - at[0]
    await asyncio.to_thread(
        eventually, lambda: victim["replica_id"] not in {r["replica_id"] for r in cluster.replicas()}, 180
    )
    await asyncio.to_thread(eventually, cluster.is_whole, 180)
    back_s = time.monotonic() - at[0]
    _, alive = await asyncio.to_thread(psutil.wait_procs, family, 60)
    assert not alive
    after = (await asyncio.to_thread(cluster.settle))["endings"]
    assert after["failed"] - before["failed"] >= len(dead) > 0
    tell.append(
        f"EngineCore {number.name}: {len(dead)} told within {reported_s:.1f} s, its replica gone in "
        f"{at[1] - at[0]:.1f} s, replaced in {back_s:.1f} s"
    )


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


async def test_a_stopped_replica(cluster: LiveCluster, tell: list[str]) -> None:
    """SIGSTOP of the replica's own process: its feed becomes unresponsive, so nothing new goes there, and Serve
    replaces it."""
    victim = cluster.replicas()[0]
    at = time.monotonic()
    os.kill(victim["pid"], signal.SIGSTOP)
    await asyncio.to_thread(
        eventually,
        lambda: not any(r["replica_id"] == victim["replica_id"] and r["state"] == "ready" for r in cluster.replicas()),
    )
    aside_s = time.monotonic() - at
    async with clients() as session:
        answers = await asyncio.gather(*(ask(session, cluster.url) for _ in range(20)))
    assert {answer.end for answer in answers} == {"done"}
    assert victim["replica_id"] not in {answer.replica for answer in answers}
    await asyncio.to_thread(
        eventually, lambda: victim["replica_id"] not in {r["replica_id"] for r in cluster.replicas()}, 240
    )
    await asyncio.to_thread(eventually, cluster.is_whole, 240)
    tell.append(
        f"SIGSTOP of a replica: set aside in {aside_s:.1f} s, two replicas again in {time.monotonic() - at:.0f} s"
    )


async def test_kill_9_of_the_gateway(cluster: LiveCluster, tell: list[str]) -> None:
    """Its own clients see a reset, none a proper end; a new one serves, and the engines drop the work of the old
    one."""
    pid = cluster.gateway_pid()
    at: list[float] = []

    def kill() -> None:
        os.kill(pid, signal.SIGKILL)
        at.append(time.monotonic())

    answers = await under_load(cluster, kill)
    assert {answer.end for answer in answers} <= {"done", "cut"}
    assert all("Error" in (answer.code or "") for answer in answers if answer.end == "cut")
    await asyncio.to_thread(
        eventually, lambda: requests.get(cluster.url + "/ready?model=*", timeout=5).status_code == 200
    )
    tell.append(f"kill -9 of the gateway: ready again in {time.monotonic() - at[0]:.1f} s")
    await asyncio.to_thread(eventually, cluster.quiet)
    async with clients() as session:
        assert (await ask(session, cluster.url)).end == "done"


@pytest.mark.parametrize("name", ["ray::Directory", "ray::ServeController"])
async def test_kill_9_of_an_actor_that_no_request_needs(cluster: LiveCluster, tell: list[str], name: str) -> None:
    """Requests go on as if nothing were, no replica is replaced, and when the actor is back, a lost replica is found
    again."""
    before = replica_pids(cluster)
    (actor,) = named(cluster, name)
    at: list[float] = []

    def kill() -> None:
        actor.kill()
        at.append(time.monotonic())

    answers = await under_load(cluster, kill)
    assert {answer.end for answer in answers} == {"done"}
    await asyncio.to_thread(eventually, lambda: named(cluster, name) - {actor})
    if name == "ray::ServeController":
        await asyncio.to_thread(
            eventually, lambda: controller_knows(cluster, before) or replica_pids(cluster) != before
        )
    tell.append(
        f"kill -9 of {name}: {len(answers)} of {len(answers)} unharmed; it works again after "
        f"{time.monotonic() - at[0]:.1f} s at most"
    )
    assert replica_pids(cluster) == before
    victim, *others = before
    os.kill(before[victim], signal.SIGKILL)
    await asyncio.to_thread(eventually, lambda: victim not in replica_pids(cluster))
    await asyncio.to_thread(eventually, cluster.is_whole, 240)
    after = replica_pids(cluster)
    assert {one: after.get(one) for one in others} == {one: before[one] for one in others}


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
