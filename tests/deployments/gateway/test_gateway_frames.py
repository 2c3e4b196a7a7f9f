"""How many Python functions the gateway enters or resumes for one piece of a stream: each takes time of the event loop,
and there are many pieces."""

import asyncio
import sys
from collections import Counter
from types import FrameType

from tests.deployments.gateway.fake_engine import DONE, event, pieces
from tests.deployments.gateway.rig import ASK, Rig

OURS = 8
"""From uvicorn's `run_asgi` down to its `send`, without what aiohttp does to read; 25 when a router and a doorstep
stood in between."""
ALL = 24


async def entered(rig: Rig, count: int) -> Counter[tuple[str, str]]:
    """The functions (module, name) that the task of a request enters or resumes while its answer of so many pieces is
    streamed."""
    parts = [part for _ in range(count) for part in (event(), 0.002)]
    rig.engines[0].behave = pieces(*parts, DONE)
    seen: Counter[tuple[str, str]] = Counter()
    loop = asyncio.get_running_loop()

    def note(frame: FrameType, what: str, argument: object) -> None:
        task = asyncio.current_task(loop) if what == "call" else None
        if task is not None and "run_asgi" in repr(task.get_coro()):
            seen[frame.f_globals["__name__"], frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        async with rig.post("/v1/completions", {**ASK, "stream": True}) as response:
            assert (await response.read()).count(b"data: ") == count + 1
    finally:
        sys.setprofile(None)
    return seen


async def test_a_piece_of_a_stream_enters_few_functions(rig: Rig) -> None:
    few, many = await entered(rig, 10), await entered(rig, 60)
    per_piece = {name: (count - few[name]) / 50 for name, count in many.items() if count - few[name] >= 5}
    ours = sum(number for (module, _), number in per_piece.items() if not module.startswith("aiohttp"))
    assert ours < OURS + 0.5, per_piece
    assert sum(per_piece.values()) < ALL + 0.5, per_piece
