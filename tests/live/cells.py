"""What tests of two cells share: a narrow link, and a spec whose cells are soon overloaded."""

import asyncio
import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tests.live.cluster import ROOT

CELLS = ("eu", "us")


class Link:
    """A TCP proxy on loopback, in a thread of its own. All its connections share `bytes_per_s`."""

    def __init__(self, port: int, target: int, bytes_per_s: float) -> None:
        self._port = port
        self._target = target
        self._bytes_per_s = bytes_per_s
        self._turn = asyncio.Lock()
        self._loop = asyncio.new_event_loop()
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

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._carry, "127.0.0.1", self._port))
        self._listening.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        """Each task ends with its connection."""
        for writer in self._open:
            writer.transport.abort()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
                async with self._turn:
                    await asyncio.sleep(len(piece) / self._bytes_per_s)
                writer.write(piece)
                await writer.drain()


def slow_parts(folder: Path) -> dict[str, Any]:
    """The parts of a spec with one slow simulated engine of 16 sequences in each cell. A lane holds any test's
    requests."""
    specs = ROOT / "infra/specs"
    spec: dict[str, Any] = yaml.safe_load((specs / "three-regions.yaml").read_text())
    limits = {"max_num_seqs": 16, "max_num_batched_tokens": 2_048}
    costs: dict[str, Any] = json.loads((specs / "simulated-h100.costs.json").read_text())
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
