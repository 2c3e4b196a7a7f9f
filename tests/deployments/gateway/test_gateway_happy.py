"""What a well-behaved client gets."""

import asyncio
import random

import pytest

from tests.deployments.gateway.fake_engine import DONE, event, pieces
from tests.deployments.gateway.rig import ASK, Rig


async def test_a_stream_is_relayed_untouched(rig: Rig) -> None:
    async with rig.post("/v1/completions", {**ASK, "stream": True}) as response:
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert await response.read() == event("a") + event("b") + event("c") + DONE
    await rig.settled()
    assert rig.owner.snapshot().endings["finished"] == 1


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(4))
async def test_a_stream_is_relayed_untouched_however_it_comes_and_is_read(rig: Rig, seed: int) -> None:
    """Events that come whole, cut or several at once; a client that does not read for a while, and then does."""
    draw = random.Random(seed)
    stream = b"".join(event("x" * draw.choice((1, 20, 3_000, 90_000))) for _ in range(200)) + DONE
    parts: list[bytes | float] = []
    at = 0
    while at < len(stream):
        end = stream.index(b"\n\n", at) + 2 if draw.random() < 0.8 else at + draw.randint(1, 9_000)
        parts += [stream[at:end], *([0.0] if draw.random() < 0.7 else [])]
        at = end
    rig.engines[0].behave = pieces(*parts)
    client = await rig.connect({**ASK, "stream": True}, small=True)
    await client.answer_head()
    body = b""
    while size := int(await client.reader.readuntil(b"\r\n"), 16):
        body += (await client.reader.readexactly(size + 2))[:-2]
        if draw.random() < 0.05:
            await asyncio.sleep(0.02)
    assert body == stream
    assert (await rig.last()).pieces > 1


async def test_an_event_stream_without_a_body(rig: Rig) -> None:
    rig.engines[0].behave = pieces(status=204)
    status, error = await rig.error({**ASK, "stream": True})
    assert (status, error["code"]) == (502, "replica_lost")
