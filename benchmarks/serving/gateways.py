"""What a second gateway costs and gains on one hot model: `python -m benchmarks.serving.gateways`.

Two clusters with one replica each, one with one gateway and one with two, are loaded in turns. It reports output tokens
a second, and the gateways' CPU time per 1,000 output tokens: with two, half of the requests ask the owner over a
channel for each lease.
"""

import functools
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import psutil
import typer
import yaml

from benchmarks.harness import JsonFile, console, in_turns, median_interval, run_facts, run_program, write_json
from benchmarks.serving.contest import closed_run
from benchmarks.serving.gateway import read_status
from benchmarks.serving.sides import Side, make_side, one_replica_spec, write_spec
from cli.bench.client import BenchClient
from cli.bench.prompts import Prompts, RequestOptions, Vocabulary, measure_vocabulary
from cli.bench.record import RunRecord
from cli.private_cell import free_port

SCHEMA_VERSION = 1
_TOKENS = 64
_MODEL = "demo"


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one side: output tokens a second, and the gateways' CPU seconds per 1,000 of them."""

    tokens_per_s: float
    cpu_s_per_1000: float
    failed: int


class GatewayCluster:
    """A cluster with so many gateways."""

    def __init__(self, gateways: int, folder: Path) -> None:
        self.gateways = gateways
        folder.mkdir()
        text = yaml.safe_load(one_replica_spec(free_port()))
        text["gateway"]["replicas"] = gateways
        self.side: Side = make_side("raylane", write_spec(folder, yaml.safe_dump(text, sort_keys=False)), folder)
        self.rounds: list[Round] = []
        self._processes: list[psutil.Process] = []

    async def start(self) -> Vocabulary:
        """Brings it up, and learns what the model's tokens are."""
        await self.side.server.start()
        async with aiohttp.ClientSession() as session:
            status = await read_status(session, self.side.url, self.side.folder)
        self._processes = [psutil.Process(gateway["pid"]) for gateway in status["gateways"]]
        if len(self._processes) != self.gateways:
            raise RuntimeError(f"{len(self._processes)} gateways are up; wanted: {self.gateways}")
        async with BenchClient(self.side.url, "completions") as client:
            return await measure_vocabulary(client, _MODEL)

    async def run(self, vocabulary: Vocabulary, concurrency: int, requests: int, seed: int) -> None:
        """One round, on new connections, which the kernel spreads over the gateways."""
        record = RunRecord()
        before, began_s = self._cpu_s(), time.monotonic()
        async with BenchClient(self.side.url, "completions") as client:
            prompts = Prompts(vocabulary, RequestOptions(_MODEL, "completions", ignore_eos=True), seed)
            await closed_run(client, prompts, (_TOKENS, _TOKENS), concurrency, requests, seed, record)
        elapsed_s = time.monotonic() - began_s
        tokens = (record.ended - record.failed) * _TOKENS
        self.rounds.append(Round(tokens / elapsed_s, 1_000 * (self._cpu_s() - before) / tokens, record.failed))

    def _cpu_s(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._processes)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each side.")] = 5,
    concurrency: Annotated[int, typer.Option(min=1)] = 64,
    requests: Annotated[int, typer.Option(min=1, help="Requests in a round.")] = 600,
    json_file: JsonFile = None,
) -> None:
    """Compare one gateway with two on one hot model."""
    result = run_program(functools.partial(_measure, rounds=rounds, concurrency=concurrency, requests=requests))
    for line in result["lines"]:
        console.print(line, highlight=False)
    write_json(result, json_file)


async def _measure(folder: Path, rounds: int, concurrency: int, requests: int) -> dict[str, Any]:
    contenders = [GatewayCluster(gateways, folder / f"gateways-{gateways}") for gateways in (1, 2)]
    try:
        for contender in contenders:
            console.print(f"starting a cluster with {contender.gateways} gateways ...", style="dim")
            vocabulary = await contender.start()
        for contender in contenders:
            await contender.run(vocabulary, concurrency, requests // 3, seed=0)  # warm
            contender.rounds.clear()
        for number in range(rounds):
            for contender in in_turns(contenders, number):
                await contender.run(vocabulary, concurrency, requests, seed=number + 1)
            console.print(f"round {number + 1} of {rounds}", style="dim")
    finally:
        for contender in contenders:
            await contender.side.server.stop()
    one, two = (contender.rounds for contender in contenders)
    ratio = median_interval([mine.tokens_per_s / theirs.tokens_per_s for mine, theirs in zip(two, one, strict=True)])
    lines = [*(_line(contender) for contender in contenders), f"two gateways / one: {ratio} times the tokens/s"]
    sides = {str(contender.gateways): [asdict(one_round) for one_round in contender.rounds] for contender in contenders}
    return {
        "schema_version": SCHEMA_VERSION,
        **run_facts(),
        "concurrency": concurrency,
        "sides": sides,
        "ratio": ratio.as_json(),
        "lines": lines,
    }


def _line(contender: GatewayCluster) -> str:
    rounds: Sequence[Round] = contender.rounds
    speed = median_interval([one.tokens_per_s for one in rounds]).median
    cpu_ms = 1e3 * median_interval([one.cpu_s_per_1000 for one in rounds]).median
    failed = sum(one.failed for one in rounds)
    return (
        f"{contender.gateways} gateways: {speed:.0f} tokens/s, {cpu_ms:.1f} ms of gateway CPU per 1,000 tokens, "
        f"{failed} failed"
    )


if __name__ == "__main__":
    typer.run(main)
