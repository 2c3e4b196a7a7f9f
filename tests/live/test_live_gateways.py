"""Several gateways under load: their deaths, freezes and planned stops, with a real Ray and real engines."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import psutil
import pytest

from tests.live.clients import Answer, ask, clients
from tests.live.cluster import ROOT, LiveCluster, eventually, live_cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_500)]
KILLS = 10
CLIENTS = 48


@pytest.fixture(scope="module")
def held_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """Two gateways and one replica, up for all tests here."""
    with live_cluster(tmp_path_factory.mktemp("pair"), "pair", gateways=2, replicas=1) as cluster:
        yield cluster


@pytest.fixture
def pair(held_pair: LiveCluster) -> LiveCluster:
    """Both gateways up, nothing running."""
    eventually(lambda: len(held_pair.gateways()) == 2 and held_pair.model()["owner"] is not None, 180)
    held_pair.settle()
    return held_pair


class Load:
    """Clients that ask again and again, each request on a connection of its own, so that the kernel chooses the
    gateway."""

    def __init__(self, cluster: LiveCluster, max_tokens: int) -> None:
        self.answers: list[Answer] = []
        self.refused_s: list[float] = []
        """How long after a reset nobody took a connection: seconds until the next good one."""
        self._cluster = cluster
        self._max_tokens = max_tokens
        self._stop = asyncio.Event()

    async def during(self, act: Callable[[], Awaitable[None]]) -> list[Answer]:
        """The answers, `act` being done meanwhile."""
        tasks = [asyncio.create_task(self._client()) for _ in range(CLIENTS)]
        await asyncio.to_thread(eventually, lambda: len(self.answers) > CLIENTS)
        await act()
        self._stop.set()
        await asyncio.gather(*tasks)
        return self.answers

    async def _client(self) -> None:
        broke_s: float | None = None
        while not self._stop.is_set():
            async with clients() as session:
                answer = await ask(
                    session, self._cluster.url, max_tokens=self._max_tokens, stream_options={"include_usage": True}
                )
            if answer.gateway is None and answer.status == 0:
                broke_s = broke_s or answer.ended_s
                await asyncio.sleep(0.02)
            elif broke_s is not None:
                self.refused_s.append(answer.started_s - broke_s)
                broke_s = None
            self.answers.append(answer)


async def test_the_owner_is_killed_ten_times(pair: LiveCluster, tell: list[str]) -> None:
    load = Load(pair, max_tokens=48)
    dead: list[str] = []
    took: list[float] = []

    async def kill() -> None:
        for _ in range(KILLS):
            await asyncio.to_thread(
                eventually, lambda: len(pair.gateways()) == 2 and pair.model()["owner"] in pair.gateways(), 180
            )
            owner = (await asyncio.to_thread(pair.model))["owner"]
            dead.append(owner)
            os.kill((await asyncio.to_thread(pair.gateways))[owner], signal.SIGKILL)
            killed_s = time.monotonic()
            await asyncio.to_thread(eventually, lambda owner=owner: pair.model()["owner"] not in (None, owner))
            took.append(time.monotonic() - killed_s)
            seen = len(load.answers)
            await asyncio.to_thread(eventually, lambda seen=seen: len(load.answers) > seen + CLIENTS)

    answers = await load.during(kill)
    ends = Counter(answer.end for answer in answers)
    others = [answer for answer in answers if answer.gateway is not None and answer.gateway not in dead]
    assert {answer.end for answer in others} == {"done"}, Counter((answer.end, answer.code) for answer in others)
    assert {answer.counted for answer in others} == {48}, "nobody gets two answers, or half of one"
    reset = [answer for answer in answers if answer.end != "done"]
    assert {answer.code is None or "Client" in answer.code or "Server" in answer.code for answer in reset} <= {True}, (
        Counter(a.code for a in reset)
    )
    model = await asyncio.to_thread(pair.settle)
    assert model["lost_requests"] > 0
    errors = Counter(
        record["error"] for record in pair.records() if record["gateway"] not in dead and record["outcome"] != "ok"
    )
    assert not errors, "no engine saw an id twice, no waiting request was given up"
    max_s = max(load.refused_s, default=0.0)
    tell.append(
        f"{KILLS} owners killed under {CLIENTS} clients: {ends['done']} answered, {len(reset)} reset with their "
        "gateway, "
        f"takeover {min(took):.2f} to {max(took):.2f} s, a client was without a gateway for at most {max_s:.2f} s, "
        f"lost: {model['lost_requests']} running requests ({model['lost_tokens']} tokens), as the last owner counts"
    )
    assert max_s < 1.0


async def test_a_frozen_owner_gets_its_way_no_more(pair: LiveCluster, tell: list[str]) -> None:
    load = Load(pair, max_tokens=48)
    frozen: dict[str, float] = {}

    async def freeze() -> None:
        before = await asyncio.to_thread(pair.model)
        pid = (await asyncio.to_thread(pair.gateways))[before["owner"]]
        survivor = next(url for url in await asyncio.to_thread(cell_urls, pair, before["owner"]))
        process = psutil.Process(pid)
        process.suspend()
        began_s = time.monotonic()
        try:
            await asyncio.to_thread(eventually, lambda: owns(pair, survivor, before["epoch"]))
            frozen["takeover_s"] = time.monotonic() - began_s
            await asyncio.sleep(3)
        finally:
            process.resume()
        seen = len(load.answers)
        await asyncio.to_thread(eventually, lambda: len(load.answers) > seen + 2 * CLIENTS)

    before = (await asyncio.to_thread(pair.model))["owner"]
    answers = await load.during(freeze)
    assert {answer.end for answer in answers} == {"done"}, Counter((answer.end, answer.code) for answer in answers)
    model = await asyncio.to_thread(pair.settle)
    assert model["owner"] != before
    tell.append(
        f"owner frozen: taken over in {frozen['takeover_s']:.2f} s; {len(answers)} answered, all of them whole, those "
        "of the frozen one too"
    )


async def test_an_upgrade_costs_no_error(pair: LiveCluster, tell: list[str]) -> None:
    """Serve replaces both gateways under load: each is a planned stop."""
    load = Load(pair, max_tokens=48)
    before = await asyncio.to_thread(pair.gateways)

    async def roll() -> None:
        address = ray_address(pair)
        environment = {
            **pair.environment,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(pair.run_dir / "ray_token"),
        }
        given = (address, str(pair.folder / "spec.yaml"), str(pair.run_dir))
        command = [sys.executable, "-m", "tests.live.rollout", *given]
        done = await asyncio.to_thread(
            subprocess.run, command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        await asyncio.to_thread(
            eventually, lambda: len(pair.gateways()) == 2 and not set(pair.gateways()) & set(before)
        )
        new = set(await asyncio.to_thread(pair.gateways))
        await asyncio.to_thread(eventually, lambda: new <= {answer.gateway for answer in load.answers})

    answers = await load.during(roll)
    assert {answer.end for answer in answers} == {"done"}, Counter((answer.end, answer.code) for answer in answers)
    after = await asyncio.to_thread(pair.gateways)
    assert not set(after) & set(before)
    assert {answer.gateway for answer in answers} == set(after) | set(before)
    tell.append(f"both gateways replaced under {CLIENTS} clients: {len(answers)} requests, no error")
    await asyncio.to_thread(pair.settle)


def ray_address(cluster: LiveCluster) -> str:
    """Where the cluster's Ray answers, as its own processes were told."""
    lines = (" ".join(process.cmdline()) for process in cluster.family())
    return next(found[1] for line in lines if (found := re.search(r"gcs-address=([\d.]+:\d+)", line)))


def cell_urls(cluster: LiveCluster, but: str) -> list[str]:
    """Where the gateways listen for their cell, one left out."""
    report = cluster.ask("/raylane/status").json()
    return [gateway["cell_url"] for gateway in report["gateways"] if gateway["id"] != but]


def owns(cluster: LiveCluster, cell_url: str, above: int) -> bool:
    """Whether that gateway owns the model under a later epoch."""
    (model,) = cluster.ask("/raylane/status?here=1", cell_url).json()["report"]["models"]
    return model["owner"] is not None and model["epoch"] > above
