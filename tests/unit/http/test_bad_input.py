"""Bad input gets a `Status` that names the fault: one row each."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from tests.kit.api_server import local_api
from tests.kit.loops import on_loop
from tests.kit.raw_http import CONFIG_MAPS, MERGE, STRATEGIC, create_config_map, sent

JSON, JSON_PATCH, YAML = "application/json", "application/json-patch+json", "application/yaml"
MAP = f"{CONFIG_MAPS}/a"
PODS = "/api/v1/namespaces/default/pods"


class Row(NamedTuple):
    name: str
    method: str
    path: str
    body: bytes | None
    code: int
    reason: str
    says: str
    """A part of the message."""
    content_type: str = JSON


ROWS = (
    Row("no body", "POST", CONFIG_MAPS, b"", 400, "BadRequest", "truncated"),
    Row("malformed JSON", "POST", CONFIG_MAPS, b'{"a":', 400, "BadRequest", "not valid JSON"),
    Row("two values", "POST", CONFIG_MAPS, b"{}{}", 400, "BadRequest", "trailing characters"),
    Row("a list", "POST", CONFIG_MAPS, b"[]", 400, "BadRequest", "must be a JSON object"),
    Row("null", "POST", CONFIG_MAPS, b"null", 400, "BadRequest", "must be a JSON object"),
    Row("NaN", "POST", CONFIG_MAPS, b'{"data":{"a":NaN}}', 400, "BadRequest", "not valid JSON"),
    Row("Infinity", "POST", CONFIG_MAPS, b'{"data":{"a":Infinity}}', 400, "BadRequest", "not valid JSON"),
    Row("bad UTF-8", "POST", CONFIG_MAPS, b'{"data":{"a":"\xff"}}', 400, "BadRequest", "UTF-8"),
    Row("half a surrogate", "POST", CONFIG_MAPS, b'{"data":{"a":"\\ud800"}}', 400, "BadRequest", "data.a is not valid"),
    Row("half a surrogate in a patch", "PATCH", MAP, b'{"data":{"a":["x","\\uDFFF"]}}', 400, "BadRequest",
        "data.a[1] is not valid", MERGE),
    Row("half a surrogate in a selector", "GET", f"{CONFIG_MAPS}?labelSelector=%ED%A0%80", None, 400, "BadRequest",
        "labelSelector"),
    Row("half a surrogate as a field manager", "PATCH", f"{MAP}?fieldManager=%ED%A0%80", b"{}", 400, "BadRequest",
        "fieldManager", MERGE),
    Row("half a surrogate in a name", "GET", f"{CONFIG_MAPS}/%ED%A0%80", None, 400, "BadRequest", "path is not UTF-8"),
    Row("deep arrays", "POST", CONFIG_MAPS, b"[" * 100_000, 400, "BadRequest", "nested"),
    Row("deep objects", "POST", CONFIG_MAPS, b'{"a":' * 100_000, 400, "BadRequest", "nested"),
    Row("deep patch", "PATCH", MAP, b'{"a":' * 100_000, 400, "BadRequest", "nested", MERGE),
    Row("deep YAML", "POST", CONFIG_MAPS, b"[" * 50_000, 400, "BadRequest", "nested", YAML),
    Row("deep YAML in blocks", "POST", CONFIG_MAPS, b"- " * 50_000, 400, "BadRequest", "nested", YAML),
    Row("deep YAML keys", "POST", CONFIG_MAPS, b"? " * 50_000, 400, "BadRequest", "nested", YAML),
    Row("deep YAML maps", "POST", CONFIG_MAPS, b"{a: " * 50_000, 400, "BadRequest", "nested", YAML),
    Row("duplicate field", "POST", f"{CONFIG_MAPS}?fieldValidation=Strict",
        b'{"metadata":{"name":"b"},"data":{"x":"1","x":"2"}}', 400, "BadRequest", 'duplicate field "data.x"'),
    Row("unknown field", "POST", f"{CONFIG_MAPS}?fieldValidation=Strict",
        b'{"metadata":{"name":"b"},"dada":{}}', 400, "BadRequest", 'unknown field "dada"'),
    Row("another kind", "POST", CONFIG_MAPS, b'{"kind":"Pod","metadata":{"name":"b"}}', 400, "BadRequest", "Pod"),
    Row("another version", "POST", CONFIG_MAPS, b'{"apiVersion":"v2","kind":"ConfigMap","metadata":{"name":"b"}}', 400,
        "BadRequest", "v2"),
    Row("a kind of wrong type", "POST", CONFIG_MAPS, b'{"kind":7,"metadata":{"name":"b"}}', 400, "BadRequest", "kind"),
    Row("metadata that is a list", "POST", CONFIG_MAPS, b'{"metadata":[]}', 400, "BadRequest", "metadata"),
    Row("a name that is a number", "POST", CONFIG_MAPS, b'{"metadata":{"name":1}}', 422, "Invalid", "metadata.name"),
    Row("labels that are a list", "POST", CONFIG_MAPS, b'{"metadata":{"name":"b","labels":[]}}', 422, "Invalid",
        "labels"),
    Row("a bad name", "POST", CONFIG_MAPS, b'{"metadata":{"name":"-"}}', 422, "Invalid", "metadata.name"),
    Row("data that is a number", "POST", CONFIG_MAPS, b'{"metadata":{"name":"b"},"data":{"x":1}}', 422, "Invalid",
        "data"),
    Row("YAML aliases", "POST", CONFIG_MAPS, b"a: &x 1\nb: *x\n", 400, "BadRequest", "aliases", YAML),
    Row("YAML that makes Python objects", "POST", CONFIG_MAPS, b"a: !!python/object:os.system x", 400, "BadRequest",
        "YAML", YAML),
    Row("damaged protobuf", "POST", CONFIG_MAPS, b"k8s\x00\x0a\xff\xff\xff\xff\x0f", 400, "BadRequest", "protobuf",
        "application/vnd.kubernetes.protobuf"),
    Row("a media type", "POST", CONFIG_MAPS, b"{}", 415, "UnsupportedMediaType", "text/plain", "text/plain"),
    Row("a patch of no type", "PATCH", MAP, b"{}", 415, "UnsupportedMediaType", "application/json"),
    Row("a JSON patch that is no list", "PATCH", MAP, b"{}", 400, "BadRequest", "patch", JSON_PATCH),
    Row("an unknown operation", "PATCH", MAP, b'[{"op":"x","path":"/a"}]', 422, "Invalid", "op", JSON_PATCH),
    Row("a merge patch that is a list", "PATCH", MAP, b"[]", 400, "BadRequest", "object", MERGE),
    Row("an unknown directive", "PATCH", MAP, b'{"data":{"$patch":"x"}}', 422, "Invalid", "$patch", STRATEGIC),
    Row("a label selector", "GET", f"{PODS}?labelSelector=a+in+(b", None, 400, "BadRequest", "selector"),
    Row("a field selector", "GET", f"{PODS}?fieldSelector=x%3D%3Dy", None, 400, "BadRequest", "x"),
    Row("a field selector without value", "GET", f"{PODS}?fieldSelector=metadata.name", None, 400, "BadRequest",
        "metadata.name"),
    Row("a limit", "GET", f"{PODS}?limit=-1", None, 400, "BadRequest", "limit"),
    Row("a token of a list", "GET", f"{PODS}?continue=x", None, 400, "BadRequest", "continue"),
    Row("a version", "GET", f"{PODS}?resourceVersion=x", None, 400, "BadRequest", "resourceVersion"),
    Row("a query that is not UTF-8", "GET", f"{PODS}?labelSelector=%ff", None, 400, "BadRequest", "query"),
    Row("too many parameters", "GET", f"{PODS}?" + "&".join(["a=b"] * 200), None, 400, "BadRequest", "query"),
    Row("a path that is not UTF-8", "GET", f"{CONFIG_MAPS}/%ff", None, 400, "BadRequest", "UTF-8"),
    Row("a quoted slash", "GET", f"{CONFIG_MAPS}/..%2fsecrets", None, 400, "BadRequest", "path"),
    Row("two dots", "GET", "/api/v1/namespaces/../configmaps/a", None, 400, "BadRequest", "path"),
    Row("a quoted NUL", "GET", f"{CONFIG_MAPS}/a%00", None, 400, "BadRequest", "path"),
    Row("too many parts", "GET", f"{CONFIG_MAPS}/a/b/c/d", None, 400, "BadRequest", "more parts"),
    Row("another server's URL", "GET", "https://other.example/api/v1/pods", None, 404, "NotFound", "could not find"),
    Row("a method", "PUT", CONFIG_MAPS, b"{}", 405, "MethodNotAllowed", "PUT"),
    Row("dryRun", "POST", f"{CONFIG_MAPS}?dryRun=x", b'{"metadata":{"name":"b"}}', 400, "BadRequest", "dryRun"),
    Row("a grace period", "DELETE", f"{MAP}?gracePeriodSeconds=x", None, 400, "BadRequest", "gracePeriodSeconds"),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@on_loop
async def test_bad_input_gets_a_status_that_names_the_fault(row: Row) -> None:
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        code, head, status = await sent(port, row.method, row.path, row.body, row.content_type)
        assert (status["kind"], status["status"]) == ("Status", "Failure"), head
        assert (code, status["reason"]) == (row.code, row.reason), status["message"]
        assert status["code"] == code
        assert row.says in status["message"]
        assert len(status["message"]) < 2_000
