"""Spans in OpenTelemetry's protocol: as protobuf for an endpoint, and as JSON for a file or a pipe.

The JSON needs no package; the protobuf is made with `opentelemetry-proto`, which `kedge[otlp]` installs. In OTLP's JSON
ids are hexadecimal, unlike bytes in protobuf's own mapping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kedge.errors import Terminal
from kedge.observe.readers.spans import AttributeValue, Span

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

SCOPE: Final = "kedge.observe"
NAMESPACE: Final = "kedge"
"""`service.namespace`; `service.name` is the controller or scheduler, so that viewers show each as a service."""
COVERAGE: Final = "kedge.coverage"
"""The attribute of a resource with the window and the coverage of the answer that has its spans, a line for each."""
_INTERNAL, _CLIENT, _ERROR = 1, 3, 2
"""Numbers of `SPAN_KIND_INTERNAL`, `SPAN_KIND_CLIENT` and `STATUS_CODE_ERROR`."""
_SAMPLED: Final = 0x01
"""The flag of a trace that is recorded."""


def by_service(spans: Iterable[Span]) -> dict[tuple[str, str], list[Span]]:
    """Spans by service and process, each of which is one resource."""
    found: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        found.setdefault((span.service, span.process), []).append(span)
    return found


def _resource(service: str, process: str) -> dict[str, AttributeValue]:
    return {"service.namespace": NAMESPACE, "service.name": service, "service.instance.id": process}


# -- JSON ------------------------------------------------------------------------------------------


def trace_json(spans: Iterable[Span], coverage: Sequence[str] = ()) -> dict[str, Any]:
    """The body of an export request in OTLP's JSON encoding. `coverage` is an attribute of every resource."""
    covered = {COVERAGE: "\n".join(coverage)} if coverage else {}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _json_attributes({**_resource(service, process), **covered})},
                "scopeSpans": [{"scope": {"name": SCOPE}, "spans": [_json_span(each) for each in members]}],
            }
            for (service, process), members in by_service(spans).items()
        ]
    }


def _json_span(span: Span) -> dict[str, Any]:
    made: dict[str, Any] = {
        "traceId": span.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "flags": _SAMPLED,
        "name": span.name,
        "kind": _CLIENT if span.is_call else _INTERNAL,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _json_attributes(span.attributes),
    }
    if span.parent_id:
        made["parentSpanId"] = span.parent_id.hex()
    if span.links:
        made["links"] = [
            {
                "traceId": each.trace_id.hex(),
                "spanId": each.span_id.hex(),
                "attributes": _json_attributes(each.attributes),
            }
            for each in span.links
        ]
    if span.links_dropped:
        made["droppedLinksCount"] = span.links_dropped
    if span.error:
        made["status"] = {"code": _ERROR, "message": span.error}
    return made


def _json_attributes(attributes: Mapping[str, AttributeValue]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _json_value(value)} for name, value in attributes.items()]


def _json_value(value: AttributeValue) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case _:
            return {"stringValue": value}


# -- protobuf --------------------------------------------------------------------------------------


def require_protobuf() -> None:
    """Check that spans can be encoded for an endpoint.

    Raises:
        Terminal: the package is missing. The message names it.
    """
    try:
        import opentelemetry.proto.collector.trace.v1.trace_service_pb2  # noqa: F401
    except ImportError as error:
        raise Terminal(
            "spans cannot be encoded without opentelemetry-proto: install kedge[otlp], or leave out --otlp-endpoint"
        ) from error


def encode_request(spans: Sequence[Span]) -> bytes:
    """The body of an export request in protobuf. Bodies that are joined are one request with all of their spans."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource
    from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

    return ExportTraceServiceRequest(
        resource_spans=[
            ResourceSpans(
                resource=Resource(attributes=_attributes(_resource(service, process))),
                scope_spans=[
                    ScopeSpans(scope=InstrumentationScope(name=SCOPE), spans=[_span_message(each) for each in members])
                ],
            )
            for (service, process), members in by_service(spans).items()
        ]
    ).SerializeToString()


def _span_message(span: Span) -> SpanMessage:
    from opentelemetry.proto.trace.v1 import trace_pb2

    message = trace_pb2.Span
    made = message(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_id,
        flags=_SAMPLED,
        name=span.name,
        kind=message.SPAN_KIND_CLIENT if span.is_call else message.SPAN_KIND_INTERNAL,
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=_attributes(span.attributes),
        links=[
            message.Link(trace_id=each.trace_id, span_id=each.span_id, attributes=_attributes(each.attributes))
            for each in span.links
        ],
        dropped_links_count=span.links_dropped,
    )
    if span.error:
        made.status.code, made.status.message = trace_pb2.Status.STATUS_CODE_ERROR, span.error
    return made


def _attributes(attributes: Mapping[str, AttributeValue]) -> list[KeyValue]:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

    made = []
    for name, value in attributes.items():
        match value:
            case bool():
                shown = AnyValue(bool_value=value)
            case int():
                shown = AnyValue(int_value=value)
            case float():
                shown = AnyValue(double_value=value)
            case _:
                shown = AnyValue(string_value=value)
        made.append(KeyValue(key=name, value=shown))
    return made
