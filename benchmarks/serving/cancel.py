"""How fast work ends when its client leaves: `python -m benchmarks.serving.cancel`.

Clients leave one after the other at random moments: while they wait in the lane (the engine is kept full by a crowd of endless streams), before their
first byte (a long prompt is in prefill), and after it. Timed are the gateway's books (lane entry, lease), asked for every 5 ms, and what the engine
says of itself after each step (told at most every 50 ms; no time is made better by that, only worse).
"""

import functools
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import numpy as np
import typer

from benchmarks.serving.gateway import engine_counters, engine_headers, engine_url
from benchmarks.serving.machine import run_facts
from benchmarks.serving.program import console, run_program, write_json
from benchmarks.serving.sides import make_side
from benchmarks.serving.spec import one_replica_spec, write_spec
from benchmarks.serving.trials import SLOTS, Moment, Trial, Trials
from benchmarks.serving.watch import BooksWatch, EngineWatch, NeverError
from cli.bench.client import Client
from cli.bench.prompts import TokenIds, measure_vocabulary
from cli.bench.report import spread
from cli.private_cell import free_port

SCHEMA_VERSION = 1


def main(
    clients: Annotated[int, typer.Option(min=6, help="Clients that leave.")] = 200,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    source: Annotated[str | None, typer.Option(help="Another model than the spec's: a folder or a hub name.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.")] = None,
) -> None:
    """Time how fast lane entries, leases and engine work end when clients leave."""
    result = run_program(functools.partial(_measure, clients=clients, source=source, seed=seed))
    for moment, found in result["moments"].items():
        for what in ("books_ms", "engine_ms"):
            if found[what]["count"]:
                figures = ", ".join(f"{name} {found[what][name]:.0f}" for name in ("p50", "p99", "max"))
                console.print(f"left {moment}: {what.removesuffix('_ms')} in ms: {figures} ({found[what]['count']} clients, never: {found['never']})")
    console.print(f"{result['hung_up']} hung up in all; leases ended: {result['leases_ended']}")
    console.print(f"the engine at the end: {result['engine_at_the_end']}")
    write_json(result, json_file)


async def _measure(folder: Path, clients: int, source: str | None, seed: int) -> dict[str, Any]:
    spec = write_spec(folder, one_replica_spec(free_port(), source, {"max_num_seqs": SLOTS}))
    model = spec.models[0]
    side = make_side("raylane", spec, folder)
    try:
        await side.server.start()
        async with Client(side.url, "completions") as client:
            vocabulary = await measure_vocabulary(client, model.name)
        if not isinstance(vocabulary, TokenIds):
            raise NeverError("the endpoint's /tokenize gave no token ids")
        async with aiohttp.ClientSession() as session:
            books = BooksWatch(session, side.url, folder)
            status = await books.report()
            async with EngineWatch(session, engine_url(status), engine_headers(status)) as engine:
                trials = Trials(side.url, model.name, model.settings.max_model_len, vocabulary.ids, books, engine, seed)
                ended = await trials.queued(clients // 3)
                rest_s = [await trials.at_rest()]
                ended += await trials.running(clients - clients // 3)
                rest_s.append(await trials.at_rest())
            endings = (await books.now()).endings
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


def summarise(trials: list[Trial]) -> dict[str, Any]:
    """Spreads in milliseconds by the moment of leaving; disturbed trials are counted and left out."""
    calm = [trial for trial in trials if not trial.disturbed]
    moments = {}
    for moment in Moment:
        taken = [trial for trial in calm if trial.moment is moment]
        moments[moment.value] = {
            "books_ms": spread(np.array([trial.books_s for trial in taken if trial.books_s is not None])),
            "engine_ms": spread(np.array([trial.engine_s for trial in taken if trial.engine_s is not None])),
            "never": sum(trial.books_s is None or (trial.engine_s is None and moment is not Moment.QUEUED) for trial in taken),
        }
    return {"clients": len(trials), "disturbed": len(trials) - len(calm), "moments": moments}


if __name__ == "__main__":
    typer.run(main)
