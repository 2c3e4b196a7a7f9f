"""A closed ledger as OpenTelemetry spans: one for the request, its stages as children, its decisions as events. They
are made afterwards, with the ledger's times; no text of a prompt, and no header of a client, is in them.

The SDK sends them in a thread of its own, from a bounded queue: a collector that is slow or gone costs spans, nothing
else. Imported only where the spec has `tracing`: this needs the extra `otel`.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from deployments.telemetry.ledger import Ledger, RequestOutcome, Stage
from deployments.telemetry.line_log import LogHealth

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
"""The semantic conventions whose names these are: the last release that has those of `gen_ai`."""
QUEUE_SPANS = 4_096
"""Some 6 MB. A request has up to a dozen."""
_BATCH_SPANS = 128
"""Few, since the thread that encodes a batch holds up the event loop."""
_EXPORT_S = 5.0
_CLOSE_S = 2.0
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/chat/completions/batch": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}


class _Exporter(OTLPSpanExporter):
    def __init__(self, endpoint: str, health: LogHealth) -> None:
        super().__init__(endpoint, timeout=_EXPORT_S)
        self._health = health

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        if result is SpanExportResult.SUCCESS:
            self._health.well()
        else:
            self._health.lost(len(spans), ConnectionError(f"{self._endpoint} took no spans"))
        return result


class RequestSpans:
    """Of one gateway. `health` counts the spans that the collector did not take."""

    def __init__(self, endpoint: str, gateway_id: str, cell: str, health: LogHealth) -> None:
        self._exporter = _Exporter(endpoint, health)
        self._queue = BatchSpanProcessor(self._exporter, QUEUE_SPANS, max_export_batch_size=_BATCH_SPANS)
        about = {"service.name": "raylane-gateway", "service.instance.id": gateway_id, "raylane.cell": cell}
        self._resource = Resource.create(about)
        self._scope = InstrumentationScope("raylane", schema_url=SCHEMA_URL)

    def export(self, ledger: Ledger) -> None:
        """Queues the spans of a closed ledger, if it is sampled. They are made without the SDK's tracer: it would take
        half a millisecond of the event loop, and choose the id that has gone out with the request."""
        trace, began_ns = ledger.trace, round(ledger.arrived_unix_s * 1e9)
        if trace is None or not trace.sampled:
            return
        trace_id, sender = trace.trace_id, trace.parent_id

        def at_ns(after_s: float) -> int:
            return began_ns + round(after_s * 1e9)

        def named(span_id: int) -> SpanContext | None:
            return SpanContext(trace_id, span_id, span_id == sender, _SAMPLED) if span_id else None

        def add(name: str, span_id: int, parent_id: int, begins_s: float, ends_s: float, **more: Any) -> None:
            more |= {"resource": self._resource, "instrumentation_scope": self._scope}
            more |= {"start_time": at_ns(begins_s), "end_time": at_ns(ends_s)}
            self._queue.on_end(ReadableSpan(name, named(span_id), named(parent_id), **more))

        for stage, begins_s, ends_s in laid_out(ledger):
            add(stage.value, random.getrandbits(64) or 1, trace.span_id, begins_s, ends_s)
        events = []
        for one in ledger.decisions:
            facts = {key: value for key, value in one.facts.items() if isinstance(value, str | int | float)}
            events.append(Event(one.verdict.value, {"reason": one.reason, **facts}, at_ns(one.at_s)))
        failed = ledger.outcome is RequestOutcome.FAILED
        about: dict[str, Any] = {"attributes": attributes_of(ledger), "events": events, "kind": SpanKind.SERVER}
        about["status"] = Status(StatusCode.ERROR, ledger.error) if failed else Status()
        name = f"{_OPERATIONS.get(ledger.path, ledger.path)} {ledger.model}".rstrip()
        add(name, trace.span_id, sender, 0.0, ledger.wall_s, **about)

    async def close(self) -> None:
        """Sends what is queued, for `_CLOSE_S`, and a request that the collector does not answer for `_EXPORT_S`."""
        closing = asyncio.get_running_loop().run_in_executor(None, self._queue.shutdown)
        if not (await asyncio.wait([closing], timeout=_CLOSE_S))[0]:
            self._exporter.shutdown()  # type: ignore[no-untyped-call]


def laid_out(ledger: Ledger) -> Iterator[tuple[Stage, float, float]]:
    """The stages with their beginnings and ends (seconds after the arrival), end to end in the order in which they
    pass. What happened several times (a wait after a refusal; decode and stalls of the client, in turn) is in one
    piece, but for `gateway`, which is before the lane and after the engine's part."""
    stages = ledger.stages()
    whole_s = stages.pop(Stage.GATEWAY)
    first_s = whole_s if ledger.submitted_s is None else ledger.submitted_s - ledger.arrived_s
    begins_s = 0.0
    for stage, seconds in ((Stage.GATEWAY, first_s), *stages.items(), (Stage.GATEWAY, whole_s - first_s)):
        ends_s = begins_s + seconds
        if ends_s > begins_s:
            yield stage, begins_s, ends_s
            begins_s = ends_s


def attributes_of(ledger: Ledger) -> dict[str, str | int | float | bool]:
    """What the request's span says; what is not known is left out. `raylane.attempt_id` is vLLM's
    `gen_ai.request.id`."""
    done = ledger.usage
    found: dict[str, str | int | float | bool | None] = {
        "gen_ai.operation.name": _OPERATIONS.get(ledger.path),
        "gen_ai.provider.name": "raylane",
        "gen_ai.request.model": ledger.model,
        "gen_ai.request.stream": ledger.stream,
        "gen_ai.request.max_tokens": ledger.max_tokens,
        "gen_ai.response.time_to_first_chunk": ledger.ttft_s if ledger.stream else None,
        "gen_ai.usage.input_tokens": done.prompt_tokens if done else None,
        "gen_ai.usage.cache_read.input_tokens": done.cached_tokens if done else None,
        "gen_ai.usage.output_tokens": done.output_tokens if done else None,
        "http.route": ledger.path,
        "http.response.status_code": ledger.status or None,
        "error.type": ledger.error,
        "raylane.attempt_id": ledger.attempt_id,
        "raylane.outcome": ledger.outcome.value,
        "raylane.class": ledger.traffic_class,
        "raylane.tenant": ledger.tenant,
        "raylane.lane": ledger.lane,
        "raylane.replica": ledger.replica_id,
        "raylane.pick": ledger.pick,
        "raylane.region": ledger.region,
        "raylane.home": ledger.home,
    }
    return {key: value for key, value in found.items() if value is not None and value != ""}
