"""The cells of a drill on this machine: each is `raylane up` of one region, with a Ray, ports and a run directory of
its own, and reaches its peers over links that the drill can slow down or cut (`links.py`).

The faults that befall a cell are real ones: its processes are killed, or its simulated engines slowed down.
"""

import asyncio
import contextlib
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import yaml

from benchmarks.server_process import ServerProcess, become_subreaper
from cli.down import clean
from cli.private_cell import FOREIGN, free_port
from cli.run_dir import RunDir
from cluster.files import write_private
from cluster.spec import ClusterSpec
from planning.simulator.faults import FaultKind
from tests.live.drill.drill import Drill
from tests.live.drill.links import CellLinks

_PEERS_FILE = "peers_secret"
"""As `cluster/secrets.py` has it."""
_ASK_S = 5.0
_SETTLE_S = 0.2


class LocalCell:
    """One region's cell. `start` it; then `url` answers."""

    def __init__(self, region: str, url: str, name: str, folder: Path) -> None:
        self.region, self.url, self.folder = region, url, folder
        self.trace_file = folder / "trace.jsonl"
        self.killed_s: float | None = None
        """When it was killed (monotonic clock)."""
        self._name, self._home = name, folder / "home"
        self._replicas = 1

    def prepare(self, content: dict[str, Any]) -> None:
        """Writes its spec. Before the first start."""
        (self.folder / "spec.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        self._replicas = content["models"][0]["replicas"]["count"]
        environment = {key: value for key, value in os.environ.items() if key not in FOREIGN}
        environment |= {"RAYLANE_HOME": str(self._home)}
        command = [sys.executable, "-m", "cli.main", "up", str(self.folder / "spec.yaml"), "--region", self.region]
        self._server = ServerProcess(command, environment, self._is_ready, self.folder / "up.log")

    async def start(self) -> float:
        """Starts it; returns the seconds until it was ready. Raises ServerError."""
        took_s = await self._server.start()
        self.killed_s = None
        return took_s

    async def stop(self) -> None:
        """Ends it in order, or what is left of it."""
        await self._server.stop()
        clean(RunDir(self._name, self._home))

    async def kill(self) -> None:
        """All its processes at once, as a power cut would end them; the gateway first, which would otherwise report
        the loss of its engines."""
        gateway = int((await self.status())["gateway"]["pid"])
        tree = sorted(await asyncio.to_thread(self._server.tree), key=lambda process: process.pid != gateway)
        self.killed_s = time.monotonic()
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)

    async def lose(self, share: float) -> None:
        """Kills that share of the replicas (rounded up)."""
        replicas = await self.replicas()
        for replica in replicas[: math.ceil(share * len(replicas))]:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(int(replica["pid"])).kill()

    async def replicas(self) -> list[dict[str, Any]]:
        """Those that are there, as the gateway reports them. Raises aiohttp.ClientError, TimeoutError."""
        found: list[dict[str, Any]] = (await self.report())["replicas"]
        return found

    async def is_quiet(self) -> bool:
        """Whether nothing waits and nothing runs."""
        model = await self.report()
        return not model["leases"] and not sum(lane["waiting"] for lane in model["lanes"])

    async def report(self) -> dict[str, Any]:
        """What its gateway says of the model. Raises aiohttp.ClientError, TimeoutError."""
        model: dict[str, Any] = (await self.status())["models"][0]
        return model

    async def status(self) -> dict[str, Any]:
        """What its gateway says of the cell. Raises aiohttp.ClientError, TimeoutError."""
        headers = {"authorization": f"Bearer {self._secret()}"}
        async with (
            aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=_ASK_S)) as session,
            session.get(self.url + "/raylane/status") as response,
        ):
            found: dict[str, Any] = await response.json()
            return found

    async def _is_ready(self) -> bool:
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session,
                session.get(self.url + "/ready?model=*") as response,
            ):
                if response.status != 200:
                    return False
            return len(await self.replicas()) >= self._replicas
        except (aiohttp.ClientError, TimeoutError, OSError, LookupError):
            return False

    def _secret(self) -> str:
        return (self._home / self._name / "secret").read_text()


