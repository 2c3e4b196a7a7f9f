"""A closed ledger as OpenTelemetry spans: one for the request, its stages as children, its decisions as events. They
are made afterwards, with the ledger's times; no text of a prompt, and no header of a client, is in them.

The SDK sends them in a thread of its own, from a bounded queue: a collector that is slow or gone costs spans, nothing
else. Imported only where the spec has `tracing`: this needs the extra `otel`.
"""

import asyncio
from collections.abc import Iterator, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

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
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/chat/completions/batch": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}


class _OwnIds(RandomIdGenerator):
    """A request's span gets the ids that have gone out with the request; its children get random ones."""

    trace_id = span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        span_id, self.span_id = self.span_id, 0
        return span_id or super().generate_span_id()


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
        self._ids = _OwnIds()
        self._exporter = _Exporter(endpoint, health)
        about = {"service.name": "raylane-gateway", "service.instance.id": gateway_id, "raylane.cell": cell}
        self._provider = TracerProvider(ALWAYS_ON, Resource.create(about), False, id_generator=self._ids)
        self._provider.add_span_processor(
            BatchSpanProcessor(self._exporter, QUEUE_SPANS, max_export_batch_size=_BATCH_SPANS)
        )
        self._tracer = self._provider.get_tracer("raylane", schema_url=SCHEMA_URL)

    def export(self, ledger: Ledger) -> None:
        """Queues the spans of a closed ledger, if it is sampled."""
        trace, began_ns = ledger.trace, round(ledger.arrived_unix_s * 1e9)
        if trace is None or not trace.sampled:
            return

        def at_ns(after_s: float) -> int:
            return began_ns + round(after_s * 1e9)

        around = Context()
        if trace.parent_id:
            sender = SpanContext(trace.trace_id, trace.parent_id, True, TraceFlags(TraceFlags.SAMPLED))
            around = set_span_in_context(NonRecordingSpan(sender), around)
        self._ids.trace_id, self._ids.span_id = trace.trace_id, trace.span_id
        name = f"{_OPERATIONS.get(ledger.path, ledger.path)} {ledger.model}".rstrip()
        span = self._tracer.start_span(name, around, SpanKind.SERVER, attributes_of(ledger), start_time=began_ns)
        for one in ledger.decisions:
            facts = {key: value for key, value in one.facts.items() if isinstance(value, str | int | float)}
            span.add_event(one.verdict.value, {"reason": one.reason, **facts}, at_ns(one.at_s))
        if ledger.outcome is RequestOutcome.FAILED:
            span.set_status(StatusCode.ERROR, ledger.error)
        inside = set_span_in_context(span, Context())
        for stage, begins_s, ends_s in laid_out(ledger):
            self._tracer.start_span(stage.value, inside, start_time=at_ns(begins_s)).end(at_ns(ends_s))
        span.end(at_ns(ledger.wall_s))

    async def close(self) -> None:
        """Sends what is queued, for `_CLOSE_S`, and a request that the collector does not answer for `_EXPORT_S`."""
        closing = asyncio.get_running_loop().run_in_executor(None, self._provider.shutdown)
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
    done = ledger.finished
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
