"""A real vLLM whose parts die: its clients are told, the other replica's notice nothing, no process is left, and
another takes its place.

And one that Serve stops, last of this folder, by the name of this file: nobody has to wait for its successor.
"""

import asyncio
import signal
import time
from contextlib import AsyncExitStack

import psutil
import pytest

from deployments.protocol import DRAINING_CODE, DrainReason, Finished, Load, Message, ReplicaState
from tests.live.clients import Answer, ask, clients
from tests.live.cluster import PATIENCE_S, LiveCluster, eventually
from tests.live.replica import Replica, until

pytestmark = pytest.mark.live

STREAMS = 16
TOKENS = 5_000
"""Of a stream that outlasts the order to stop: some seconds on a quiet machine, some twenty beside other load."""


async def streams(cluster: LiveCluster) -> list[asyncio.Task[Answer]]:
    """Long streams that run, some on each replica."""

    async def one(number: int) -> Answer:
        async with clients() as session:
            return await ask(session, cluster.url, prompt=f"{number}, 2, 3,", max_tokens=1_500)

    tasks = [asyncio.create_task(one(number)) for number in range(STREAMS)]
    await asyncio.to_thread(
        eventually, lambda: all(replica["leases"] and replica["engine_running"] for replica in cluster.replicas())
    )
    return tasks


async def check_the_others(victim: Replica, tasks: list[asyncio.Task[Answer]]) -> list[Answer]:
    """All streams came to an end that was told; those of the other replica to their own. Returns the victim's."""
    answers = await asyncio.gather(*tasks)
    hit = [answer for answer in answers if answer.replica == victim.replica_id]
    others = [answer for answer in answers if answer.replica != victim.replica_id]
    assert hit
    assert others
    assert {answer.end for answer in others} == {"done"}
    assert {answer.end for answer in hit} == {"error"}
    return hit


async def check_replaced(cluster: LiveCluster, victim: Replica, known: set[str], cause: str) -> None:
    """Nothing of the victim is left, a new replica serves, and the end is told with its cause."""
    await asyncio.to_thread(
        eventually, lambda: victim.replica_id not in {replica["replica_id"] for replica in cluster.replicas()}
    )
    await asyncio.to_thread(eventually, cluster.is_whole, 180)
    _, alive = await asyncio.to_thread(psutil.wait_procs, victim.family, 60)
    assert not alive
    (new,) = [Replica(cluster, shown) for shown in cluster.replicas() if shown["replica_id"] not in known]
    async with new.session() as session:
        await new.chat(session, "after-the-kill", max_tokens=3)
    reported = [one for one in cluster.status()["departures"] if one["who"] == victim.replica_id]
    assert [(one["cause"], one["replaced_by"]) for one in reported] == [(cause, new.replica_id)]
    assert reported[0]["lost"]["broken"] > 0


@pytest.mark.long  # the next test shows the same of the process around it
async def test_a_killed_engine_core_is_replaced(cluster: LiveCluster) -> None:
    before, known = cluster.model()["endings"]["failed"], {replica["replica_id"] for replica in cluster.replicas()}
    victim = Replica(cluster, cluster.replicas()[0])
    tasks = await streams(cluster)
    async with victim.session() as session, victim.feed(session) as messages:
        cluster.engine_core(victim.pid).kill()
        killed = time.monotonic()
        await until(messages, lambda message: isinstance(message, Load) and message.state is ReplicaState.UNHEALTHY)
    hit = await check_the_others(victim, tasks)
    assert max(answer.ended_s for answer in hit) - killed < 5
    assert {answer.code for answer in hit} == {"replica_lost"}
    await check_replaced(cluster, victim, known, "engine_died")
    assert cluster.settle()["endings"]["failed"] - before >= len(
        hit
    )  # a lease whose request was placed again may have ended so, too


async def test_a_killed_replica_leaves_no_child_and_is_replaced(cluster: LiveCluster) -> None:
    before, known = cluster.model()["endings"]["failed"], {replica["replica_id"] for replica in cluster.replicas()}
    victim = Replica(cluster, cluster.replicas()[0])
    tasks = await streams(cluster)
    # Stopped, so that the core cannot see by itself that its parent is gone.
    cluster.engine_core(victim.pid).send_signal(signal.SIGSTOP)
    psutil.Process(victim.pid).kill()
    _, alive = await asyncio.to_thread(psutil.wait_procs, victim.family, 10)
    assert not alive
    hit = await check_the_others(victim, tasks)
    assert {answer.code for answer in hit} == {"replica_lost"}
    await check_replaced(cluster, victim, known, "process_died")
    assert cluster.settle()["endings"]["failed"] - before >= len(
        hit
    )  # a lease whose request was placed again may have ended so, too


async def test_a_replica_that_serve_stops_finishes_what_runs(cluster: LiveCluster) -> None:
    """An operator wants one replica fewer. Which one goes is Serve's choice, so both have a stream that runs."""
    both = [Replica(cluster, shown) for shown in cluster.replicas()]
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(replica.session()) for replica in both]
        feeds = [
            await stack.enter_async_context(replica.feed(session))
            for replica, session in zip(both, sessions, strict=True)
        ]
        streams = [
            await stack.enter_async_context(one.stream(session, "kept", TOKENS))
            for one, session in zip(both, sessions, strict=True)
        ]
        for answer in streams:
            await answer.content.readline()
        # Without the command, which takes seconds to start: on a quiet machine the streams end meanwhile.
        pin = {"model": "demo", "kind": "pin", "replicas": 1, "for_s": 600, "why": "a test", "by": "test"}
        async with sessions[0].post(cluster.url + "/raylane/controls", json=pin, headers=cluster.credentials) as pinned:
            assert pinned.status == 200
        try:
            index = await first_to_drain(feeds)
            leaving, session = both[index], sessions[index]
            async with session.post(
                "/v1/completions", json={"model": "demo", "prompt": "hi"}, headers=leaving.named("late")
            ) as refused:
                assert refused.status == 503
                assert (await refused.json())["error"]["code"] == DRAINING_CODE
            await asyncio.to_thread(
                eventually,
                lambda: (
                    [r["replica_id"] for r in cluster.replicas() if r["state"] == "ready"]
                    == [both[1 - index].replica_id]
                ),
            )
            for answer in streams:
                assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")
            finished = await until(
                feeds[index], lambda message: isinstance(message, Finished) and message.request_id == "kept"
            )
            assert finished.usage.output_tokens == TOKENS
            _, alive = await asyncio.to_thread(psutil.wait_procs, leaving.family, PATIENCE_S)
            assert not alive
        finally:
            await asyncio.to_thread(cluster.done, "release", "demo")


async def first_to_drain(feeds: list[asyncio.Queue[Message]]) -> int:
    """Which of the replicas Serve stops."""
    watches = [
        asyncio.create_task(
            until(feed, lambda message: isinstance(message, Load) and message.state is ReplicaState.DRAINING)
        )
        for feed in feeds
    ]
    done, pending = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
    for watch in pending:
        watch.cancel()
    (drained,) = done
    assert drained.result().drains_for is DrainReason.STOP
    return watches.index(drained)
