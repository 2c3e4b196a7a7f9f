"""A real cluster, brought up and taken down by the real command, and everything that a test may ask of it."""

import asyncio
import copy
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import requests
import yaml

from deployments.protocol import FEED_PATH, Load
from tests.feeds import Messages

ROOT = Path(__file__).resolve().parents[2]
START_S = 300.0
STOP_S = 120.0
LISTEN = "0A"
"""A listening socket's state in /proc/net/tcp."""
PATIENCE_S = 120.0
"""For waits on conditions: longer than anything takes on a busy machine."""


class LiveCluster:
    """A cluster that `raylane up` holds; `of` says which of its models is meant, else it is the first."""

    def __init__(
        self, folder: Path, name: str, port: int, environment: dict[str, str], process: subprocess.Popen[bytes]
    ) -> None:
        self.folder = folder
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.environment = environment
        self.process = process
        self.trace_file = folder / "trace.jsonl"
        self.log = folder / "up.log"
        self.run_dir = Path(environment["RAYLANE_HOME"]) / name
        self.meant: str | None = None

    def of(self, model: str) -> "LiveCluster":
        """The same cluster, as one that has this model."""
        view = copy.copy(self)
        view.meant = model
        return view

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cli.main", *arguments]
        return subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=STOP_S)

    def done(self, *arguments: str) -> str:
        """What `raylane` printed; it went well."""
        result = self.cli(*arguments)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def ask(self, path: str, url: str | None = None) -> requests.Response:
        """The answer to a GET with the cluster's secret."""
        return requests.get((url or self.url) + path, headers=self.credentials, timeout=30)

    @property
    def credentials(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.secret()}"}

    def status(self) -> dict[str, Any]:
        return dict(self.ask("/raylane/status").json())

    def model(self) -> dict[str, Any]:
        return self._model_in(self.status())

    def _model_in(self, report: dict[str, Any]) -> dict[str, Any]:
        return dict(next(model for model in report["models"] if self.meant in (None, model["name"])))

    def replicas(self) -> list[dict[str, Any]]:
        return list(self.model()["replicas"])

    def gateway_pid(self) -> int:
        return int(self.status()["gateway"]["pid"])

    def gateways(self) -> dict[str, int]:
        """The gateways that live, and their processes."""
        return {gateway["id"]: gateway["pid"] for gateway in self.status()["gateways"]}

    def owner_url(self) -> str:
        """Where the gateway that owns the model answers, whatever else answers at `url`: it alone tells the model's
        metrics and books."""
        report = self.status()
        owner = self._model_in(report)["owner"]
        return str(next(gateway["cell_url"] for gateway in report["gateways"] if gateway["id"] == owner))

    def secret(self) -> str:
        return (self.run_dir / "secret").read_text()

    def records(self) -> list[dict[str, Any]]:
        """The trace file's lines, but for one that is still being written."""
        text = self.trace_file.read_text() if self.trace_file.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def quiet(self) -> bool:
        """No flow, no lease, nobody waits, and the engines say the same."""
        report = self.status()
        model = self._model_in(report)
        idle = all(
            (r["engine_running"], r["engine_waiting"], r["engine_exchanges"], r["kv_usage"]) == (0, 0, 0, 0)
            for r in model["replicas"]
        )
        waiting = sum(lane["waiting"] for lane in model["lanes"])
        busy = any(gateway["flows"] or gateway["open_ledgers"] for gateway in report["gateways"])
        return not busy and model["leases"] == 0 and waiting == 0 and idle

    def settle(self) -> dict[str, Any]:
        """Waits until it is quiet, checks that the books balance, and returns the model's report."""
        eventually(self.quiet)
        model = self.model()
        assert model["placed"] + model["adopted"] == sum(model["endings"].values()), model
        return model

    def is_whole(self) -> bool:
        """Whether all replicas that there should be are ready, and no other is there."""
        model = self.model()
        return [replica["state"] for replica in model["replicas"]] == ["ready"] * model["desired_replicas"]

    def family(self, pid: int | None = None) -> set[psutil.Process]:
        """A process (without one, `raylane up`) and all below it."""
        head = psutil.Process(self.process.pid if pid is None else pid)
        return {head, *head.children(recursive=True)}

    def engine_core(self, replica_pid: int) -> psutil.Process:
        """A replica's EngineCore."""
        return next(
            process
            for process in psutil.Process(replica_pid).children(recursive=True)
            if "EngineCor" in " ".join(process.cmdline())
        )

    @asynccontextmanager
    async def feeds(self) -> AsyncIterator[dict[str, Load]]:
        """What each engine says of its load, from a feed of our own to each: always the newest."""
        loads: dict[str, Load] = {}

        async def follow(session: aiohttp.ClientSession, url: str) -> None:
            async with session.get(url + FEED_PATH) as response:
                async for message in Messages(response):
                    if isinstance(message, Load):
                        loads[url] = message

        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            headers={"authorization": f"Bearer {self.secret()}"}, timeout=timeout
        ) as session:
            urls = [replica["url"] for replica in self.replicas()]
            tasks = [asyncio.create_task(follow(session, url)) for url in urls]
            try:
                await eventually_async(lambda: len(loads) == len(urls))
                yield loads
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


