"""Bodies beside a stream of a live cell: the gateway in front of vLLM, beside ordinary prompts of the same lengths; and
the same bodies sent to vLLM itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.harness import console, median_interval
from benchmarks.hostile.clients import Bodies, Ordinary, Sent, attack, watch
from benchmarks.serving.sides import Side, SideName, make_side, one_replica_spec, write_spec
from cli.private_cell import free_port

BODIES, _PAIRS, _SEED = 3_000, 5, 0
_WARM_UP = 100
_SETTLE_S = 3.0
_PATIENCE_S = 3.0


async def beside_engine(folder: Path, maximum: int) -> dict[str, Any]:
    """Pairs of a stream beside bodies and all shapes, and beside ordinary prompts of the lengths that were answered;
    then vLLM itself beside the same bodies, and the shapes that the gateway did not refuse."""

    def hostile(pair: int, without: frozenset[str] = frozenset()) -> Bodies:
        share = range(pair * BODIES // _PAIRS, (pair + 1) * BODIES // _PAIRS)
        return Bodies(_SEED, share, maximum, pair, without, _PATIENCE_S)

    warm_up = Bodies(_SEED - 1, range(_WARM_UP), maximum, patience_s=_PATIENCE_S)
    with_ms: list[float] = []
    ordinary_ms: list[float] = []
    bare_ms: list[float | str] = []
    sent, bare = Sent(), Sent()
    mib: dict[str, list[float]] = {}
    async with _started("raylane", folder, warm_up, mib) as side:
        for pair in range(_PAIRS):
            now, gap_ms = await _beside(side.url, hostile(pair))
            sent.add(now)
            with_ms.append(gap_ms)
            ordinary = Ordinary(f"{_SEED}/{pair}", tuple(now.lengths), _PATIENCE_S)
            ordinary_ms.append((await _beside(side.url, ordinary, now.took_s))[1])
            console.print(f"pair {pair + 1}: {with_ms[-1]} and {ordinary_ms[-1]} ms; so far {dict(sent.statuses)}")
    refused = frozenset(name for name, status in sent.shapes.items() if 400 <= status < 500)
    async with _started("bare", folder, warm_up, mib) as side:
        for pair in range(_PAIRS):
            try:
                now, gap_ms = await _beside(side.url, hostile(pair, refused))
            except aiohttp.ClientError as error:  # a server that ends with its bodies is a result, too
                bare_ms.append(type(error).__name__)
                console.print(f"pair {pair + 1}, vLLM alone: its stream broke: {error}")
                break
            bare.add(now)
            bare_ms.append(gap_ms)
            console.print(f"pair {pair + 1}, vLLM alone: {gap_ms} ms")
    return {
        "statuses": dict(sorted(sent.statuses.items())),
        "broken": dict(sent.broken),
        "refused_by": dict(sent.refused.most_common()),
        "shapes": sent.shapes,
        "failed": sent.failed,
        "failed_bare": bare.failed,
        "longest_gap_ms_beside": with_ms,
        "longest_gap_ms_ordinary": ordinary_ms,
        "longest_gap_ms_bare": bare_ms,
        "longest_gap_more_ms": median_interval(
            [one - other for one, other in zip(with_ms, ordinary_ms, strict=True)]
        ).as_json(),
        "engine_mib": mib,
    }


@asynccontextmanager
async def _started(name: SideName, folder: Path, warm_up: Bodies, mib: dict[str, list[float]]) -> AsyncIterator[Side]:
    """A warm side. `mib` gets its engine's memory before and after."""
    here = folder / name
    here.mkdir()
    side = make_side(name, write_spec(here, one_replica_spec(free_port())), here)
    try:
        await side.server.start()
        await attack(side.url, warm_up)
        mib[name] = [_engine_mib(side)]
        yield side
        await asyncio.sleep(_SETTLE_S)
        mib[name].append(_engine_mib(side))
    finally:
        await side.server.stop()


async def _beside(url: str, bodies: Bodies | Ordinary, at_least_s: float = 0.0) -> tuple[Sent, float]:
    """Sends the bodies beside one stream. Its longest gap in ms."""
    task = asyncio.ensure_future(attack(url, bodies))
    longest_s = await watch(url, asyncio.gather(task, asyncio.sleep(at_least_s)))
    return task.result(), round(1e3 * longest_s, 1)


def _engine_mib(side: Side) -> float:
    """The memory of the processes that have torch (USS)."""
    total = 0
    for process in side.server.tree():
        with suppress(psutil.Error):
            if any("libtorch" in mapped.path for mapped in process.memory_maps()):
                total += process.memory_full_info().uss
    return round(total / 2**20, 1)
