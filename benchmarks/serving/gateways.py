"""What a relayed event costs a gateway: `python -m benchmarks.serving.gateways`.

raylane with one gateway and with two, SMG and vLLM Router stand in front of one source of events (`source.py`), all at
once, and are loaded in turns: so many streams are open, and each answer that ends is followed by another. The processor
time is that of the gateways' own processes; Ray's are not counted.
"""

import asyncio
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import typer
import yaml
from rich.table import Table

from benchmarks.harness import (
    JsonFile,
    console,
    in_turns,
    listed,
    median_interval,
    plain_table,
    run_facts,
    run_program,
    write_json,
)
from benchmarks.server_process import ServerError, ServerProcess
from benchmarks.serving.sides import (
    ROUTERS,
    caller_environment,
    one_replica_spec,
    read_status,
    router_command,
    write_spec,
)
from benchmarks.serving.source import EVENTS_PER_S, MODEL
from cli.private_cell import free_port

SCHEMA_VERSION = 2
SIDES = ("raylane", "raylane x 2", *ROUTERS)
_EVENTS, _TURN_S = 512, 4.0
"""Events of an answer, and how long a turn is measured (seconds)."""
_SETTLE_S = 1.0
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class GatewayTurn:
    """What a side's clients got, and the processor time that its gateways took; `broken`: streams that ended early, or
    never began."""

    events_per_s: float
    cores: float
    broken: int


class StreamCounts:
    """The streams of a turn."""

    def __init__(self) -> None:
        self.begun = self.ended = self.events = self.broken = 0
        self.over = False


class StreamClient(asyncio.Protocol):
    """A connection with one stream after another, of `_EVENTS` events each but for the `first`. It only counts."""

    def __init__(self, load: StreamCounts, first: int) -> None:
        self._load = load
        self._asked = first
        self._head: bytes | None = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._load.events += data.count(b'data: {"id"')
        if self._head is not None:
            self._head += data
            if not self._head.startswith(b"HTTP/1.1 200"[: len(self._head)]):
                self._transport.abort()
            if b"data: {" in self._head:
                self._load.begun, self._head = self._load.begun + 1, None
        if data.endswith(b"0\r\n\r\n"):
            self._load.ended += 1
            self._asked = _EVENTS
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.broken += not self._load.over

    def _ask(self) -> None:
        content = {"role": "user", "content": "Say a word, and then others."}
        fields = {"model": MODEL, "messages": [content], "stream": True, "max_tokens": self._asked}
        body = json.dumps(fields).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        self._transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)


