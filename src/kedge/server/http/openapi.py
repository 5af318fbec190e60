"""OpenAPI v3, one document a group version, and v2 for old clients: made from `api.types` and the registry of kinds.

kubectl reads it for `explain`, for validation and for the merge keys of `apply`, `edit` and `diff`. A document is made
at its first request and kept as bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from kedge.api.kinds import Kind
from kedge.api.types import FieldFacts, FieldShape, TypeFacts, TypeTable
from kedge.server.http.discovery import verbs_of
from kedge.server.http.openapi_protobuf import encode_document

_encode = msgspec.json.Encoder().encode

_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_SCALARS: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "double": {"type": "number", "format": "double"},
    "bytes": {"type": "string", "format": "byte"},
    "duration": {"type": "string"},
    "fieldsv1": {"type": "object"},
    "rawextension": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "any": {"x-kubernetes-preserve-unknown-fields": True},
}
_NAMED_SCALARS: dict[str, tuple[str, dict[str, Any]]] = {
    "quantity": ("io.k8s.apimachinery.pkg.api.resource.Quantity", {"type": "string"}),
    "time": (f"{_META}.Time", {"type": "string", "format": "date-time"}),
    "microtime": (f"{_META}.MicroTime", {"type": "string", "format": "date-time"}),
    "intorstring": (
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
        {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
    ),
}
_CUSTOM = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

_BODY_TYPES = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
_PATCH_TYPES = ("application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json")


class OpenApi:
    """The documents of one registry."""

    def __init__(self, kinds: Iterable[Kind], table: TypeTable, version: str) -> None:
        self._table = table
        self._info = {"title": "kedge", "version": version}
        self._groups: dict[tuple[str, str], list[Kind]] = {}
        for kind in kinds:
            self._groups.setdefault((kind.group, kind.version), []).append(kind)
        self._documents: dict[tuple[str, str], bytes] = {}
        self._v2 = b""
        self._v2_protobuf = b""

    def index(self) -> bytes:
        """`/openapi/v3`: where each group version's document is. The hash lets clients keep what they have."""
        paths = {}
        for group, version in self._groups:
            place = f"apis/{group}/{version}" if group else f"api/{version}"
            digest = hashlib.sha256(self.document(group, version) or b"").hexdigest()[:32].upper()
            paths[place] = {"serverRelativeURL": f"/openapi/v3/{place}?hash={digest}"}
        return _encode({"paths": paths})

    def document(self, group: str, version: str) -> bytes | None:
        """The document of one group version; None if there is none."""
        kinds = self._groups.get((group, version))
        if kinds is None:
            return None
        known = self._documents.get((group, version))
        if known is None:
            known = self._documents[group, version] = _encode(self._make(kinds))
        return known

    def v2(self) -> bytes:
        """`/openapi/v2`: every group version in one document, for clients without v3."""
        if not self._v2:
            every = [kind for kinds in self._groups.values() for kind in kinds]
            schemas: dict[str, Any] = self._make(every)["components"]["schemas"]
            self._v2 = _encode({
                "swagger": "2.0",
                "info": self._info,
                "paths": {},
                "definitions": {name: _as_v2(schema) for name, schema in schemas.items()},
            })  # fmt: skip
        return self._v2

    def v2_protobuf(self) -> bytes:
        """`/openapi/v2` as protobuf."""
        if not self._v2_protobuf:
            self._v2_protobuf = encode_document(msgspec.json.decode(self.v2()))
        return self._v2_protobuf

    def _make(self, kinds: list[Kind]) -> dict[str, Any]:
        schemas: dict[str, Any] = {}
        for kind in kinds:
            self._add_kind(kind, schemas)
        paths = {path: item for kind in kinds for path, item in _paths(kind, schema_name(kind, self._table))}
        return {"openapi": "3.0.0", "info": self._info, "paths": paths, "components": {"schemas": schemas}}

    def _add_kind(self, kind: Kind, schemas: dict[str, Any]) -> None:
        name = schema_name(kind, self._table)
        facts = self._table.of_kind(kind.api_version, kind.kind)
        if facts is None:
            schemas[name] = {**_CUSTOM, "description": f"{kind.kind} in {kind.api_version}."}
        else:
            self._add(facts, schemas)
        self._add(self._table[f"{_META}.ListMeta"], schemas)
        self._add(self._table[f"{_META}.DeleteOptions"], schemas)
        self._add(self._table[f"{_META}.Status"], schemas)
        group_kind = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        schemas[name] = {**schemas[name], "x-kubernetes-group-version-kind": [group_kind]}
        schemas[f"{name}List"] = {
            "type": "object",
            "description": f"A list of {kind.kind} objects.",
            "required": ["items"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": _reference(f"{_META}.ListMeta"),
                "items": {"type": "array", "items": _reference(name)},
            },
            "x-kubernetes-group-version-kind": [{**group_kind, "kind": kind.list_kind}],
        }

    def _add(self, facts: TypeFacts, schemas: dict[str, Any]) -> None:
        """The schema of a type, and of every type it names."""
        if facts.name in schemas:
            return
        if "custom" in facts.flags:
            schemas[facts.name] = {**_CUSTOM, "description": facts.description}
            return
        schema: dict[str, Any] = {"type": "object", "description": facts.description}
        schemas[facts.name] = schema
        required = [name for name, field in facts.json.items() if field.required]
        if required:
            schema["required"] = required
        schema["properties"] = {name: self._property(field, schemas) for name, field in facts.json.items()}

    def _property(self, field: FieldFacts, schemas: dict[str, Any]) -> dict[str, Any]:
        value = self._value(field, schemas)
        if field.enum and field.shape is FieldShape.ONE:
            value = {**value, "enum": list(field.enum)}
        match field.shape:
            case FieldShape.LIST:
                shown: dict[str, Any] = {"type": "array", "items": value}
            case FieldShape.MAP:
                shown = {"type": "object", "additionalProperties": value}
            case _:
                # A reference may have no siblings in OpenAPI 3.0, so it is wrapped to carry the description.
                shown = {"allOf": [value], "default": {}} if "$ref" in value else dict(value)
        shown["description"] = field.description
        if field.default:
            shown["default"] = msgspec.json.decode(field.default)
        shown |= _extensions(field)
        return shown

    def _value(self, field: FieldFacts, schemas: dict[str, Any]) -> dict[str, Any]:
        if field.type in _NAMED_SCALARS:
            name, schema = _NAMED_SCALARS[field.type]
            schemas.setdefault(name, schema)
            return _reference(name)
        if field.scalar:
            return _SCALARS[field.type]
        facts = self._table[field.type]
        if "list" in facts.flags:
            return {"type": "array", "items": {"type": "string"}}
        self._add(facts, schemas)
        return _reference(field.type)


