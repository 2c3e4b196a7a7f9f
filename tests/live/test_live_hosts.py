"""A cell on several machines: `ray up` with the rendered YAML on three test hosts, `raylane up --address` on its head,
and what happens when a worker is cut off or killed, when the head is killed with and without its store, and when
`raylane down` and the rendered scripts end it all.

The engines are simulated: what is tested is everything around them. The tests run in their order, on one cluster. The
stand-in for systemd is `hosts.py`'s; the one for `raylane-cell@.timer` is a loop on the head that calls `raylane up`.
"""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
import requests

from tests.live.clients import Answer, ask
from tests.live.cluster import eventually
from tests.live.host_cluster import HEAD, KEY, MODEL, REPLICAS, WORKERS, HostCluster, host_cluster
from tests.live.hosts import TestHost, on_test_hosts

pytestmark = on_test_hosts()
A, B = WORKERS
LONG_TOKENS = 2_000


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCluster]:
    with host_cluster(tmp_path_factory.mktemp("h"), {"kind": "rocksdb"}) as cluster:
        yield cluster


@asynccontextmanager
async def tenant() -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"authorization": f"Bearer {KEY}"}
    timeout = aiohttp.ClientTimeout(total=120, sock_connect=5)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        yield session


@dataclass
class Traffic:
    """Clients that ask one gateway without a pause."""

    gateway: str
    answers: list[Answer] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, session: aiohttp.ClientSession, clients: int = 6) -> None:
        await asyncio.gather(*(self._client(session) for _ in range(clients)))

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while not self.stop.is_set():
            self.answers.append(await ask(session, f"http://{self.gateway}:8000", model=MODEL, max_tokens=150))

    def not_done(self, lost: set[str]) -> list[Answer]:
        """Those that failed though they never were on a lost replica."""
        return [one for one in self.answers if one.end != "done" and one.replica not in lost]


async def streams(
    session: aiohttp.ClientSession, gateway: str, count: int, tokens: int = LONG_TOKENS
) -> list[asyncio.Task[Answer]]:
    """Long streams that run."""
    tasks = [
        asyncio.create_task(ask(session, f"http://{gateway}:8000", model=MODEL, max_tokens=tokens))
        for _ in range(count)
    ]
    await asyncio.sleep(1)
    assert not any(task.done() for task in tasks), [task.result() for task in tasks if task.done()]
    return tasks


@contextmanager
def other_sources(host: TestHost, folder: Path) -> Iterator[None]:
    """The host has other sources than the others for the block."""
    source = Path(__file__).parents[2] / "deployments" / "garbage.py"
    changed = folder / "garbage.py"
    changed.write_text(source.read_text() + "# another version\n")
    assert host.ssh(f"mount --bind {changed} {source}").returncode == 0
    try:
        yield
    finally:
        assert host.ssh(f"umount {source}").returncode == 0


def test_other_versions_are_refused_before_anything_is_deployed(cell: HostCluster) -> None:
    with other_sources(cell.hosts[2], cell.folder):
        refused = cell.up()
        assert refused.returncode == 2, refused.stdout + refused.stderr
        assert f"node {B}: raylane 0.1.0 (sources" in refused.stderr
        assert "instead of 0.1.0 (sources" in refused.stderr
        assert f"node {A}" not in refused.stderr
        assert "nothing was deployed" in refused.stderr
    assert "raylane-directory" not in cell.head.ssh("ps ax").stdout


