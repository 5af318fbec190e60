"""Well-formed HTTP with hostile contents: any method on any path, bodies that follow the types and bodies that do not.

Drawn from a seeded source of randomness, so that a seed is a run.
"""

from __future__ import annotations

import base64
import json
import random
from typing import Any, NamedTuple
from urllib.parse import quote

from tests.fuzz.own_paths import own_target, page_headers

from kedge.api.kinds import KINDS, Kind
from kedge.api.types import FieldFacts, FieldShape, TypeFacts, type_table

METHODS = ("GET", "GET", "POST", "POST", "PUT", "PATCH", "PATCH", "DELETE", "HEAD", "OPTIONS")
NAMES = ("a", "b", "default", "kube-system", "node-1", "x" * 254, "UPPER", "a.b", "-", "é", "a\x00b", "..", "a/b", "")
NAMESPACES = ("default", "default", "default", "missing", "kube-system", "UPPER", "..")
CONTENT_TYPES = (
    "application/json", "application/json", "application/json", "application/yaml", "application/merge-patch+json",
    "application/json-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml",
    "application/vnd.kubernetes.protobuf", "text/plain", "",
)  # fmt: skip
ACCEPTS = (
    "application/json", "*/*", "application/json;as=Table;v=v1;g=meta.k8s.io", "text/html", "application/yaml",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf", ";;;", "",
)  # fmt: skip
DEEP_TEXT = base64.urlsafe_b64encode(b'{"x":' + b"[" * 2_000 + b"]" * 2_000 + b"}").decode()
"""The content of a continue token, with deep brackets."""
PARAMETERS = {
    "limit": ("1", "0", "-1", "x", "9" * 30, "1.5"),
    "continue": (DEEP_TEXT, "x", "e30=", "eyJydiI6MX0=", "\x00", "%"),
    "resourceVersion": ("0", "1", "9" * 25, "-1", "x", "１"),
    "resourceVersionMatch": ("Exact", "NotOlderThan", "x"),
    "labelSelector": ("a=b", "a in (b", "a notin (b,c)", "!a", "a==b,c!=d", ",", "(((((", "a=b=c", "é", "a in ()"),
    "fieldSelector": ("metadata.name=a", "spec.nodeName=x", "x=y", "metadata.name=a,metadata.name=b", "=", "a!=b"),
    "dryRun": ("All", "None", ""),
    "fieldValidation": ("Strict", "Warn", "Ignore", "x"),
    "fieldManager": ("m", "x" * 200, "é"),
    "pretty": ("true", "x"),
    "gracePeriodSeconds": ("0", "-1", "x", "9" * 20),
    "propagationPolicy": ("Foreground", "Background", "Orphan", "x"),
    "orphanDependents": ("true", "x"),
    "includeObject": ("None", "Object", "x"),
    "sendInitialEvents": ("true", "false", "x"),
    "allowWatchBookmarks": ("true", "x"),
    "timeoutSeconds": ("1", "-1", "x"),
    "unknown": ("x",),
}
STRINGS = (
    "",
    "a",
    "default",
    "x" * 300,
    "é",
    "\u0000",
    "\ud83d\ude00",
    "-1",
    "1Gi",
    "100m",
    "1e400",
    "NaN",
    "2020-01-01T00:00:00Z",
    "25:61",
    "50%",
    "150%",
    "a/b/c",
    "{{",
    "${x}",
    "\n",
    "app in (",
    "*",
    "0.0.0.0/33",
    "http://[",
    "v1",
    "Pod",
    "Always",
    "²",
)
NUMBERS = (0, 1, -1, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, True)
BODIES = (
    b"",
    b"null",
    b"[]",
    b"[{}]",
    b"{}",
    b"1",
    b'"x"',
    b"{",
    b"}",
    b"{]",
    b'{"a":1,}',
    b"{'a':1}",
    b'{"a":NaN}',
    b'{"a":Infinity}',
    b'{"a":1e999}',
    b'{"a":1,"a":2}',
    b'{"metadata":{"name":"a","name":"b"}}',
    b"\xff\xfe{}",
    b'{"a":"\xff"}',
    b'{"a":"\\ud800"}',
    b'{"a":"\\u0000"}',
    b"[" * 10_000,
    b'{"a":' * 10_000,
    b"[" * 200 + b"]" * 200,
    b"{}{}",
    b"{}\x00",
    b"\xef\xbb\xbf{}",
    b"a: &x [*x]",
    b"a: !!python/object:os.system x",
    b"- - - -",
    b"k8s\x00",
    b"k8s\x00\x0a\xff\xff\xff\xff\x0f",
    b"- " * 20_000,
    b"? " * 20_000,
    b"{a: " * 20_000,
    b'{"kind":"Pod"}',
    b'{"apiVersion":"v2","kind":"Pod"}',
    b'{"apiVersion":1,"kind":2}',
    b'{"metadata":[]}',
    b'{"metadata":{"labels":[]}}',
    b'{"metadata":{"name":1}}',
    b'{"metadata":{"ownerReferences":[{}]}}',
    b'[{"op":"add","path":"/metadata/labels/a","value":1}]',
    b'[{"op":"remove","path":"/x"}]',
    b'[{"op":"move","from":"/a","path":"/a/b"}]',
    b'[{"op":"test","path":"","value":{}}]',
    b'[{"op":"x"}]',
    b'[{"op":"add","path":"/spec/containers/99","value":{}}]',
    b'[{"op":"copy","from":"","path":"/metadata"}]',
    b'{"$patch":"delete"}',
    b'{"spec":{"$setElementOrder/containers":[{"name":1}]}}',
    b'{"spec":{"containers":[{"$patch":"x"}]}}',
    b'{"spec":{"$retainKeys":[1]}}',
    b'{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]}}',
    b'{"spec":null}',
    b'{"metadata":{"finalizers":["x"]}}',
    b'{"metadata":{"resourceVersion":"x"}}',
    b'{"metadata":{"uid":7}}',
    b'{"metadata":{"resourceVersion":"' + b"9" * 5_000 + b'"}}',
    b'{"metadata":{"resourceVersion":"\xc2\xb2"}}',
    b'{"preconditions":{"resourceVersion":"\xc2\xb2"}}',
    b'{"preconditions":{"resourceVersion":"' + b"9" * 5_000 + b'"}}',
    b'{"decision":"a:1","changes":"quota/x.cpu=+2"}',
)
FENCES = ("Lease.coordination.k8s.io/default/a@1", "Lease/default/a@²", "x@", "@1", "x@" + "9" * 5_000)
_OTHER_PATHS = (
    "/",
    "/api",
    "/apis",
    "/api/v1",
    "/apis/apps",
    "/apis/apps/v1",
    "/openapi/v3",
    "/openapi/v3/apis/apps/v1",
    "/version",
    "/livez",
    "/readyz/store",
    "/metrics",
    "/openapi/v2",
    "/kedge/batch",
    "/apis/metrics.k8s.io/v1beta1/pods",
    "/apis/metrics.k8s.io/v1beta1/nodes/a",
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
    "/apis/authorization.k8s.io/v1/subjectaccessreviews",
    "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews",
    "/apis/authentication.k8s.io/v1/tokenreviews",
    "/apis/authentication.k8s.io/v1/selfsubjectreviews",
    "/apis/events.k8s.io/v1/namespaces/default/events",
    "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers",
    "/api/v1/namespaces/default/pods/a/log",
    "/api/v1/namespaces/default/pods/a/exec?command=x&stdout=1",
    "/api/v1/namespaces/default/serviceaccounts/default/token",
)
_KINDS = tuple(KINDS)
_TYPES = type_table()