class LocalCells:
    """All cells of a drill, by region, with the links between them."""

    def __init__(self, cells: dict[str, LocalCell], links: CellLinks) -> None:
        self.cells, self.links = cells, links

    def urls_from(self, region: str) -> Mapping[str, str]:
        """The endpoint of each cell, as clients of a region reach it."""
        between = self.links.between
        return {name: cell.url if name == region else between[region, name].url for name, cell in self.cells.items()}

    async def settled(self) -> None:
        """Returns when nothing waits and nothing runs in any cell."""
        # They tell only when they are asked.
        while not all([await cell.is_quiet() for cell in self.cells.values()]):  # noqa: ASYNC110
            await asyncio.sleep(_SETTLE_S)

    async def begin(self, drill: Drill) -> None:
        cell = self.cells[drill.cell]
        match drill.kind:
            case FaultKind.REGION_LOSS:
                await cell.kill()
                await cell.stop()  # what is left of it
            case FaultKind.ZONE_LOSS:
                await cell.lose(drill.share)
            case FaultKind.PARTITION:
                for link in self.links.of(drill.cell, drill.others):
                    link.cut()
            case FaultKind.SLOW_LINK:
                for link in self.links.of(drill.cell, drill.others):
                    link.rtt_s += drill.more_rtt_s

    async def end(self, drill: Drill) -> None:
        """The faults are over. Serve starts the successors of lost replicas by itself, and at once."""
        cell = self.cells[drill.cell]
        match drill.kind:
            case FaultKind.REGION_LOSS:
                await cell.start()
            case FaultKind.PARTITION | FaultKind.SLOW_LINK:
                self.links.heal()
            case FaultKind.ZONE_LOSS:
                pass

    def last_hop_s(self, drill: Drill) -> float:
        """When the last request was offered to a cell that was killed, from then on (seconds; 0: none was)."""
        killed_s = self.cells[drill.cell].killed_s
        assert killed_s is not None
        ways = [link for (_, target), link in self.links.between.items() if target == drill.cell]
        return max((at_s - killed_s for link in ways for at_s in link.hops_s if at_s > killed_s), default=0.0)


@asynccontextmanager
async def local_cells(
    spec: ClusterSpec, model: str, rtt_s: Mapping[frozenset[str], float], folder: Path
) -> AsyncIterator[LocalCells]:
    """Starts a cell for each region of the spec, all at once, and takes them down again. Raises ServerError."""
    become_subreaper()
    run = secrets.token_hex(3)
    ports = {region.name: free_port() for region in spec.regions}
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    (folder / "peers").mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(folder / "peers" / _PEERS_FILE, secrets.token_hex(32))
    async with CellLinks(urls, lambda one, other: rtt_s[frozenset((one, other))]) as links:
        cells = {}
        for region in spec.regions:
            own = folder / region.name
            own.mkdir(parents=True, exist_ok=True)
            seen = {
                name: url if name == region.name else links.between[region.name, name].url for name, url in urls.items()
            }
            name = f"drill-{run}"
            cell = LocalCell(region.name, urls[region.name], f"{name}-{region.name}", own)
            content = cell_spec(spec, model, name, seen, ports[region.name], cell.trace_file, folder / "peers")
            cell.prepare(content)
            cells[region.name] = cell
        try:
            await asyncio.gather(*(cell.start() for cell in cells.values()))
            yield LocalCells(cells, links)
        finally:
            await asyncio.gather(*(cell.stop() for cell in cells.values()))


def cell_spec(
    spec: ClusterSpec, model: str, name: str, endpoints: Mapping[str, str], port: int, trace_file: Path, peers: Path
) -> dict[str, Any]:
    """The spec of one cell: one model with a fixed number of replicas, one gateway on loopback, and the endpoints as
    this cell reaches them."""
    content: dict[str, Any] = spec.model_dump(mode="json", exclude_unset=True)
    content["name"] = name
    content.pop("autoscaling", None)
    content["gateway"] = content.get("gateway", {}) | {
        "host": "127.0.0.1",
        "port": port,
        "allow_public": False,
        "trace_file": str(trace_file),
        "access_log": False,
        "replicas": 1,
    }
    for key in ("tls", "decision_log"):
        content["gateway"].pop(key, None)
    for region in content["regions"]:
        if "endpoint" in region:
            region["endpoint"] = endpoints[region["name"]]
        region.pop("deploy", None)
    if "peering" in content:
        content["peering"] |= {"secret": {"kind": "file", "folder": str(peers)}}
        content["peering"].pop("tls", None)
    content["models"] = [one for one in content["models"] if one["name"] == model]
    for one in content["models"]:
        one.pop("autoscaling", None)
        one["replicas"] = {"count": max(1, one.get("replicas", {}).get("count", 1))}
    return content
