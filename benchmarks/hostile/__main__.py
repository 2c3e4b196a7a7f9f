"""`python -m benchmarks.hostile`: hostile bodies alone, for what each costs; then beside streams, in turns with streams
alone."""

import asyncio
import statistics
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from benchmarks.harness import JsonFile, console, in_turns, median_interval, run_facts, run_program, write_json
from benchmarks.hostile.clients import Bodies, Sent, attack, watch
from benchmarks.hostile.engine import beside_engine
from benchmarks.hostile.stack import Cost, Stack
from cli.private_cell import free_port

_WARM_UP = 1_500
LIMIT_MS = 20.0
"""What a body may cost the loop's thread."""


def main(
    bodies: Annotated[int, typer.Option(min=10, help="Bodies in each of the two parts.")] = 10_000,
    max_mib: Annotated[
        float, typer.Option(min=0.001, max=8, help="The largest body. 8 is the gateway's limit.")
    ] = 7.999,
    pairs: Annotated[int, typer.Option(min=1, help="Rounds of streams, beside some of the bodies and alone.")] = 5,
    streams: Annotated[int, typer.Option(min=1, help="Observed streams.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the bodies.")] = 0,
    parts: Annotated[
        str, typer.Option(help="`alone`, `beside`, `engine` (a live cell and bare vLLM), separated by commas.")
    ] = "alone,beside",
    json_file: JsonFile = None,
) -> None:
    """Measure what hostile bodies cost."""
    maximum = round(max_mib * 2**20)

    async def work(folder: Path) -> dict[str, Any]:
        if parts == "engine":
            found = await beside_engine(folder, seed, bodies, maximum, pairs)
            return {"schema": 1, **run_facts(), "bodies": bodies, "max_bytes": maximum, "seed": seed, "engine": found}
        stack = await asyncio.to_thread(Stack, folder, free_port())
        try:
            result: dict[str, Any] = {"schema": 1, **run_facts(), "bodies": bodies, "max_bytes": maximum, "seed": seed}
            await attack(
                stack.url, Bodies(seed - 1, range(_WARM_UP), maximum)
            )  # what is allocated once, and bounded caches that fill, are no leak
            if "alone" in parts:
                result["alone"] = await _alone(stack, seed, bodies, maximum)
            if "beside" in parts:
                result["beside"] = await _beside(stack, seed, bodies, maximum, pairs, streams)
            return result
        finally:
            stack.stop()

    result = run_program(work)
    _show_engine(result["engine"]) if parts == "engine" else _show(result)
    write_json(result, json_file)


async def _alone(stack: Stack, seed: int, bodies: int, maximum: int) -> dict[str, Any]:
    stack.costs()
    before = stack.memory_mib()
    console.print(f"{bodies} bodies alone ...", style="dim")
    sent = await attack(stack.url, Bodies(seed, range(bodies), maximum))
    await asyncio.sleep(3)  # ledgers wait for the engine's statistics
    costs = stack.costs()
    loop_ms = {name: 1e3 * cost.loop_s for name, cost in costs.items() if name in sent.sizes}
    dear = sorted(loop_ms, key=loop_ms.__getitem__, reverse=True)[:5]
    return {
        **_answers(sent),
        "noted": len(loop_ms),
        "loop_cpu_ms": _quantiles(list(loop_ms.values())),
        "over_limit": sum(value > LIMIT_MS for value in loop_ms.values()),
        "dearest": [
            {"number": name, "path": sent.sizes[name][0], "bytes": sent.sizes[name][1], **_shown(costs[name])}
            for name in dear
        ],
        "reading_cpu_ms": _quantiles([1e3 * costs[name].read_s for name in loop_ms]),
        "memory_mib": {
            "before": round(before, 1),
            "after": round(stack.memory_mib(), 1),
            "peak_resident": round(stack.peak_mib(), 1),
        },
    }


async def _beside(stack: Stack, seed: int, bodies: int, maximum: int, pairs: int, streams: int) -> dict[str, Any]:
    with_ms, without_ms, sent = [], [], Sent()
    stack.costs()
    before = stack.memory_mib()
    for pair in range(pairs):
        share = range(pair * bodies // pairs, (pair + 1) * bodies // pairs)
        for hostile in in_turns((False, True), pair):
            console.print(f"pair {pair + 1}: streams {'beside bodies' if hostile else 'alone'} ...", style="dim")
            if hostile:
                task = asyncio.ensure_future(attack(stack.url, Bodies(seed, share, maximum)))
                with_ms.append(_quantiles([1e3 * gap.s for gap in await watch(stack.url, streams, task)]))
                sent.add(task.result())
            else:
                alone = asyncio.ensure_future(asyncio.sleep(20))
                without_ms.append(_quantiles([1e3 * gap.s for gap in await watch(stack.url, streams, alone)]))
    await asyncio.sleep(3)
    stack.costs()
    more = [one["p99.9"] - other["p99.9"] for one, other in zip(with_ms, without_ms, strict=True)]
    return {
        **_answers(sent),
        "gap_ms_beside": with_ms,
        "gap_ms_alone": without_ms,
        "p99.9_more_ms": median_interval(more).as_json(),
        "memory_mib": {
            "before": round(before, 1),
            "after": round(stack.memory_mib(), 1),
            "peak_resident": round(stack.peak_mib(), 1),
        },
    }


def _answers(sent: Sent) -> dict[str, Any]:
    return {
        "statuses": dict(sorted(sent.statuses.items())),
        "broken": dict(sent.broken),
        "took_s": round(sent.took_s, 1),
    }


def _shown(cost: Cost) -> dict[str, Any]:
    return {"status": cost.status, "loop_ms": round(1e3 * cost.loop_s, 2), "reading_ms": round(1e3 * cost.read_s, 2)}


def _quantiles(values: list[float]) -> dict[str, float]:
    found = np.quantile(values, [0.5, 0.99, 0.999, 1.0])
    return {
        "count": len(values),
        **{name: round(float(value), 2) for name, value in zip(("p50", "p99", "p99.9", "max"), found, strict=True)},
    }


def _show(result: dict[str, Any]) -> None:
    table = Table("", "median", "p99", "p99.9", "maximum", title="milliseconds")
    if alone := result.get("alone"):
        for name, key in (("loop's thread, a body", "loop_cpu_ms"), ("reading, any thread", "reading_cpu_ms")):
            table.add_row(name, *(f"{alone[key][quantile]:.2f}" for quantile in ("p50", "p99", "p99.9", "max")))
    if beside := result.get("beside"):
        for name, key in (("gap of a stream, alone", "gap_ms_alone"), ("gap of a stream, beside", "gap_ms_beside")):
            row = (
                statistics.median(run[quantile] for run in beside[key]) for quantile in ("p50", "p99", "p99.9", "max")
            )
            table.add_row(name, *(f"{value:.2f}" for value in row))
    console.print(table)
    for part in ("alone", "beside"):
        if found := result.get(part):
            console.print(
                f"{part}: answers {found['statuses']}, broken {found['broken']}, memory MiB {found['memory_mib']}"
            )
    if alone:
        console.print(
            f"over {LIMIT_MS:.0f} ms: {alone['over_limit']} of {alone['noted']}; the most expensive: {alone['dearest']}"
        )
    if beside:
        console.print(f"p99.9 of the gaps beside, less that alone: {beside['p99.9_more_ms']} ms")


def _show_engine(found: dict[str, Any]) -> None:
    for name, value in found.items():
        console.print(f"{name}: {value}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