class FuzzRequest(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    def with_headers(self, more: dict[str, str]) -> FuzzRequest:
        return self._replace(headers={**self.headers, **more})

    def encoded(self) -> bytes:
        lines = [f"{self.method} {self.target} HTTP/1.1", "Host: x", f"Content-Length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + self.body


def fuzz_request(source: random.Random) -> FuzzRequest:
    """One request that HTTP itself finds no fault with."""
    if source.random() < 0.02:
        return _batch(source)
    return _alone(source)


def _batch(source: random.Random) -> FuzzRequest:
    """A batch of requests, some of which are no writes."""
    calls = []
    for _ in range(source.randrange(1, 6)):
        method, target, headers, body = _alone(source)
        try:
            sent = json.loads(body)
        except (ValueError, RecursionError):
            sent = None
        calls.append([method, target, headers, sent])
    return FuzzRequest("POST", "/kedge/batch", {"Content-Type": "application/json"}, json.dumps(calls).encode())


def _alone(source: random.Random) -> FuzzRequest:
    method = source.choice(METHODS)
    kind, way = source.choice(_KINDS), source.random()
    if way < 0.08:
        target = source.choice(_OTHER_PATHS)
    else:
        target = _resource_target(source, kind, method)
        if way < 0.18:
            target = own_target(source, target)
    headers = page_headers(source, target)
    if source.random() < 0.3:
        headers["Accept"] = source.choice(ACCEPTS)
    if method in ("POST", "PUT", "PATCH", "DELETE"):
        headers["Content-Type"] = source.choice(CONTENT_TYPES[4:8] if method == "PATCH" else CONTENT_TYPES)
    if source.random() < 0.02:
        headers["Impersonate-User"] = source.choice(("ada", "system:node:node-1", "é", ""))
    if source.random() < 0.02:
        headers[source.choice(("Kedge-Operation", "Kedge-Fence", "Kedge-Origins"))] = source.choice(
            (*STRINGS[:4], *FENCES)
        )
    return FuzzRequest(method, target, headers, _body(source, kind, method))


def _resource_target(source: random.Random, kind: Kind, method: str) -> str:
    parts = ["", "apis", kind.group, kind.version] if kind.group else ["", "api", kind.version]
    if kind.namespaced and source.random() < 0.9:
        parts += ["namespaces", quote(source.choice(NAMESPACES), safe="")]
    parts.append(kind.plural)
    if method in ("PUT", "PATCH") or source.random() < 0.5:
        parts.append(quote(source.choice(NAMES), safe=""))
        if source.random() < 0.3:
            every = (*sorted(kind.subresources), "status", "scale", "binding", "eviction", "gang", "ended", "nothing")
            parts.append(source.choice(every))
    query = []
    while source.random() < 0.3:
        name = source.choice(tuple(PARAMETERS))
        query.append(f"{name}={quote(source.choice(PARAMETERS[name]), safe='')}")
    if method == "GET" and source.random() < 0.05:
        query += ["watch=1", "timeoutSeconds=1"]
    return "/".join(parts) + ("?" + "&".join(query) if query else "")


def _body(source: random.Random, kind: Kind, method: str) -> bytes:
    if method in ("GET", "HEAD", "OPTIONS") or source.random() < 0.15:
        return source.choice(BODIES) if source.random() < 0.1 else b""
    if source.random() < 0.2:
        return source.choice(BODIES)
    facts = _TYPES.of_kind(kind.api_version, kind.kind)
    made: Any = _object(source, facts, 0) if facts is not None else {}
    made.update({"apiVersion": kind.api_version, "kind": kind.kind})
    if source.random() < 0.8:
        given = made.get("metadata")
        made["metadata"] = {**(given if isinstance(given, dict) else {}), "name": source.choice(NAMES[:4])}
        made["metadata"].pop("namespace", None)
    text = json.dumps(made).encode()
    if source.random() < 0.1:
        at = source.randrange(len(text))
        text = text[:at] + source.randbytes(source.randrange(3)) + text[at + source.randrange(3) :]
    return text


def _object(source: random.Random, facts: TypeFacts, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in facts.json.items():
        wanted = 0.9 if field.required else 0.35 if depth < 3 else 0.1
        if source.random() < wanted:
            found[name] = _value(source, field, depth)
    return found


def _value(source: random.Random, field: FieldFacts, depth: int) -> Any:
    if source.random() < 0.05:
        return source.choice((None, {}, [], *STRINGS[:6], *NUMBERS, [None], {"a": None}, [[]], [{}]))
    if field.shape is FieldShape.LIST:
        return [_single(source, field, depth) for _ in range(source.randrange(3))]
    if field.shape is FieldShape.MAP:
        return {source.choice(STRINGS): _single(source, field, depth) for _ in range(source.randrange(3))}
    return _single(source, field, depth)


def _single(source: random.Random, field: FieldFacts, depth: int) -> Any:
    if field.enum and source.random() < 0.7:
        return source.choice(field.enum)
    if field.scalar:
        if source.random() < 0.1:
            return source.choice((*STRINGS, *NUMBERS))
        if field.type == "bool":
            return source.random() < 0.5
        return source.choice(STRINGS) if field.type == "string" else source.choice(NUMBERS)
    facts = _TYPES[field.type]
    if depth > 6 or not facts.json:
        return source.choice((*STRINGS, *NUMBERS))
    return _object(source, facts, depth + 1)
