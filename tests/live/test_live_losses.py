"""One cell under 32 clients that never stop asking, while each of its parts dies or hangs in turn.

No replica but the one that was killed is replaced. No answer ends without a word. What had no byte of its answer is
answered all the same, but for what a killed gateway had taken. Each loss is named with its cause.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.live.clients import Answer, ask, clients
from tests.live.cluster import LiveCluster, eventually, held, local_spec
from tests.live.test_live_kills import controller_knows, named, replica_pids

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

CLIENTS = 32
STOPPED_S = 30.0
Act = Callable[["Drill"], str | None]
"""Does something to the cell, and returns when that is corrected; returns the replica that was to be replaced, if one
was."""


class Drill:
    """The load, and what became of it."""

    def __init__(self, cluster: LiveCluster) -> None:
        self.cluster = cluster
        self.answers: list[Answer] = []
        self.gateways: set[str] = set()
        """Those that were killed."""
        self.notes: list[str] = []
        self._over = False

    async def client(self, number: int) -> None:
        """Asks again and again: three in four clients stream. A connection that broke is made anew."""
        stream = number % 4 != 0
        while not self._over:
            async with clients() as session:
                while not self._over:
                    answer = await ask(
                        session, self.cluster.url, prompt=f"{number}, 2, 3,", max_tokens=150, stream=stream
                    )
                    self.answers.append(answer)
                    if answer.end == "cut":
                        await asyncio.sleep(0.2)
                        break

    async def run(self, acts: list[Act], tell: list[str]) -> None:
        """Does all of it, one after the other."""
        tasks = [asyncio.create_task(self.client(number)) for number in range(CLIENTS)]
        await asyncio.to_thread(eventually, lambda: all(replica["leases"] for replica in self.cluster.replicas()))
        try:
            for act in acts:
                await self._checked(act, tell)
        finally:
            self._over = True
            await asyncio.gather(*tasks)

    async def _checked(self, act: Act, tell: list[str]) -> None:
        before = await asyncio.to_thread(replica_pids, self.cluster)
        name, begun, first = act.__name__, time.monotonic(), len(self.answers)  # type: ignore[attr-defined]
        replaced = await asyncio.to_thread(act, self)
        await asyncio.to_thread(eventually, self.is_whole, 240)
        took_s = time.monotonic() - begun
        after = await asyncio.to_thread(replica_pids, self.cluster)
        stayed = {one: pid for one, pid in before.items() if one != replaced}
        assert stayed.items() <= after.items(), name
        assert replaced not in after
        tell.append(
            "; ".join([f"{name}: whole again after {took_s:.1f} s", *self.notes, outcome(self.answers[first:])])
        )
        self.notes.clear()

    def is_whole(self) -> bool:
        return self.cluster.is_whole() and len(self.cluster.gateways()) == 2


def outcome(answers: list[Answer]) -> str:
    """How many requests ended how, and the longest wait for a first token."""
    codes = [answer.code for answer in answers if answer.end == "error"]
    slowest_s = max(
        (answer.first_s - answer.started_s for answer in answers if answer.first_s is not None), default=0.0
    )
    cut = sum(answer.end == "cut" for answer in answers)
    return (
        f"of {len(answers)} requests {len(codes)} were told an error ({set(codes) or 'none'}), {cut} cut; slowest TTFT "
        f"{slowest_s:.1f} s"
    )


def engine_core_killed(drill: Drill) -> str:
    victim = drill.cluster.replicas()[0]
    core = drill.cluster.engine_core(victim["pid"])
    return replaced_after(drill, victim, core.kill)


def replica_killed(drill: Drill) -> str:
    victim = drill.cluster.replicas()[0]
    return replaced_after(drill, victim, psutil.Process(victim["pid"]).kill)


def replaced_after(drill: Drill, victim: dict[str, Any], kill: Callable[[], None]) -> str:
    """Kills a replica, and waits until Serve has begun to start another."""
    before, killed = replica_processes(drill.cluster), time.monotonic()
    kill()
    eventually(lambda: replica_processes(drill.cluster) - before)
    drill.notes.append(f"another replica was started after {time.monotonic() - killed:.1f} s")
    eventually(lambda: victim["replica_id"] not in replica_pids(drill.cluster))
    return str(victim["replica_id"])


def replica_processes(cluster: LiveCluster) -> set[psutil.Process]:
    """The processes of engine replicas, those that start, too."""
    return named(cluster, "ray::ServeReplica:model-")


def gateway_killed(drill: Drill) -> None:
    """The owner of the model."""
    owner = drill.cluster.model()["owner"]
    drill.gateways.add(owner)
    psutil.Process(drill.cluster.gateways()[owner]).kill()
    eventually(lambda: owner not in drill.cluster.gateways())


def controller_killed(drill: Drill) -> None:
    pids = replica_pids(drill.cluster)
    (controller,) = named(drill.cluster, "ray::ServeController")
    controller.kill()
    eventually(lambda: controller_knows(drill.cluster, pids) or replica_pids(drill.cluster) != pids)


def directory_killed(drill: Drill) -> None:
    (directory,) = named(drill.cluster, "ray::Directory")
    directory.kill()
    eventually(lambda: named(drill.cluster, "ray::Directory") - {directory})


def replica_stopped(drill: Drill) -> None:
    """For 30 s: Serve's three health checks are not over by then."""
    victim = drill.cluster.replicas()[0]
    process = psutil.Process(victim["pid"])
    process.suspend()
    try:
        time.sleep(STOPPED_S)  # that is what is tried
    finally:
        process.resume()


async def test_every_part_dies_in_turn(tmp_path: Path, tell: list[str]) -> None:
    with held(tmp_path, "losses", spec()) as cluster:
        await asyncio.to_thread(eventually, lambda: cluster.is_whole() and len(cluster.gateways()) == 2)
        drill = Drill(cluster)
        await drill.run(
            [engine_core_killed, replica_killed, gateway_killed, controller_killed, directory_killed, replica_stopped],
            tell,
        )
        check_answers(drill)
    assert "lost (engine_died" in cluster.log.read_text()


def check_answers(drill: Drill) -> None:
    """Every answer ended as it should, or its client was told; nobody who had no byte went without an answer."""
    of_killed = [answer for answer in drill.answers if answer.end == "cut"]
    assert all(answer.gateway is None or answer.gateway in drill.gateways for answer in of_killed)
    assert all("Error" in (answer.code or "") for answer in of_killed), "a proper end of what was cut"
    assert len(of_killed) <= CLIENTS
    reported = [answer for answer in drill.answers if answer.end == "error"]
    assert {answer.code for answer in reported} <= {"replica_lost"}
    assert [answer for answer in reported if not answer.tokens] == []
    assert {answer.end for answer in drill.answers} <= {"done", "error", "cut"}


def spec() -> dict[str, Any]:
    """The shipped spec with smaller engines and a second gateway."""
    content = local_spec(max_num_seqs=32, kv_cache_memory_bytes=128 << 20)
    content["gateway"] |= {"replicas": 2}
    return content
