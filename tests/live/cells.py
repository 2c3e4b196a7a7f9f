"""Two live cells of one spec, each its own `raylane up` with its own Ray; and a link between them that a test can
cut."""

import asyncio
import json
import math
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.live.cluster import ROOT, LiveCluster, environment_in, free_port, shipped_spec, up, waited_for

CELLS = ("eu", "us")


class Link:
    """A TCP proxy on loopback, in a thread of its own. While it is cut, its connections stay open and carry nothing,
    and new ones come to nothing, as behind a router that drops packets. All of them share `bytes_per_s`."""

    def __init__(self, port: int, target: int, bytes_per_s: float = math.inf) -> None:
        self._port = port
        self._target = target
        self._bytes_per_s = bytes_per_s
        self._turn = asyncio.Lock()
        self._loop = asyncio.new_event_loop()
        self._whole = asyncio.Event()
        self._whole.set()
        self._listening = threading.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)

    def __enter__(self) -> "Link":
        self._thread.start()
        assert self._listening.wait(10)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._whole.clear)

    def heal(self) -> None:
        self._loop.call_soon_threadsafe(self._whole.set)

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._carry, "127.0.0.1", self._port))
        self._listening.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        """Each task ends with its connection."""
        self._whole.set()
        for writer in self._open:
            writer.transport.abort()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, back}
        ends = [asyncio.create_task(self._pump(reader, back)), asyncio.create_task(self._pump(there, writer))]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        for one in (writer, back):
            one.transport.abort()
        self._open -= {writer, back}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(65_536):
                await self._whole.wait()
                async with self._turn:
                    await asyncio.sleep(len(piece) / self._bytes_per_s)
                writer.write(piece)
                await writer.drain()


class LiveCells:
    """By name. `link`: the way from any other cell to `us`."""

    def __init__(self, by_name: dict[str, LiveCluster], link: Link) -> None:
        self.by_name = by_name
        self.link = link

    def __getitem__(self, name: str) -> LiveCluster:
        return self.by_name[name]

    def metric(self, cell: str, name: str) -> float:
        """The sum over all samples of a metric."""
        lines = self[cell].ask("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + "{", name + " ")))


def slow_parts(folder: Path) -> dict[str, Any]:
    """The parts of a spec with one slow simulated engine of 16 sequences in each cell. A lane holds any test's
    requests."""
    spec = shipped_spec("three-regions")
    limits = {"max_num_seqs": 16, "max_num_batched_tokens": 2_048}
    costs: dict[str, Any] = json.loads((ROOT / "infra/specs/simulated-h100.costs.json").read_text())
    costs["engine"] |= limits
    (folder / "costs.json").write_text(json.dumps(costs))
    model = spec["models"][0]
    model["simulated"] |= {"costs": str(folder / "costs.json"), "speed": 0.3, "start_up_s": 0}
    model["settings"] |= limits | {"max_model_len": 8_192}
    model["replicas"] = {"count": 1}
    return {
        "pools": [{"name": "h100", "accelerator": "H100", "gpus_per_node": 1}],
        "models": [model],
        "classes": [{"name": "interactive", "ttft_ms": 1_000}],
        "lanes": [lane | {"cap_s": 300} for lane in spec["lanes"]],
    }


@contextmanager
def live_cells(folder: Path, spec: dict[str, Any]) -> Iterator[LiveCells]:
    """`raylane up` for both cells of that spec (models, classes and so on), and nothing of them left afterwards."""
    ports = {name: free_port() for name in CELLS}
    way_in = {"eu": ports["eu"], "us": free_port()}
    secrets = folder / "peers"
    secrets.mkdir()
    (secrets / "peers_secret").write_text("a secret of live cells, of 32 letters at least")
    regions = [{"name": name, "endpoint": f"http://127.0.0.1:{way_in[name]}", "pools": spec["pools"]} for name in CELLS]
    content = {name: value for name, value in spec.items() if name != "pools"}
    content |= {"name": "peers", "regions": regions, "peering": {"secret": {"kind": "file", "folder": str(secrets)}}}
    environment = environment_in(folder)
    with ExitStack() as stack:
        link = stack.enter_context(Link(way_in["us"], ports["us"]))
        begun = {}
        for name in CELLS:
            (own := folder / name).mkdir()
            cell = up(own, f"peers-{name}", ports[name], content, environment, "--region", name)
            begun[name] = stack.enter_context(cell)
        for cluster in begun.values():
            stack.enter_context(waited_for(cluster))
        yield LiveCells(begun, link)
