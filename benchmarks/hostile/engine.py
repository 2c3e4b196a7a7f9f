"""Bodies beside a stream of a live cell: the gateway in front of vLLM, and the same bodies sent to vLLM itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import console, in_turns, median_interval
from benchmarks.hostile.clients import Bodies, Sent, attack, watch
from benchmarks.serving.sides import Side, SideName, make_side, one_replica_spec, write_spec
from cli.private_cell import free_port

_MODEL = "demo"
_STREAM_TOKENS = 8_000
_WARM_UP = 100
_SETTLE_S = 3.0
_ALONE_S = 15.0
_PATIENCE_S = 3.0


async def beside_engine(folder: Path, seed: int, bodies: int, maximum: int, pairs: int) -> dict[str, Any]:
    """Pairs of a stream beside bodies and all shapes, and alone for as long (at most `_ALONE_S`); then what vLLM itself
    answers to the bodies, and to the shapes that the gateway did not refuse."""
    with_ms, alone_ms, sent = [], [], Sent()
    async with _started("raylane", folder) as side:
        await attack(side.url, Bodies(seed - 1, range(_WARM_UP), maximum, _MODEL, patience_s=_PATIENCE_S))
        window_s = 0.0
        before = _engine_mib(side)
        for pair in range(pairs):
            share = range(pair * bodies // pairs, (pair + 1) * bodies // pairs)
            for hostile in in_turns((True, False), pair):
                console.print(f"pair {pair + 1}: a stream {'beside bodies' if hostile else 'alone'} ...", style="dim")
                if hostile:
                    task = asyncio.ensure_future(
                        attack(side.url, Bodies(seed, share, maximum, _MODEL, pair, patience_s=_PATIENCE_S))
                    )
                    with_ms.append(await _longest_ms(side.url, task))
                    sent.add(task.result())
                    window_s = min(task.result().took_s, _ALONE_S)
                else:
                    alone_ms.append(await _longest_ms(side.url, asyncio.ensure_future(asyncio.sleep(window_s))))
            console.print(f"longest gaps: {with_ms[-1]} and {alone_ms[-1]} ms; answers so far {dict(sent.statuses)}")
        await asyncio.sleep(_SETTLE_S)
        after = _engine_mib(side)
    console.print("the same bodies to vLLM itself ...", style="dim")
    refused = frozenset(name for name, status in sent.shapes.items() if 400 <= status < 500)
    async with _started("bare", folder) as side:
        bare = await attack(side.url, Bodies(seed, range(bodies), maximum, _MODEL, 0, refused, _PATIENCE_S))
    return {
        "statuses": dict(sorted(sent.statuses.items())),
        "broken": dict(sent.broken),
        "refused_by": dict(sent.refused.most_common()),
        "shapes": sent.shapes,
        "failed": sent.failed,
        "failed_bare": bare.failed,
        "failed_here_alone": {name: status for name, status in sent.failed.items() if name not in bare.failed},
        "longest_gap_ms_beside": with_ms,
        "longest_gap_ms_alone": alone_ms,
        "longest_gap_more_ms": median_interval(
            [one - other for one, other in zip(with_ms, alone_ms, strict=True)]
        ).as_json(),
        "engine_mib": {"before": before, "after": after},
    }


@asynccontextmanager
async def _started(name: SideName, folder: Path) -> AsyncIterator[Side]:
    here = folder / name
    here.mkdir()
    side = make_side(name, write_spec(here, one_replica_spec(free_port())), here)
    try:
        await side.server.start()
        yield side
    finally:
        await side.server.stop()


async def _longest_ms(url: str, until: "asyncio.Future[Any]") -> float:
    return round(1e3 * max(await watch(url, 1, until, _MODEL, _STREAM_TOKENS)), 1)


def _engine_mib(side: Side) -> float:
    """The memory of the processes that have torch (USS)."""
    total = 0
    for process in side.server.tree():
        with suppress(psutil.Error):
            if any("libtorch" in mapped.path for mapped in process.memory_maps()):
                total += process.memory_full_info().uss
    return round(total / 2**20, 1)