def shipped_spec(name: str) -> dict[str, Any]:
    """A spec of `infra/specs`, to be changed."""
    spec: dict[str, Any] = yaml.safe_load((ROOT / "infra/specs" / f"{name}.yaml").read_text())
    return spec


def local_spec(replicas: int = 2, **settings: Any) -> dict[str, Any]:
    """The demo model on CPUs, with other settings of its engines."""
    spec = shipped_spec("local")
    spec["models"][0]["settings"] |= settings
    spec["models"][0]["replicas"] = {"count": replicas}
    return spec


def simulated_spec(replicas: int) -> dict[str, Any]:
    """A simulated model, whose replicas are there at once."""
    spec = shipped_spec("simulated-h100")
    spec["models"][0]["simulated"] |= {"costs": str(ROOT / "infra/specs/simulated-h100.costs.json"), "start_up_s": 0}
    spec["models"][0]["replicas"] = {"count": replicas}
    return spec


def environment_in(folder: Path) -> dict[str, str]:
    """Of `raylane`, whose home is in that folder. Engines import faults of the tests."""
    path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
    return {**os.environ, "RAYLANE_HOME": str(folder / "home"), "COLUMNS": "200", "PYTHONPATH": path}


@contextmanager
def live_cluster(folder: Path, name: str, gateways: int = 1, replicas: int = 2) -> Iterator[LiveCluster]:
    """`raylane up` with CPU replicas of the demo model."""
    spec = local_spec(replicas, max_num_seqs=32, kv_cache_memory_bytes=128 << 20)
    spec["models"][0]["health"] = {"stall_s": 8, "period_s": 1, "timeout_s": 8}
    spec["gateway"] |= {"replicas": gateways}
    with held(folder, name, spec) as cluster:
        yield cluster


@contextmanager
def held(folder: Path, name: str, spec: dict[str, Any]) -> Iterator[LiveCluster]:
    """`raylane up` with that spec, ended as Ctrl-C would; nothing of it may be left then."""
    with begun(folder, name, spec) as cluster, waited_for(cluster):
        yield cluster


@contextmanager
def begun(folder: Path, name: str, spec: dict[str, Any]) -> Iterator[LiveCluster]:
    """`raylane up` with that spec, not waited for: whoever has something else to do meanwhile."""
    port = free_port()
    named = {**spec, "name": name, "gateway": {**spec["gateway"], "port": port}}
    with up(folder, name, port, named, environment_in(folder)) as cluster:
        yield cluster


