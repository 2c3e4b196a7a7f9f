"""The channel between two gateways, cut again and again under load while nobody can move the ownership: no id is placed
twice, no lease is left."""

import asyncio
import ctypes
import os
import socket
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from deployments.decision_log import read_log
from deployments.decisions import Input, plain
from tests.live.clients import Answer, ask, clients
from tests.live.cluster import LiveCluster, eventually, held, simulated_spec

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

CUT_EVERY_S = 0.25
CUT_FOR_S = 30.0
CLIENTS = 24
_PIDFD_GETFD = 438


async def test_no_id_is_placed_twice_while_the_channel_is_cut(tmp_path: Path, tell: list[str]) -> None:
    spec = simulated_spec(1)  # of short answers, so that the gateways talk all the time
    spec["gateway"] |= {"replicas": 2, "decision_log": str(tmp_path / "decisions")}
    with held(tmp_path, "cut", spec) as cluster:
        await asyncio.to_thread(
            eventually, lambda: len(cluster.gateways()) == 2 and cluster.model()["owner"] is not None
        )
        directory = next(process for process in cluster.family() if "ray::Directory" in " ".join(process.cmdline()))
        stop = asyncio.Event()
        asking = [asyncio.create_task(client(cluster, spec["models"][0]["name"], stop)) for _ in range(CLIENTS)]
        before = await asyncio.to_thread(cluster.model)
        directory.suspend()  # a channel that breaks would have the model given to another
        try:
            cuts = await asyncio.to_thread(cut_channels, cluster, before["owner"])
            stop.set()
            answers = [answer for task in asking for answer in await task]
            model = await asyncio.to_thread(cluster.settle)
        finally:
            directory.resume()
        assert cuts > CUT_FOR_S, "about a cut a second at least"
        assert (model["owner"], model["epoch"]) == (before["owner"], before["epoch"]), (
            "one owner all the time, or nothing was tested"
        )
        assert {answer.end for answer in answers} == {"done"}, Counter((answer.end, answer.code) for answer in answers)
        eventually(lambda: cluster.model()["owner"] is not None)
    placed = placements(tmp_path / "decisions")  # written to the end
    assert {name: times for name, times in placed.items() if times > 1} == {}, "an id is placed once"
    raised = sum(not name.endswith("-1") for name in placed)
    tell.append(
        f"{cuts} cuts of the channel: {len(answers)} requests answered, {len(placed)} placements, {raised} of them "
        "under a later attempt"
    )


async def client(cluster: LiveCluster, model: str, stop: asyncio.Event) -> list[Answer]:
    """Asks again and again, each time on a connection of its own, so that the kernel chooses the gateway."""
    answers = []
    while not stop.is_set():
        async with clients() as session:
            answers.append(await ask(session, cluster.url, model=model, max_tokens=16))
    return answers


def cut_channels(cluster: LiveCluster, owner: str) -> int:
    """How many connections to the owner's port for the cell were cut, one after the other."""
    report = cluster.ask("/raylane/status").json()
    (port,) = [urlsplit(gateway["cell_url"]).port for gateway in report["gateways"] if gateway["id"] == owner]
    (other,) = [psutil.Process(gateway["pid"]) for gateway in report["gateways"] if gateway["id"] != owner]
    cuts, until_s = 0, time.monotonic() + CUT_FOR_S
    while time.monotonic() < until_s:
        for connection in other.net_connections("tcp"):
            if connection.raddr and connection.raddr.port == port:
                cuts += cut(other.pid, connection.fd)
        time.sleep(CUT_EVERY_S)
    return cuts


def cut(pid: int, descriptor: int) -> bool:
    """Shuts a connection of another process down; false where it is gone already."""
    process = os.pidfd_open(pid)
    try:
        own = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, descriptor, 0)
    finally:
        os.close(process)
    if own < 0:
        return False
    with socket.socket(fileno=own) as connection:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
    return True


def placements(folder: Path) -> Counter[str]:
    """How often each id was placed, by all schedulers' own logs."""
    placed: Counter[str] = Counter()
    for entry in read_log(sorted(folder.glob("*.log"))):
        if isinstance(entry, Input) and entry.method == "step":
            placed.update(f"{one[0]}-{one[3]}" for one in plain(entry.decision)["placed"])
    return placed
