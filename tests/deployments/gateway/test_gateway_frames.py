"""How many Python functions the gateway enters or resumes for one piece of a stream: each takes time of the event loop,
and there are many pieces."""

import sys
from collections import Counter
from types import FrameType

from tests.deployments.gateway.fake_engine import DONE, event, pieces
from tests.deployments.gateway.rig import ASK, Rig

OURS = 6
"""Of raylane and of uvicorn; 8, and some twenty of aiohttp, when each piece took a turn of the request's task."""


async def entered(rig: Rig, count: int) -> Counter[tuple[str, str]]:
    """The functions (module, name) of the gateway that are entered or resumed while an answer of so many pieces is
    streamed."""
    parts = [part for _ in range(count) for part in (event(), 0.002)]
    rig.engines[0].behave = pieces(*parts, DONE)
    seen: Counter[tuple[str, str]] = Counter()

    def note(frame: FrameType, what: str, argument: object) -> None:
        name = frame.f_globals["__name__"]
        if what == "call" and name.startswith(("deployments.", "uvicorn.")):
            seen[name, frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        async with rig.post("/v1/completions", {**ASK, "stream": True}) as response:
            assert (await response.read()).count(b"data: ") == count + 1
    finally:
        sys.setprofile(None)
    return seen


async def test_a_piece_of_a_stream_enters_few_functions(rig: Rig) -> None:
    few, many = await entered(rig, 10), await entered(rig, 60)
    per_piece = {name: (count - few[name]) / 50 for name, count in many.items() if count - few[name] >= 25}
    assert sum(per_piece.values()) < OURS + 0.5, per_piece
