"""A collector on loopback that takes spans as OTLP over HTTP, and keeps them as they came."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.http_server import Handler, listening


class Collector:
    def __init__(self, url: str) -> None:
        self.endpoint = url + "/v1/traces"
        self.payloads: list[bytes] = []

    @property
    def exports(self) -> list[ExportTraceServiceRequest]:
        return [ExportTraceServiceRequest.FromString(payload) for payload in self.payloads]

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for export in self.exports
            for resource in export.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, begins: str) -> list[Span]:
        return [span for span in self.spans if span.name.startswith(begins)]


def attributes(holder: Any) -> dict[str, Any]:
    """Of a span, an event or a resource."""
    found = {one.key: MessageToDict(one.value) for one in holder.attributes}
    return {key: next(iter(value.values())) for key, value in found.items()}


def seconds(span: Span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


@contextmanager
def collecting() -> Iterator[Collector]:
    class Taker(Handler):
        def do_POST(self) -> None:
            collector.payloads.append(self.rfile.read(int(self.headers["content-length"])))
            self.answer(200, b"", {"content-type": "application/x-protobuf"})

    with listening(Taker) as url:
        collector = Collector(url)
        yield collector