@contextmanager
def up(
    folder: Path, name: str, port: int, spec: dict[str, Any], environment: dict[str, str], *options: str
) -> Iterator[LiveCluster]:
    """`raylane up` of the cell `name` of that spec, in a folder of its own; not waited for."""
    gateway = {**spec.get("gateway", {}), "trace_file": str(folder / "trace.jsonl")}
    (folder / "spec.yaml").write_text(yaml.safe_dump({**spec, "gateway": gateway}))
    command = [sys.executable, "-m", "cli.main", "up", str(folder / "spec.yaml"), *options, "--port", str(port)]
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield LiveCluster(folder, name, port, environment, process)
    finally:
        if process.poll() is None:  # a test failed hard: end what we started, by its own way out
            process.terminate()
            process.wait(STOP_S)


@contextmanager
def waited_for(cluster: LiveCluster) -> Iterator[None]:
    """The block has a cluster that is ready; after it the cluster is taken down, and nothing of it may be left."""
    wait_ready(cluster)
    yield
    _take_down(cluster)


def wait_ready(cluster: LiveCluster) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert cluster.process.poll() is None, f"`raylane up` ended:\n{cluster.log.read_text()}"
        state = cluster.run_dir / "state.json"
        if state.exists() and json.loads(state.read_text())["ready"]:
            return
        time.sleep(0.2)
    raise AssertionError(f"not ready in {START_S:.0f} s:\n{cluster.log.read_text()}")


def _take_down(cluster: LiveCluster) -> None:
    """Ctrl-C, and a look at what is left: processes, ports, files in /dev/shm, Ray's temporary folder."""
    state = json.loads((cluster.run_dir / "state.json").read_text())
    family = cluster.family()
    sockets = sockets_of(family)
    shared = shared_memory_of(family)
    cluster.process.send_signal(signal.SIGINT)
    cluster.process.wait(STOP_S)
    assert "is down" in cluster.log.read_text(), cluster.log.read_text()
    assert cluster.process.returncode == 0
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive, f"left behind: {alive}"
    assert not sockets & listening()
    assert not [name for name in shared if Path(name).exists()]
    assert not Path(state["ray_temp_dir"]).exists()
    assert not (cluster.run_dir / "state.json").exists()


def listening() -> set[int]:
    """The inodes of the TCP sockets that listen on this machine. Ports would not do: the kernel gives one that has
    become free to the next process that asks."""
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return {int(row[9]) for row in rows if row[3] == LISTEN}


def sockets_of(processes: set[psutil.Process]) -> set[int]:
    """The inodes of the sockets that processes listen on. One that has ended meanwhile listens on none."""
    found = set()
    for process in processes:
        with suppress(OSError):
            for entry in os.scandir(f"/proc/{process.pid}/fd"):
                with suppress(OSError):  # closed meanwhile
                    target = os.readlink(entry.path)
                    if target.startswith("socket:["):
                        found.add(int(target[8:-1]))
    return found & listening()


def shared_memory_of(processes: set[psutil.Process]) -> set[str]:
    """The files in /dev/shm that processes have mapped."""
    inodes = set()
    for process in processes:
        try:
            maps = Path(f"/proc/{process.pid}/maps").read_text()
        except OSError:
            continue
        inodes |= {int(line.split(None, 5)[4]) for line in maps.splitlines() if "/dev/shm/" in line}
    return {entry.path for entry in os.scandir("/dev/shm") if entry.inode() in inodes}


def free_port() -> int:
    """A port that nobody listens on now, below the range from which the kernel gives ports to whoever asks for any
    (Ray's processes ask for many)."""
    return next(port for port in (random.randint(20_000, 32_000) for _ in range(1_000)) if can_bind(port))


def can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def eventually(holds: Callable[[], object], limit_s: float = PATIENCE_S) -> None:
    """Waits until `holds`; a gateway that does not answer counts as no."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            if holds():
                return
        except requests.RequestException:
            pass
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.05)


async def eventually_async(holds: Callable[[], object], limit_s: float = PATIENCE_S, every_s: float = 0.005) -> None:
    """Waits until `holds`, in an event loop."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        await asyncio.sleep(every_s)