def schema_name(kind: Kind, table: TypeTable) -> str:
    facts = table.of_kind(kind.api_version, kind.kind)
    return (
        facts.name if facts is not None else f"{'.'.join(reversed(kind.group.split('.')))}.{kind.version}.{kind.kind}"
    )


def _extensions(field: FieldFacts) -> dict[str, Any]:
    """List types, keys and merge strategies, as `apply` reads them."""
    found: dict[str, Any] = {}
    if field.list_type:
        found["x-kubernetes-list-type"] = field.list_type
    if field.keys:
        found["x-kubernetes-list-map-keys"] = list(field.keys)
    if field.atomic:
        found["x-kubernetes-map-type"] = "atomic"
    strategies = [
        name
        for name, used in (("merge", field.merges), ("replace", field.replaces), ("retainKeys", field.retain_keys))
        if used
    ]
    if strategies:
        found["x-kubernetes-patch-strategy"] = ",".join(strategies)
    if field.merge_key:
        found["x-kubernetes-patch-merge-key"] = field.merge_key
    return found


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _as_v2(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of v3 in the form of v2: references have siblings, and there is no `oneOf`."""
    if len(wrapped := schema.get("allOf", ())) == 1:
        schema = {**{name: value for name, value in schema.items() if name != "allOf"}, **wrapped[0]}
    found: dict[str, Any] = {}
    for name, value in schema.items():
        match name:
            case "$ref":
                found[name] = value.replace("#/components/schemas/", "#/definitions/")
            case "properties":
                found[name] = {each: _as_v2(child) for each, child in value.items()}
            case "items" | "additionalProperties":
                found[name] = _as_v2(value)
            case "oneOf":
                found["type"] = "string"
            case _:
                found[name] = value
    return found


# -- paths ---------------------------------------------------------------------------------------------


def _paths(kind: Kind, schema: str) -> Iterator[tuple[str, dict[str, Any]]]:
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    place = f"{root}/namespaces/{{namespace}}/{kind.plural}" if kind.namespaced else f"{root}/{kind.plural}"
    shared = [_parameter("namespace", "path")] if kind.namespaced else []
    named = [*shared, _parameter("name", "path")]
    verbs = verbs_of(kind)
    listing = _operation(kind, "list", f"{schema}List", _LIST_PARAMETERS)
    if "create" not in verbs:
        yield place, {"parameters": shared, "get": listing}
        yield f"{place}/{{name}}", {"parameters": named, "get": _operation(kind, "get", schema, ())}
        return
    collection: dict[str, Any] = {
        "parameters": shared,
        "get": listing,
        "post": _operation(kind, "post", schema, _WRITE_PARAMETERS, body=_BODY_TYPES),
    }
    if "deletecollection" in verbs:
        collection["delete"] = _operation(kind, "deletecollection", f"{_META}.Status", _LIST_PARAMETERS)
    yield place, collection
    if kind.namespaced:
        yield f"{root}/{kind.plural}", {"get": listing}
    yield (
        f"{place}/{{name}}",
        {
            "parameters": named,
            "get": _operation(kind, "get", schema, ()),
            "put": _operation(kind, "put", schema, _WRITE_PARAMETERS, body=_BODY_TYPES),
            "patch": _operation(
                kind, "patch", schema, _WRITE_PARAMETERS, body=_PATCH_TYPES, body_schema=f"{_META}.Patch"
            ),
            "delete": _operation(kind, "delete", f"{_META}.Status", _DELETE_PARAMETERS, body=_BODY_TYPES),
        },
    )
    for subresource in sorted(kind.subresources & {"resize", "status"}):
        yield (
            f"{place}/{{name}}/{subresource}",
            {
                "parameters": named,
                "get": _operation(kind, "get", schema, ()),
                "put": _operation(kind, "put", schema, _WRITE_PARAMETERS, body=_BODY_TYPES),
                "patch": _operation(kind, "patch", schema, _WRITE_PARAMETERS, body=_PATCH_TYPES),
            },
        )


def _parameter(name: str, place: str = "query") -> dict[str, Any]:
    schema = {"type": "string", "uniqueItems": True}
    return {"name": name, "in": place, "schema": schema, **({"required": True} if place == "path" else {})}


_WRITE_PARAMETERS = tuple(_parameter(name) for name in ("dryRun", "fieldManager", "fieldValidation", "pretty"))
_DELETE_PARAMETERS = tuple(
    _parameter(name) for name in ("dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy", "pretty")
)
_LIST_PARAMETERS = tuple(
    _parameter(name)
    for name in (
        "labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "resourceVersionMatch", "watch",
        "allowWatchBookmarks", "sendInitialEvents", "timeoutSeconds", "pretty",
    )
)  # fmt: skip


def _operation(
    kind: Kind,
    action: str,
    schema: str,
    parameters: Iterable[dict[str, Any]],
    *,
    body: tuple[str, ...] = (),
    body_schema: str = "",
) -> dict[str, Any]:
    content = {"application/json": {"schema": _reference(schema)}}
    operation: dict[str, Any] = {
        "parameters": list(parameters),
        "responses": {"200": {"description": "OK", "content": content}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
    }
    if body:
        sent = {"type": "object"} if body_schema else _reference(schema)
        operation["requestBody"] = {"content": {each: {"schema": sent} for each in body}}
    return operation
