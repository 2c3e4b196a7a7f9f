"""Whether a gateway keeps the bodies of requests whose answers have begun, by the interpreter's own account of its
memory."""

import asyncio
import gc
import tracemalloc

from aiohttp import web

from tests.deployments.gateway.fake_engine import DONE, FakeEngine, event, pieces
from tests.deployments.gateway.rig import ASK, Rig, until

STREAMS = 10
BODY_BYTES = 2 << 20


class ForgetfulEngine(FakeEngine):
    """It keeps nothing of a body, so that whatever is kept is the gateway's."""

    async def _work(self, request: web.Request) -> web.StreamResponse:
        async for _ in request.content.iter_any():
            pass
        return await self.behave(request, {})


async def streams_hold_no_bodies(home: Rig, engine: FakeEngine, **headers: str) -> None:
    """Streams that have begun, and go on: what was allocated since is a fraction of their bodies (the hashes of their
    prompts, for one)."""
    end = asyncio.Event()
    engine.behave = pieces(event(), end, DONE)
    clients = [await home.connect() for _ in range(STREAMS)]
    tracemalloc.start()
    try:
        for client in clients:
            body = {**ASK, "stream": True, "prompt": "x" * BODY_BYTES}
            await client.request("/v1/completions", body, **headers)
            del body
            assert (await client.answer_head())[0] == 200
            await client.reader.readuntil(event())
        assert len(home.service.flows) == STREAMS
        gc.collect()
        held, most = tracemalloc.get_traced_memory()
        assert most > BODY_BYTES
        assert held < STREAMS * BODY_BYTES / 4, tracemalloc.take_snapshot().statistics("traceback")[:5]
    finally:
        tracemalloc.stop()
        end.set()


async def forget(rig: Rig) -> None:
    """All that the rig itself keeps of requests, once the gateway is done with them."""
    await until(lambda: not len(rig.service.flows) and not len(rig.service.closing))
    await until(lambda: not len(rig.gateway._closed))
    await rig.gateway._costs._turn(watch=False)
    await rig.gateway._traffic.deliver(rig.gateway._directory)
    rig.closed.clear()
    rig.clients.clear()
