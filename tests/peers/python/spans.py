"""Programs that make spans with OpenTelemetry's SDK and export them to an agent, as users of it do:

    spans.py URL request                    one span, with a canary in every place that the SDK has
    spans.py URL attempts COMMAND           two attempts of a command, children of a root that they never saw
    spans.py URL settle COMMAND START_NS    the root of a command, accepted at that time

Prints what became of each export: {"trace": "HEX", "exports": ["SUCCESS"]}.
"""

import hashlib
import json
import sys

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    format_trace_id,
    set_span_in_context,
)

EXPORTS: list[str] = []


class Exporter(OTLPSpanExporter):
    """Remembers what became of the exports."""

    def export(self, spans):
        result = super().export(spans)
        EXPORTS.append(result.name)
        return result


class Root(RandomIdGenerator):
    """The IDs of a command's root span, for the one who settles it."""

    def __init__(self, context: SpanContext) -> None:
        self.context = context

    def generate_trace_id(self) -> int:
        return self.context.trace_id

    def generate_span_id(self) -> int:
        return self.context.span_id


def root_of(command: str) -> SpanContext:
    digest = hashlib.sha256(command.encode()).digest()
    trace, span = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")
    return SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def request(tracer) -> int:
    state = TraceState([("vendor", "canary")])
    other = SpanContext(7, 9, is_remote=True, trace_flags=TraceFlags(1), trace_state=state)
    span = tracer.start_span(
        "create volume",
        context=set_span_in_context(NonRecordingSpan(other)),
        kind=SpanKind.SERVER,
        attributes={
            "http.route": "/volumes/{id}",
            "http.response.status_code": 201,
            "url.full": "https://canary.example/?q=canary",
            "canary": "key",
            "miren.runner.id": "canary",
            "command_id": ["canary"],
        },
        links=[Link(other, {"http.route": "canary"})],
    )
    span.add_event("canary", {"http.route": "canary"})
    span.record_exception(ValueError("canary"))
    span.set_status(Status(StatusCode.ERROR, "canary"))
    span.end()
    return other.trace_id


def attempts(tracer, command: str) -> int:
    root = root_of(command)
    for number in (1, 2):
        attributes = {"command_id": command, "attempt": number}
        parent = set_span_in_context(NonRecordingSpan(root))
        tracer.start_span("attach", context=parent, kind=SpanKind.CONSUMER, attributes=attributes).end()
    return root.trace_id


def settle(tracer, command: str, start: str) -> int:
    attributes = {"command_id": command, "settlement_code": "attached"}
    span = tracer.start_span("volume", attributes=attributes, start_time=int(start))
    span.set_status(Status(StatusCode.OK))
    span.end()
    return span.get_span_context().trace_id


def main() -> None:
    url, what, *arguments = sys.argv[1:]
    resource = Resource({"service.name": "agent", "service.version": "1.2.3", "miren.runner.id": "canary", "host.name": "canary"})
    provider = TracerProvider(resource=resource, id_generator=Root(root_of(arguments[0])) if what == "settle" else None)
    provider.add_span_processor(BatchSpanProcessor(Exporter(endpoint=url, compression=Compression.Gzip, timeout=10)))
    act = {"request": request, "attempts": attempts, "settle": settle}[what]
    trace = act(provider.get_tracer("canary", "canary"), *arguments)
    provider.shutdown()
    print(json.dumps({"trace": format_trace_id(trace), "exports": EXPORTS}))


main()
