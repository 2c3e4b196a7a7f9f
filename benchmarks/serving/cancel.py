"""How fast work ends when its client leaves: `python -m benchmarks.serving.cancel`.

Clients leave one after the other at random moments: while they wait in the lane (the engine is kept full by a crowd of
endless streams), before their first byte (a long prompt is in prefill), and after it. Timed are the gateway's counts
(lane entry, lease), asked for every 5 ms, and what the engine says of itself after each step (sent at most every 50 ms;
no time is made better by that, only worse).
"""

import asyncio
import functools
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import numpy as np
import typer

from benchmarks.harness import JsonFile, Source, console, run_facts, run_program, write_json
from benchmarks.serving.clients import Crowd, Leaver
from benchmarks.serving.gateway import (
    Counts,
    EngineWatch,
    GatewayWatch,
    NeverError,
    engine_counters,
    engine_headers,
    engine_url,
)
from benchmarks.serving.sides import make_side, one_replica_spec, write_spec
from cli.bench.client import BenchClient
from cli.bench.prompts import TokenIds, measure_vocabulary
from cli.bench.results import spread
from cli.private_cell import free_port

SLOTS = 4
"""`max_num_seqs` of the engine under test: few, so that a small crowd fills it for long."""
_PATIENCE_S = 5.0


class LeavePoint(StrEnum):
    """When a client left."""

    QUEUED = "queued"
    BEFORE_FIRST_BYTE = "before the first byte"
    AFTER_FIRST_BYTE = "after the first byte"


@dataclass(frozen=True, slots=True)
class CancelTrial:
    """One client that left. Seconds from its leaving; None where it never happened. `disturbed`: the crowd changed
    meanwhile."""

    moment: LeavePoint
    state_s: float | None
    engine_s: float | None
    disturbed: bool


