"""Spans of a ledger: they add up as its stages do, and a collector that is gone costs spans alone."""

import asyncio
import gc
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from opentelemetry.sdk.trace import ReadableSpan

from deployments.telemetry.ledger import RequestOutcome, Stage
from deployments.telemetry.line_log import LogHealth
from deployments.telemetry.spans import QUEUE_SPANS, RequestSpans, laid_out
from deployments.telemetry.trace_context import TraceContext
from tests.deployments.gateway.rig import until
from tests.deployments.telemetry.lives import LIVES, Life, ledger
from tests.otlp import attributes, collecting

SAMPLED = TraceContext(1 << 100, 7, 0, True)


@pytest.mark.whole
@given(LIVES)
def test_the_spans_of_a_ledger_add_up(life: Life) -> None:
    one, at_s = life.run(), 0.0
    by_stage = Counter[Stage]()
    for stage, begins_s, ends_s in laid_out(one):
        assert begins_s == at_s < ends_s
        by_stage[stage] += ends_s - begins_s  # type: ignore[assignment]
        at_s = ends_s
    assert abs(at_s + one.unaccounted_s - one.wall_s) < 1e-6
    assert all(abs(by_stage[stage] - seconds) < 1e-6 for stage, seconds in one.stages().items())


async def test_an_error_is_one_and_a_refusal_is_none() -> None:
    with collecting() as collector:
        spans = RequestSpans(collector.endpoint, "g", "here", LogHealth("spans"))
        for outcome, error in ((RequestOutcome.FAILED, "replica_lost"), (RequestOutcome.REFUSED, "context_length")):
            spans.export(ledger(trace=SAMPLED, outcome=outcome, error=error, ended_s=101.0))
        await spans.close()
    failed, refused = collector.named("/v1/completions") or collector.named("text_completion")
    assert (failed.status.code, refused.status.code) == (2, 0)
    assert attributes(refused)["error.type"] == "context_length"


@asynccontextmanager
async def silent() -> AsyncIterator[str]:
    """A collector that takes connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1/traces"


@pytest.mark.whole
async def test_a_silent_collector_neither_blocks_nor_fills_memory() -> None:
    one, health = ledger(trace=SAMPLED, submitted_s=100.1, ended_s=101.0), LogHealth("spans")
    before = sum(isinstance(thing, ReadableSpan) for thing in gc.get_objects())
    async with silent() as endpoint:
        spans = RequestSpans(endpoint, "g", "here", health)
        began_s = time.process_time()
        for _ in range(4_000):
            spans.export(one)
        cost_s = time.process_time() - began_s
        held = sum(isinstance(thing, ReadableSpan) for thing in gc.get_objects()) - before
        assert held <= QUEUE_SPANS + 1_000, "12,000 were made; a batch is under way"
        assert cost_s < 8, "two milliseconds a request, and it is some tenths of one"
        began_s = time.monotonic()
        await asyncio.wait_for(spans.close(), 10)
        assert time.monotonic() - began_s < 6


async def test_a_collector_that_is_gone_shows() -> None:
    health = LogHealth("spans")
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}/v1/traces"
    spans = RequestSpans(endpoint, "g", "here", health)
    spans.export(ledger(trace=SAMPLED, ended_s=101.0))
    began_s = time.monotonic()
    await spans.close()
    assert time.monotonic() - began_s < 6
    await until(lambda: health.lost_lines == 2)
    assert endpoint in (health.error or "")
