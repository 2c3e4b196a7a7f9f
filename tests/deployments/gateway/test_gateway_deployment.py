"""What a gateway does when the process dies that started it. With Ray: `tests/live/test_live_hosts.py`."""

import asyncio
import time

import pytest

from deployments.gateway import deployment
from tests.deployments.gateway.fake_engine import event, pieces
from tests.deployments.gateway.rig import ASK, Rig
from tests.deployments.gateway.test_gateway_timeouts import last_events


@pytest.mark.whole
async def test_its_streams_end_with_an_error_event_when_its_parent_dies(rig: Rig) -> None:
    rig.engines[0].behave = pieces(event("a"), asyncio.Event())
    parent = await asyncio.create_subprocess_exec("sleep", "60")
    deployment._end_streams_with(parent.pid, rig.gateway, asyncio.get_running_loop())
    async with rig.post("/v1/completions", {**ASK, "stream": True}) as response:
        assert await response.content.readany()
        parent.kill()
        began = time.monotonic()
        rest = await response.read()
        assert time.monotonic() - began < 0.5, "Ray's workers live on for a second at most"
    await parent.wait()
    assert last_events(rest)[1]["code"] == "draining"
    assert (await rig.error())[0] == 503
