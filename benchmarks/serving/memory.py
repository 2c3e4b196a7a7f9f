"""What the gateway's process takes, beside an empty Serve replica in the same run, and whether it grows: `python -m
benchmarks.serving.memory`.

USS is what would come free if the process ended; PSS adds its share of what it shares. Also looked at: that neither
torch nor vLLM is mapped into it.
"""

import asyncio
import functools
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import numpy as np
import psutil
import typer

from benchmarks.harness import JsonFile, Source, console, run_facts, run_program, write_json
from benchmarks.serving.contest import closed_run
from benchmarks.serving.gateway import gateway_pid, read_status
from benchmarks.serving.sides import make_side, one_replica_spec, write_spec
from cli.bench.client import BenchClient
from cli.bench.prompts import Prompts, RequestOptions, measure_vocabulary
from cli.bench.results import RunRecord
from cli.private_cell import free_port
from cli.server_process import ServerProcess

SCHEMA_VERSION = 1
_FORBIDDEN = ("torch", "vllm")
_CHUNKS = 10
_SETTLE_S = 2.0


def main(
    requests: Annotated[int, typer.Option(min=_CHUNKS, help="All requests.")] = 10_000,
    concurrency: Annotated[int, typer.Option(min=1)] = 32,
    output_tokens: Annotated[int, typer.Option(min=1)] = 16,
    source: Source = None,
    json_file: JsonFile = None,
) -> None:
    """Measure the gateway's memory against an empty Serve replica, and its growth under load."""
    result = run_program(
        functools.partial(
            _measure, requests=requests, concurrency=concurrency, output_tokens=output_tokens, source=source
        )
    )
    for line in (
        f"gateway: {result['gateway_mib'][-1]}; an empty Serve replica: {result['empty_replica_mib']}",
        f"the gateway takes {result['extra_uss_mib']:.1f} MiB (USS) more",
        f"growth for 1,000 requests: {result['growth_kib_per_1000_requests']:.1f} KiB (USS)",
        f"mapped in the gateway: {', '.join(result['forbidden_mapped']) or 'neither torch nor vllm'}; "
        f"{result['failed']} failed requests",
    ):
        console.print(line, highlight=False)
    write_json(result, json_file)


async def _measure(
    folder: Path, requests: int, concurrency: int, output_tokens: int, source: str | None
) -> dict[str, Any]:
    spec = write_spec(folder, one_replica_spec(free_port(), source))
    side = make_side("raylane", spec, folder)
    record = RunRecord()
    async with _empty_replica(folder) as empty_pid:
        try:
            await side.server.start()
            async with aiohttp.ClientSession() as session:
                pid = gateway_pid(await read_status(session, side.url, folder))
            sizes = [await _settled_mib(pid)]
            async with BenchClient(side.url, "completions") as client:
                vocabulary = await measure_vocabulary(client, spec.models[0].name)
                prompts = Prompts(
                    vocabulary, RequestOptions(spec.models[0].name, "completions", ignore_eos=True), seed=0
                )
                for number in range(_CHUNKS):
                    share = requests // _CHUNKS
                    await closed_run(client, prompts, (32, output_tokens), concurrency, share, number, record)
                    sizes.append(await _settled_mib(pid))
            empty = await _settled_mib(empty_pid)
            forbidden = mapped(pid, _FORBIDDEN)
        finally:
            await side.server.stop()
    return {
        "schema_version": SCHEMA_VERSION,
        **run_facts(),
        "requests": record.ended,
        "failed": record.failed,
        "gateway_mib": sizes,
        "empty_replica_mib": empty,
        "extra_uss_mib": round(sizes[-1]["uss"] - empty["uss"], 2),
        "extra_pss_mib": round(sizes[-1]["pss"] - empty["pss"], 2),
        "growth_kib_per_1000_requests": round(
            growth_per_chunk([size["uss"] for size in sizes]) * 1_024 / (requests / _CHUNKS / 1_000), 2
        ),
        "forbidden_mapped": forbidden,
    }


@asynccontextmanager
async def _empty_replica(folder: Path) -> AsyncIterator[int]:
    """The process id of an empty replica, started on a Ray of its own."""
    pid_file = folder / "empty.pid"

    async def is_ready() -> bool:
        return pid_file.exists() and pid_file.read_text() != ""

    server = ServerProcess(
        [sys.executable, "-m", "benchmarks.serving.rivals", "empty", str(pid_file)],
        os.environ,
        is_ready,
        folder / "empty.log",
    )
    try:
        await server.start()
        yield int(pid_file.read_text())
    finally:
        await server.stop()


async def _settled_mib(pid: int) -> dict[str, float]:
    await asyncio.sleep(_SETTLE_S)
    memory = psutil.Process(pid).memory_full_info()
    return {name: round(getattr(memory, name) / 2**20, 2) for name in ("uss", "pss", "rss")}


def growth_per_chunk(sizes: list[float]) -> float:
    """The slope of the line through the sizes after each chunk, without the start and the first chunk, which fill
    caches."""
    later = np.array(sizes[2:])
    return float(np.polyfit(np.arange(len(later)), later, 1)[0])


def mapped(pid: int, packages: tuple[str, ...]) -> list[str]:
    """Which of the packages have a file mapped into the process."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    return [
        package for package in packages if any(f"/{package}/" in path or f"/lib{package}" in path for path in paths)
    ]


if __name__ == "__main__":
    typer.run(main)
