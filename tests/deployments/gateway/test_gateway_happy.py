"""What a well-behaved client gets."""

import json

from tests.deployments.gateway.fake_engine import DONE, event
from tests.deployments.gateway.rig import ASK, Rig


async def test_a_stream_is_relayed_untouched(rig: Rig) -> None:
    async with rig.post("/v1/completions", {**ASK, "stream": True}) as response:
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert await response.read() == event("a") + event("b") + event("c") + DONE
    await rig.settled()
    assert rig.owner.snapshot().endings["finished"] == 1


async def test_an_answer_is_relayed_untouched(rig: Rig) -> None:
    status, payload = await rig.ask()
    assert status == 200
    assert json.loads(payload)["choices"][0]["text"] == "abc"
