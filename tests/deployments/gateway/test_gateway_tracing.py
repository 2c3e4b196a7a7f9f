"""Traces of the gateway, as a collector and the engine get them."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from deployments.protocol import DRAINING_CODE
from tests.deployments.gateway.fake_engine import good, refusing
from tests.deployments.gateway.rig import ASK, CREDENTIALS, STREAM, MakeRig, Rig, until
from tests.otlp import Collector, attributes, collecting, seconds

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with collecting() as one:
        yield one


def tracing(collector: Collector, **settings: Any) -> dict[str, Any]:
    return {"endpoint": collector.endpoint, "ratio": 1.0, **settings}


async def got(rig: Rig, collector: Collector, requests: int) -> list[Span]:
    """The spans of so many requests, in the order of their ends."""
    await rig.last(requests)
    await until(lambda: len([span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]) == requests)
    return [span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]


@pytest.mark.parametrize("body", [ASK, STREAM])
async def test_the_spans_add_up_to_the_ledger(make_rig: MakeRig, collector: Collector, body: dict[str, Any]) -> None:
    rig = await make_rig(tracing=tracing(collector))
    await rig.ask(body)
    (span,) = await got(rig, collector, 1)
    ledger, stages = rig.closed[-1], [one for one in collector.spans if one.parent_span_id == span.span_id]
    for stage, spent_s in ledger.stages().items():
        assert sum(seconds(one) for one in stages if one.name == stage.value) == pytest.approx(spent_s, abs=1e-6)
    assert seconds(span) == pytest.approx(ledger.wall_s, abs=1e-6)
    assert sum(map(seconds, stages)) + ledger.unaccounted_s == pytest.approx(seconds(span), abs=1e-6)
    assert all(
        span.start_time_unix_nano <= one.start_time_unix_nano < one.end_time_unix_nano and one.trace_id == span.trace_id
        for one in stages
    )
    assert (span.name, span.parent_span_id) == ("text_completion demo", b"")
    about = attributes(span)
    assert about["gen_ai.request.model"] == "demo"
    assert about["gen_ai.usage.output_tokens"] == str(ledger.finished.usage.output_tokens)  # type: ignore[union-attr]
    assert about["raylane.attempt_id"] == ledger.attempt_id
    assert [event.name for event in span.events] == [one.verdict.value for one in ledger.decisions]
    resource = collector.exports[0].resource_spans[0]
    assert attributes(resource.resource)["service.name"] == "raylane-gateway"
    assert resource.scope_spans[0].schema_url == "https://opentelemetry.io/schemas/1.41.0"


async def test_the_engine_and_the_client_get_the_requests_span(make_rig: MakeRig, collector: Collector) -> None:
    rig = await make_rig(tracing=tracing(collector))
    _, _, headers = await rig.answered(STREAM, headers={"traceparent": GIVEN, "tracestate": "a=1"})
    (span,) = await got(rig, collector, 1)
    own = f"00-{TRACE}-{span.span_id.hex()}-01"
    seen = rig.engines[0].seen[0].headers
    assert (seen["traceparent"], "tracestate" in seen, headers["traceresponse"]) == (own, False, own)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert rig.closed[-1].record()["trace_id"] == TRACE


async def test_nothing_of_a_prompt_or_a_header_is_in_a_span(make_rig: MakeRig, collector: Collector) -> None:
    rig = await make_rig(tracing=tracing(collector, trust_clients=True))
    named = {"authorization": "Bearer MARK1", "x-request-id": "MARK2", "user-agent": "MARK3", "cookie": "MARK4"}
    named |= {"tracestate": "a=MARK5", "traceparent": GIVEN, "x-forwarded-for": "MARK6", "baggage": "a=MARK7"}
    body = {**STREAM, "prompt": "MARK8", "user": "MARK9", "metadata": {"a": "MARK10"}}
    assert (await rig.ask(body, headers=named))[0] == 200
    assert (await rig.ask({**body, "model": "MARK11"}, headers=named))[0] == 404
    assert (await rig.ask(b'{"prompt": "MARK12', headers={**named, "x-raylane-class": "MARK13"}))[0] == 400
    assert (await rig.ask(body, headers={**named, "x-raylane-class": "MARK14"}))[0] == 400
    await got(rig, collector, 4)
    assert rig.engines[0].seen[0].headers["tracestate"] == "a=MARK5"
    assert not any(b"MARK" in payload for payload in collector.payloads)


async def test_who_is_not_sampled_leaves_no_span_and_tells_the_engine(make_rig: MakeRig, collector: Collector) -> None:
    rig = await make_rig(tracing=tracing(collector, ratio=0))
    assert (await rig.ask(headers={"traceparent": GIVEN}))[0] == 200
    assert (await rig.ask())[0] == 200
    assert {one.headers["traceparent"][-2:] for one in rig.engines[0].seen} == {"00"}
    await rig.gateway.stop()
    assert collector.payloads == []


async def test_refused_requests_are_traced_and_own_pages_are_not(make_rig: MakeRig, collector: Collector) -> None:
    rig = await make_rig(tracing=tracing(collector))
    status, _, headers = await rig.answered(b"{")
    assert status == 400
    assert headers["traceresponse"]
    assert (await rig.ask(b"", "/raylane/status", headers=CREDENTIALS))[0] == 405
    (span,) = await got(rig, collector, 1)
    assert attributes(span)["error.type"] == "invalid_json"
    assert [one.name for one in collector.spans if one is not span] == ["gateway", "text_completion"]


async def test_a_request_that_is_placed_again_adds_up(make_rig: MakeRig, collector: Collector) -> None:
    rig = await make_rig(engines=2, tracing=tracing(collector))
    rig.engines[0].behave = rig.engines[1].behave = refusing(DRAINING_CODE, times=1, then=good)
    assert (await rig.ask(STREAM))[0] == 200
    (span,) = await got(rig, collector, 1)
    stages = [one for one in collector.spans if one.parent_span_id == span.span_id]
    assert sum(map(seconds, stages)) + rig.closed[-1].unaccounted_s == pytest.approx(seconds(span), abs=1e-6)


async def test_without_the_key_a_context_passes_as_it_came(rig: Rig) -> None:
    async with rig.post("/v1/completions", ASK, headers={"traceparent": GIVEN, "tracestate": "a=1"}) as response:
        assert "traceresponse" not in response.headers
    seen = rig.engines[0].seen[0].headers
    assert (seen["traceparent"], seen["tracestate"]) == (GIVEN, "a=1")
    assert (await rig.last()).trace is None


@pytest.mark.whole
def test_without_the_key_nothing_of_it_is_imported() -> None:
    loaded = "import sys, deployments.gateway.gateway; print('opentelemetry.sdk.trace.export' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