class GatewaySide:
    """One side in front of the source."""

    def __init__(self, name: str, folder: Path, source_port: int) -> None:
        self.name = name
        self.turns: dict[int, list[GatewayTurn]] = {}
        self._gateways = 2 if name.endswith(" 2") else 1
        self._port, self._folder = free_port(), folder / name.replace(" ", "")
        self._folder.mkdir()
        if name in ROUTERS:
            command = router_command(name, f"http://127.0.0.1:{source_port}", self._port)
        else:
            text = yaml.safe_load(one_replica_spec(self._port))
            text["models"][0]["replicas"] = {"count": 0}
            text["gateway"] |= {"replicas": self._gateways, "access_log": False}
            write_spec(self._folder, yaml.safe_dump(text, sort_keys=False))
            arguments = ["relay", str(self._folder / "spec.yaml"), str(source_port)]
            command = [sys.executable, "-m", "benchmarks.serving.rivals", *arguments]
        environment = caller_environment(self._folder)
        self._server = ServerProcess(command, environment, partial(_answers, self._port), self._folder / "log")
        self._pids: list[int] = []

    async def start(self) -> None:
        """Raises ServerError."""
        await self._server.start()
        if self.name in ROUTERS:
            self._pids = [process.pid for process in self._server.tree()]
            return
        deadline = time.monotonic() + _PATIENCE_S
        while len(self._pids) < self._gateways:
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name}: {len(self._pids)} gateways are up; wanted: {self._gateways}")
            async with aiohttp.ClientSession() as session:
                status = await read_status(session, f"http://127.0.0.1:{self._port}", self._folder)
            self._pids = [gateway["pid"] for gateway in status["gateways"]]

    async def stop(self) -> None:
        await self._server.stop()

    async def turn(self, streams: int) -> None:
        """So many streams for so long, on new connections. The first answers are of all lengths, so that ends are
        spread."""
        loop, load = asyncio.get_running_loop(), StreamCounts()
        transports = []
        for number in range(1, streams + 1):
            client = partial(StreamClient, load, max(1, _EVENTS * number // streams))
            transports.append((await loop.create_connection(client, "127.0.0.1", self._port))[0])
        deadline = time.monotonic() + _PATIENCE_S
        while load.begun < streams and not load.broken:
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name}: {load.begun} of {streams} streams began within {_PATIENCE_S:g} s")
            await asyncio.sleep(0.05)
        await asyncio.sleep(_SETTLE_S)
        began_s, cpu_s, before = time.monotonic(), self._cpu_s(), load.events
        await asyncio.sleep(_TURN_S)
        took_s, cpu_s, got = time.monotonic() - began_s, self._cpu_s() - cpu_s, load.events - before
        turn = GatewayTurn(round(got / took_s, 1), round(cpu_s / took_s, 5), load.broken)
        self.turns.setdefault(streams, []).append(turn)
        load.over = True
        for transport in transports:
            transport.abort()

    def _cpu_s(self) -> float:
        """By the kernel's clock of each process, to the nanosecond (`clock_getcpuclockid`)."""
        return sum(time.clock_gettime(~pid << 3 | 2) for pid in self._pids)


async def _answers(port: int) -> bool:
    """Whether a streamed chat comes to its end."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 2}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
            session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as response,
        ):
            return b"[DONE]" in await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds at each point; each side has one turn in a round.")] = 5,
    points: Annotated[str, typer.Option(help="Numbers of streams; 0: idle.")] = "0,32,64,512",
    sides: Annotated[str, typer.Option(help="The sides.")] = ",".join(SIDES),
    gpu_events_per_s: Annotated[
        float, typer.Option(min=1, help="Events that one GPU sends, for cores per GPU.")
    ] = 2_000,
    json_file: JsonFile = None,
) -> None:
    """Compare what relaying costs raylane's gateways, SMG and vLLM Router."""
    try:
        streams = [int(part) for part in points.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{points!r}; allowed: whole numbers with commas", param_hint="'--points'") from None
    chosen = listed("--sides", sides, SIDES)
    result = run_program(partial(_measure, names=chosen, points=streams, rounds=rounds))
    console.print(render(result, gpu_events_per_s))
    write_json(result, json_file)


async def _measure(folder: Path, names: list[str], points: list[int], rounds: int) -> dict[str, Any]:
    source_port = free_port()
    command = [sys.executable, "-m", "benchmarks.serving.source", str(source_port)]
    environment, ready = caller_environment(folder), partial(_answers, source_port)
    servers: list[ServerProcess | GatewaySide] = [ServerProcess(command, environment, ready, folder / "source.log")]
    try:
        await servers[0].start()
        contenders = [GatewaySide(name, folder, source_port) for name in names]
        for side in contenders:
            console.print(f"starting {side.name} ...", style="dim")
            servers.append(side)
            await side.start()
        for streams in points:
            for number in range(rounds):
                for side in in_turns(contenders, number):
                    await side.turn(streams)
            console.print(f"{streams} streams: {rounds} rounds", style="dim")
    finally:
        for server in reversed(servers):
            await server.stop()
    return {
        "schema_version": SCHEMA_VERSION,
        **run_facts(),
        "events_per_s_of_a_stream": EVENTS_PER_S,
        "events_of_an_answer": _EVENTS,
        "turn_s": _TURN_S,
        "sides": {
            side.name: {str(streams): [asdict(turn) for turn in turns] for streams, turns in side.turns.items()}
            for side in contenders
        },
    }


def render(result: dict[str, Any], gpu_events_per_s: float) -> Table:
    """One line for each side and point."""
    table = plain_table(
        f"Processor time of the gateways; cores for a GPU that sends {gpu_events_per_s:g} events/s",
        *("gateway", "streams", "events/s", "% of a core", "CPU s per million events", "interval"),
        *("events/s of a core", "cores per GPU", "broken"),
    )
    for name, points in result["sides"].items():
        for streams, turns in points.items():
            busy, rate = (statistics.median(turn[key] for turn in turns) for key in ("cores", "events_per_s"))
            costs = [1e6 * turn["cores"] / turn["events_per_s"] for turn in turns if turn["events_per_s"]]
            figures = ["-"] * 4
            if costs:
                cost = median_interval(costs)
                figures = [f"{cost.median:.1f}", f"{cost.low:.1f}-{cost.high:.1f}"]
                figures += [f"{1e6 / cost.median:,.0f}", f"{cost.median * gpu_events_per_s / 1e6:.3f}"]
            broken = str(sum(turn["broken"] for turn in turns))
            table.add_row(name, streams, f"{rate:,.0f}", f"{100 * busy:.1f}", *figures, broken)
    return table


if __name__ == "__main__":
    typer.run(main)