class Trials:
    """The cluster under test, its watches, and the random moments. `hung_up` counts all that left, the crowd
    included."""

    def __init__(
        self,
        url: str,
        model: str,
        max_model_len: int,
        ids: tuple[int, ...],
        watch: GatewayWatch,
        engine: EngineWatch,
        seed: int,
    ) -> None:
        self._url = url
        self._model = model
        self._max_model_len = max_model_len
        self._ids = np.array(ids)
        self._rng = np.random.default_rng(seed)
        self._watch = watch
        self._engine = engine
        self.hung_up = 0

    def _client(self, prompt_tokens: int, output_tokens: int) -> Leaver:
        """A client with a random prompt."""
        prompt = self._ids[self._rng.integers(len(self._ids), size=prompt_tokens)].tolist()
        return Leaver(self._url, self._model, prompt, output_tokens)

    def _crowd(self) -> Crowd:
        """Nobody yet; each of its clients asks for as much as the context holds."""
        return Crowd(lambda: self._client(32, self._max_model_len - 64))

    async def queued(self, clients: int) -> list[CancelTrial]:
        """Clients that leave the lane."""
        crowd = self._crowd()
        while (await self._watch.now()).waiting == 0:
            crowd.grow()
            await asyncio.sleep(0.5)
        base = await self._watch.now()
        trials = []
        for _ in range(clients):
            client = self._client(32, 64)
            await client.open()
            await self._watch.until(lambda now: now.waiting > base.waiting, _PATIENCE_S)
            trials.append(await self._leave(client, 0.3, crowd, base, running=None))
        await crowd.disperse()
        self.hung_up += clients + crowd.leaves
        return trials

    async def running(self, clients: int) -> list[CancelTrial]:
        """Clients that leave while the engine works for them, in prefill and in decode by turns."""
        crowd = self._crowd()
        for _ in range(SLOTS // 2):
            crowd.grow()
        await self._engine.until(lambda load: load.running >= len(crowd), _PATIENCE_S)
        base = await self._watch.now()
        trials = []
        for number in range(clients):
            early = number % 2 == 0
            client = self._client(self._max_model_len - 64 if early else 32, 32 if early else 2_000)
            await client.open()
            answering = asyncio.create_task(client.first_token())
            if early:
                await self._engine.until(lambda load: load.running + load.waiting > len(crowd), _PATIENCE_S)
            else:
                await answering
            trials.append(await self._leave(client, 0.05 if early else 0.5, crowd, base, running=len(crowd)))
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
        await crowd.disperse()
        self.hung_up += clients + crowd.leaves
        return trials

    async def at_rest(self) -> float:
        """Seconds until gateway and engine show no work at all, and no KV in use."""
        started = time.monotonic()
        await self._watch.until(lambda now: now.waiting == 0 and now.leases == 0, _PATIENCE_S)
        await self._engine.until(
            lambda load: load.running == 0 and load.waiting == 0 and load.kv_usage == 0, _PATIENCE_S
        )
        return time.monotonic() - started

    async def _leave(
        self, client: Leaver, within_s: float, crowd: Crowd, base: Counts, running: int | None
    ) -> CancelTrial:
        """Hangs up at a random moment and waits until nothing of the request is left. `running`: of the crowd; None for
        a client in the lane."""
        restarts = crowd.restarts
        await asyncio.sleep(float(self._rng.uniform(0, within_s)))
        moment = (
            LeavePoint.QUEUED
            if running is None
            else LeavePoint.AFTER_FIRST_BYTE
            if client.answered
            else LeavePoint.BEFORE_FIRST_BYTE
        )
        left_at = client.leave(abruptly=bool(self._rng.integers(2)))
        waits = [self._watch.until(lambda now: now.waiting <= base.waiting and now.leases <= base.leases, _PATIENCE_S)]
        if running is not None:
            waits.append(self._engine.until(lambda load: load.running <= running and load.waiting == 0, _PATIENCE_S))
        took_s = [_since(left_at, end) for end in await asyncio.gather(*waits, return_exceptions=True)]
        return CancelTrial(
            moment, took_s[0], took_s[1] if running is not None else None, disturbed=crowd.restarts != restarts
        )


def _since(start: float, end: float | BaseException) -> float | None:
    """None for what never happened. Raises any other error."""
    if isinstance(end, NeverError):
        return None
    if isinstance(end, BaseException):
        raise end
    return end - start


SCHEMA_VERSION = 1


def main(
    clients: Annotated[int, typer.Option(min=6, help="Clients that hang up.")] = 200,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    source: Source = None,
    json_file: JsonFile = None,
) -> None:
    """Time how fast lane entries, leases and engine work end when clients leave."""
    result = run_program(functools.partial(_measure, clients=clients, source=source, seed=seed))
    for moment, found in result["moments"].items():
        for what in ("state_ms", "engine_ms"):
            if found[what]["count"]:
                figures = ", ".join(f"{name} {found[what][name]:.0f}" for name in ("p50", "p99", "max"))
                console.print(
                    f"left {moment}: {what.removesuffix('_ms')} in ms: {figures} ({found[what]['count']} clients, "
                    f"never: {found['never']})"
                )
    console.print(f"{result['hung_up']} hung up in all; leases ended: {result['leases_ended']}")
    console.print(f"the engine at the end: {result['engine_at_the_end']}")
    write_json(result, json_file)


async def _measure(folder: Path, clients: int, source: str | None, seed: int) -> dict[str, Any]:
    spec = write_spec(folder, one_replica_spec(free_port(), source, {"max_num_seqs": SLOTS}))
    model = spec.models[0]
    side = make_side("raylane", spec, folder)
    try:
        await side.server.start()
        async with BenchClient(side.url, "completions") as client:
            vocabulary = await measure_vocabulary(client, model.name)
        if not isinstance(vocabulary, TokenIds):
            raise NeverError("the endpoint's /tokenize gave no token ids")
        async with aiohttp.ClientSession() as session:
            watch = GatewayWatch(session, side.url, folder)
            status = await watch.report()
            async with EngineWatch(session, engine_url(status), engine_headers(status)) as engine:
                trials = Trials(side.url, model.name, model.settings.max_model_len, vocabulary.ids, watch, engine, seed)
                ended = await trials.queued(clients // 3)
                rest_s = [await trials.at_rest()]
                ended += await trials.running(clients - clients // 3)
                rest_s.append(await trials.at_rest())
            endings = (await watch.now()).endings
            counters = await engine_counters(session, status)
    finally:
        await side.server.stop()
    return {
        "schema_version": SCHEMA_VERSION,
        **run_facts(),
        **summarise(ended),
        "at_rest_s": rest_s,
        "hung_up": trials.hung_up,
        "leases_ended": endings,
        "engine_at_the_end": counters,
    }


def summarise(trials: list[CancelTrial]) -> dict[str, Any]:
    """Spreads in milliseconds by the moment of leaving; disturbed trials are counted and left out."""
    calm = [trial for trial in trials if not trial.disturbed]
    moments = {}
    for moment in LeavePoint:
        taken = [trial for trial in calm if trial.moment is moment]
        moments[moment.value] = {
            "state_ms": spread(np.array([trial.state_s for trial in taken if trial.state_s is not None])),
            "engine_ms": spread(np.array([trial.engine_s for trial in taken if trial.engine_s is not None])),
            "never": sum(
                trial.state_s is None or (trial.engine_s is None and moment is not LeavePoint.QUEUED) for trial in taken
            ),
        }
    return {"clients": len(trials), "disturbed": len(trials) - len(calm), "moments": moments}


if __name__ == "__main__":
    typer.run(main)