def test_up_deploys_over_the_workers_and_returns(cell: HostCluster) -> None:
    began = time.monotonic()
    done = cell.up()
    assert done.returncode == 0, done.stdout + done.stderr
    cell.note(f"raylane up --address: {time.monotonic() - began:.1f} s\n{done.stdout}")
    cell.until_whole(A, B)
    replicas = cell.replicas(A)
    assert sorted(replicas.values()) == sorted([A, B] * (REPLICAS // 2)), "spread, and none on the head"
    urls = {one["cell_url"].split("/")[2].rpartition(":")[0] for one in cell.report(A)["gateways"]}
    assert urls == {A, B}
    assert requests.get(cell.report(A)["models"][0]["replicas"][0]["url"] + "/metrics", timeout=5).status_code == 401
    secret = (cell.folder / "secrets" / "secret").read_text()
    for host in cell.hosts:
        assert secret not in host.ssh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
        assert host.ssh(f"grep -rls {secret} /tmp/ray/session_latest/logs ~/.raylane/*/gcs").stdout == ""
    for command in (["status", "--once"], ["top", "--once"], ["controls"]):
        asked = cell.raylane(*command)
        assert asked.returncode == 0, (command, asked.stdout + asked.stderr)


def test_up_again_changes_nothing(cell: HostCluster) -> None:
    before = cell.report(A)
    done = cell.up()
    assert done.returncode == 0, done.stdout + done.stderr
    after = cell.report(A)
    for report in (before, after):
        report["pids"] = sorted((one["replica_id"], one["pid"]) for one in report["models"][0]["replicas"])
        report["ids"] = sorted((one["id"], one["pid"]) for one in report["gateways"])
    assert (after["pids"], after["ids"]) == (before["pids"], before["ids"])


@pytest.mark.parametrize(("how", "lost", "other"), [("cut off", B, A), ("killed", A, B)])
async def test_a_worker_lost_is_replaced_and_fails_nothing_that_was_not_on_it(
    cell: HostCluster, how: str, lost: str, other: str
) -> None:
    """The second loss takes all replicas: Serve moves none back to the worker that returned after the first one."""
    await asyncio.to_thread(cell.until_whole, A, B)
    on_it = {replica for replica, address in cell.replicas(other).items() if address == lost}
    worker = next(host for host in cell.hosts if host.address == lost)
    traffic, at_lost = Traffic(other), Traffic(lost)
    async with tenant() as session, tenant() as second:
        load = [asyncio.create_task(traffic.run(session)), asyncio.create_task(at_lost.run(second))]
        await asyncio.sleep(4)
        assert {one.replica for one in traffic.answers} & on_it, "it served requests of the other gateway"
        assert [one.end for one in at_lost.answers if one.end != "done"] == []
        began = time.monotonic()
        at_lost.stop.set()
        if how == "cut off":
            worker.cut()
        else:
            worker.kill()
        replaced = lambda: not set(cell.replicas(other)) & on_it and cell.whole(other)  # noqa: E731
        await asyncio.to_thread(eventually, replaced, 240)
        replaced_s = time.monotonic() - began
        answered = len(traffic.answers)
        await asyncio.sleep(2)
        assert len(traffic.answers) > answered
        traffic.stop.set()
        worker.mend()
        await asyncio.wait(load, timeout=60)
        for task in load:
            task.cancel()
    broken = [one for one in traffic.answers if one.end != "done"]
    cell.note(
        f"worker {how}: {len(traffic.answers)} requests at the other gateway, {len(broken)} of them broken, all on the "
        f"worker; all replicas again after {replaced_s:.1f} s"
    )
    assert traffic.not_done(on_it) == []
    assert {one.end for one in broken} <= {"error"}, "no stream breaks without an error event"
    await asyncio.to_thread(cell.until_whole, A, B)
    cell.note(f"the worker back and whole after {time.monotonic() - began:.1f} s")


def test_a_worker_that_comes_later_with_other_sources_is_refused_by_name(cell: HostCluster) -> None:
    """It has no replica (the second loss took them): Serve starts a gateway there, again and again."""
    cell.until_whole(A, B)
    worker, began = cell.hosts[1], time.monotonic()
    with other_sources(worker, cell.folder):
        worker.kill()
        eventually(lambda: A not in cell.alive_nodes(), 120)
        eventually(lambda: f"node {A}: raylane 0.1.0 (sources" in cell.serve_says(), 240)
        cell.note(f"other sources: refused {time.monotonic() - began:.0f} s after its worker was killed")
        assert A in cell.alive_nodes()
        with pytest.raises(requests.ConnectionError):
            requests.get(f"http://{A}:8000/health", timeout=2)
        assert cell.whole(B)
    cell.until_whole(A, B)


async def breaks_nothing(cell: HostCluster, befalls: Callable[[], Awaitable[None]]) -> str:
    """What befalls the head ends no stream and no replica. Returns the figures."""
    await asyncio.to_thread(cell.until_whole, A, B)
    before = set(cell.replicas(A))
    traffic = Traffic(A)
    async with tenant() as session:
        load = asyncio.create_task(traffic.run(session))
        running = [*await streams(session, A, 4), *await streams(session, B, 4)]
        began = time.monotonic()
        await befalls()
        await asyncio.to_thread(eventually, lambda: HEAD in cell.alive_nodes(), 180)
        back_s = time.monotonic() - began
        ended = await asyncio.gather(*running)
        traffic.stop.set()
        await load
    assert [one.end for one in ended] == ["done"] * 8, ended
    assert traffic.not_done(set()) == []
    await asyncio.to_thread(cell.until_whole, A, B)
    assert set(cell.replicas(A)) == before, "the same replicas"
    again = await asyncio.to_thread(cell.up)
    assert again.returncode == 0, again.stdout + again.stderr
    assert set(cell.replicas(A)) == before
    return f"Ray answers after {back_s:.1f} s; {len(traffic.answers)} requests meanwhile, all answered"


async def test_the_head_killed_with_its_store_kept_breaks_no_stream(cell: HostCluster) -> None:
    async def kill() -> None:
        assert cell.head.kill() > 3

    figures = await breaks_nothing(cell, kill)
    victim = cell.report(A)["models"][0]["replicas"][0]
    host = next(one for one in cell.hosts if f"//{one.address}:" in victim["url"])
    assert host.ssh(f"kill -9 {victim['pid']}").returncode == 0
    eventually_replaced = lambda: victim["replica_id"] not in cell.replicas(B) and cell.whole(A, B)  # noqa: E731
    await asyncio.to_thread(eventually, eventually_replaced, 180)
    cell.note(f"head killed, store kept: {figures}; a replica killed afterwards is replaced")


async def test_a_gateway_that_is_told_to_end_ends_its_streams_with_an_error_event(cell: HostCluster) -> None:
    """By a signal: while Ray has a head, its workers look at them."""
    await asyncio.to_thread(cell.until_whole, A, B)
    gateway = next(one for one in cell.report(A)["gateways"] if f"//{A}:" in one["cell_url"])
    async with tenant() as session:
        running = [*await streams(session, A, 4), *await streams(session, B, 2)]
        assert cell.hosts[1].ssh(f"kill -TERM {gateway['pid']}").returncode == 0
        ended = await asyncio.gather(*running)
    assert [one.end for one in ended] == ["error"] * 4 + ["done"] * 2, ended
    await asyncio.to_thread(cell.until_whole, A, B)


async def test_a_raylet_that_dies_breaks_no_stream_without_an_error_event(cell: HostCluster) -> None:
    await asyncio.to_thread(cell.until_whole, A, B)
    async with tenant() as session:
        running = [*await streams(session, A, 6), *await streams(session, B, 6)]
        assert cell.hosts[1].kill("raylet") == 1
        ended = await asyncio.gather(*running)
    cell.note(f"raylet killed: its gateway's streams ended {[one.end for one in ended[:6]]}")
    assert [one.end for one in ended[:6]] == ["error"] * 6, ended
    assert {one.end for one in ended[6:]} <= {"done", "error"}, ended
    began = time.monotonic()
    await asyncio.to_thread(cell.until_whole, A, B)
    cell.note(f"whole {time.monotonic() - began:.0f} s later")


async def test_the_head_killed_and_its_store_lost_ends_whole_again(cell: HostCluster) -> None:
    """Ray's launcher on the new head starts Ray on both workers again, and the loop deploys the cell again."""
    await asyncio.to_thread(cell.until_whole, A, B)
    before = set(cell.replicas(A))
    cell.head.keep_running("cell", cell.shell(*cell.up_arguments), 10)
    async with tenant() as session:
        running = [*await streams(session, A, 4), *await streams(session, B, 4)]
        running += await streams(session, A, 4, 8 * LONG_TOKENS)  # they run when the workers are started again
        began = time.monotonic()
        cell.head.kill()
        shutil.rmtree(cell.head.home / ".raylane" / "drill-here" / "gcs")
        ended = await asyncio.gather(*running)
    assert [one for one in ended if one.end not in ("done", "error")] == []
    whole_s = await asyncio.to_thread(_whole_for_good, cell, before)
    cell.note(
        f"head killed, store lost: of {len(ended)} streams {sum(one.end == 'done' for one in ended)} done, "
        f"{sum(one.end == 'error' for one in ended)} ended with an error event, "
        f"{sum(one.end == 'cut' for one in ended)} broke off; whole again after {(whole_s - began) / 60:.1f} min"
    )
    async with tenant() as session:
        answers = [await ask(session, f"http://{gateway}:8000", model=MODEL, max_tokens=20) for gateway in WORKERS]
    assert [one.end for one in answers] == ["done", "done"]


def _whole_for_good(cell: HostCluster, before: set[str]) -> float:
    """When it became whole, with other replicas than before, to stay so for 15 s."""
    since: list[float] = []

    def lasts() -> bool:
        try:
            whole = cell.whole(A, B) and not set(cell.replicas(A)) & before
        except requests.RequestException:
            whole = False
        if not whole:
            since.clear()
        elif not since:
            since.append(time.monotonic())
        return whole and time.monotonic() - since[0] > 15

    eventually(lasts, 420)
    return since[0]


def test_down_leaves_ray_and_the_rendered_scripts_leave_nothing(cell: HostCluster) -> None:
    cell.head.stop_running("cell")
    done = cell.raylane("down", str(cell.folder / "spec.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert cell.alive_nodes() == [HEAD, *WORKERS]
    for gateway in WORKERS:
        with pytest.raises(requests.ConnectionError):
            requests.get(f"http://{gateway}:8000/health", timeout=2)
    actors = [host.ssh("ps ax").stdout for host in cell.hosts]
    assert not any("ServeReplica" in one or "Directory" in one or "ServeController" in one for one in actors), actors
    assert "no cluster" in cell.raylane("status", "--once").stderr
    folder = ".raylane/drill-here"
    for host, script in zip(cell.hosts, ["stop-head", "stop-worker", "stop-worker"], strict=True):
        done = host.ssh(f"sh ~/{folder}/node/{script}")
        assert done.returncode == 0, done.stdout + done.stderr
    for host in cell.hosts:
        left = [line for line in host.ssh("ps axo args").stdout.splitlines() if "ray" in line and "sshd" not in line]
        assert left == [], left
    assert not (cell.head.home / folder / "gcs").exists()
