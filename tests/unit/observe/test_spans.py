"""Decisions as spans: ids without a lookup, times of the records, links to causes, and two encodings that agree."""

from __future__ import annotations

import base64
import json
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from tests.kit.otlp_receiver import values_of
from tests.kit.records import BEGAN, WEB, call, decision, full_decision, pod, read

from kedge.keys import Key, Origin
from kedge.observe.readers.otlp import encode_request, trace_json
from kedge.observe.readers.spans import LINKS_MAX, READ, WOKE, span_id_of, spans_of, trace_id_of
from kedge.observe.records import SchedulingAttempt, WakeCause

START_NS = round(BEGAN.timestamp()) * 10**9
POD = Key("Pod", "default", "web-0")


def written_by(name: str, revision: int, writer: str) -> Any:
    return pod(name, revision, origin=Origin(f"{writer}#1", writer))


def parsed(document: dict[str, Any]) -> ExportTraceServiceRequest:
    """OTLP's JSON, as a receiver reads it: protobuf's mapping, but for ids, which are hexadecimal."""
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for each in (span, *span.get("links", ())):
                    for name in ("traceId", "spanId", "parentSpanId"):
                        if name in each:
                            each[name] = base64.b64encode(bytes.fromhex(each[name])).decode()
    return ParseDict(document, ExportTraceServiceRequest())


def test_a_decision_is_a_trace_with_one_child_for_each_request_at_the_times_of_the_record() -> None:
    found = full_decision("deployments:p-1:7", written_by("web-0", 5, "replicasets:p-9:3"))
    root, patch, create = spans_of(found)
    assert (root.trace_id, root.span_id) == (trace_id_of("deployments:p-1:7"), span_id_of("deployments:p-1:7"))
    assert (root.start_ns, root.end_ns) == (START_NS, START_NS + 125_000_000)
    assert (patch.start_ns, patch.end_ns) == (START_NS + 100_000_000, START_NS + 300_000_000)
    assert {patch.trace_id, create.trace_id} == {root.trace_id}
    assert {patch.parent_id, create.parent_id} == {root.span_id}
    assert (patch.name, patch.attributes["kedge.revision"], patch.error) == ("patch Deployment", 7, "")
    assert create.error == "Conflict"
    assert root.error == "none"
    assert root.attributes["kedge.outcome"] == "requeue"
    assert root.attributes["kedge.woken_by"] == "Pod/default/web-0, resync"


def test_ids_have_the_size_of_open_telemetry_and_differ_by_decision() -> None:
    names = [f"deployments:p-1:{number}" for number in range(200)]
    assert len({trace_id_of(name) for name in names}) == len({span_id_of(name) for name in names}) == 200
    assert {(len(trace_id_of(name)), len(span_id_of(name))) for name in names} == {(16, 8)}


def test_links_lead_to_the_decisions_behind_the_versions_that_woke_it_and_that_it_read() -> None:
    steps = [
        read(written_by("web-0", 5, "replicasets:p-9:3"), written_by("web-1", 6, "default-scheduler:p-2:8")),
        read(written_by("web-2", 9, "replicasets:p-9:3"), pod("web-3", 4, origin=Origin("", "", "alice"))),
    ]
    found = decision("deployments:p-1:7", steps, wakes=(("Pod/default/web-0", "replicasets"),))
    (root,) = spans_of(found)
    assert [(each.attributes["kedge.link"], each.attributes["kedge.decision"]) for each in root.links] == [
        (WOKE, "replicasets:p-9:3"),
        (READ, "default-scheduler:p-2:8"),
    ]
    assert root.links[0].trace_id == trace_id_of("replicasets:p-9:3")
    assert root.links[0].attributes["kedge.revision"] == 5


def test_a_scheduling_attempt_is_linked_by_a_lookup_of_the_versions_it_names() -> None:
    quota = Key("ZoneQuota.kedge.dev", "", "risk")
    attempt = SchedulingAttempt(pod_revision=12, cause=WakeCause(quota, 40, "quota"))
    found = decision("default-scheduler:p-2:9", key=POD, scheduling=attempt)
    writers = {(POD, 12): "replicasets:p-9:3", (quota, 40): "quota:p-9:4"}
    (root,) = spans_of(found, lambda key, revision: writers.get((key, revision)))
    assert [(each.attributes["kedge.link"], each.attributes["kedge.decision"]) for each in root.links] == [
        (WOKE, "quota:p-9:4"),
        (READ, "replicasets:p-9:3"),
    ]
    assert spans_of(found)[0].links == ()


def test_a_decision_is_not_linked_to_itself_and_links_have_a_bound() -> None:
    many = [written_by(f"web-{n}", n + 1, f"replicasets:p-9:{n}") for n in range(LINKS_MAX + 30)]
    own = written_by("mine", 999, "deployments:p-1:7")
    (root,) = spans_of(decision("deployments:p-1:7", [read(own, *many)]))
    assert (len(root.links), root.links_dropped) == (LINKS_MAX, 30)
    assert span_id_of("deployments:p-1:7") not in {each.span_id for each in root.links}


def test_both_encodings_have_the_same_spans() -> None:
    found = [
        *spans_of(full_decision("deployments:p-1:7", written_by("web-0", 5, "replicasets:p-9:3"))),
        *spans_of(decision("jobs:p-1:1", [call(revision=3)], controller="jobs", result="terminal", reason="over")),
    ]
    from_json = parsed(json.loads(json.dumps(trace_json(found))))
    assert from_json == ExportTraceServiceRequest.FromString(encode_request(found))
    services = [values_of(each.resource.attributes)["service.name"] for each in from_json.resource_spans]
    assert services == ["deployments", "jobs"]
    (root, write) = from_json.resource_spans[1].scope_spans[0].spans
    assert (root.kind, write.kind) == (SpanMessage.SPAN_KIND_INTERNAL, SpanMessage.SPAN_KIND_CLIENT)
    assert (root.status.code, root.status.message) == (Status.STATUS_CODE_ERROR, "over")
    assert write.status.code == Status.STATUS_CODE_UNSET


def test_joined_bodies_are_one_request() -> None:
    first, second = spans_of(decision("a:p:1")), spans_of(decision("a:p:2", key=WEB))
    joined = ExportTraceServiceRequest.FromString(encode_request(first) + encode_request(second))
    assert [each.scope_spans[0].spans[0].trace_id for each in joined.resource_spans] == [
        trace_id_of("a:p:1"),
        trace_id_of("a:p:2"),
    ]
