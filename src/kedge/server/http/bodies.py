"""Request bodies: JSON, YAML and Kubernetes' protobuf, and the check of their fields against `api.types`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import yaml

from kedge.api.codec import OBJECT_DEPTH_MAX, parse_object
from kedge.api.protobuf import MEDIA_TYPE as PROTOBUF
from kedge.api.protobuf import decode_protobuf
from kedge.api.requests import PatchType
from kedge.api.types import FieldFacts, FieldShape, TypeFacts, TypeTable
from kedge.caches import remembered
from kedge.errors import BadRequest, UnsupportedMediaType
from kedge.limits import Limits
from kedge.server.http.duplicates import duplicates_in_json, duplicates_in_yaml
from kedge.server.http.exchange import HttpRequest

JSON_TYPES = ("application/json", "")
_YAML = ("application/yaml", "application/x-yaml", "text/yaml")
_YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OPENING = (
    yaml.BlockMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.FlowSequenceStartToken,
)
_CLOSING = (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)
_UNKNOWN_MAX = 20
"""Unknown fields that one reply names; more add nothing."""
_PATCHES = {each.value: each for each in PatchType}


def media_type(request: HttpRequest) -> str:
    return _media_type(request.headers.get(b"content-type", b""))


@remembered(entries=64, entry_bytes=512, key_length=128)
def _media_type(header: bytes) -> str:
    return header.decode("latin-1").partition(";")[0].strip().lower()


def read_object(request: HttpRequest, limits: Limits) -> bytes | dict[str, Any]:
    """The object in a body. JSON stays bytes: the service parses it once.

    Raises:
        BadRequest: it is damaged, or no object.
        UnsupportedMediaType: it is of a type that is not read.
    """
    sent = media_type(request)
    if sent in JSON_TYPES:
        return request.body
    if sent == PROTOBUF:
        return decode_protobuf(request.body)
    if sent in _YAML:
        return _yaml(request.body, limits)
    raise UnsupportedMediaType(f"the body is {sent}: send application/json, application/yaml or {PROTOBUF}")


def read_options(request: HttpRequest, limits: Limits) -> Mapping[str, Any]:
    """An optional body, such as `DeleteOptions`."""
    if not request.body:
        return {}
    body = read_object(request, limits)
    return body if isinstance(body, Mapping) else parse_object(body)


def patch_type_of(request: HttpRequest) -> PatchType:
    """How to apply the patch in a body."""
    sent = media_type(request)
    found = _PATCHES.get(sent)
    if found is None:
        raise UnsupportedMediaType(f"a patch of type {sent or 'nothing'} is not served: send {', '.join(_PATCHES)}")
    return found


def duplicate_fields(request: HttpRequest, decoded: Any, limits: Limits) -> list[str]:
    """Messages about fields that stand twice in one object of a body that was read; the first few of them."""
    sent = media_type(request)
    if sent in _YAML:
        return list(islice(duplicates_in_yaml(_yaml_nodes(request.body, limits)), _UNKNOWN_MAX))
    return [] if sent == PROTOBUF else list(islice(duplicates_in_json(request.body, decoded), _UNKNOWN_MAX))


def _yaml(body: bytes, limits: Limits) -> dict[str, Any]:
    root = _yaml_nodes(body, limits)
    try:
        found = yaml.constructor.SafeConstructor().construct_document(root)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise BadRequest(f"the body is not YAML: {_yaml_problem(error)}") from error
    if not isinstance(found, dict):
        raise BadRequest("the body is not an object: send one object")
    return found


def _yaml_problem(error: Exception) -> str:
    """The problem and its place, without the text around it: the body may be a Secret."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return type(error).__name__
    return f"{error.problem} in line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"


def _yaml_nodes(body: bytes, limits: Limits) -> yaml.Node:
    """The nodes of a YAML document. Aliases are refused, since a few lines of them stand for gigabytes; so is deep
    nesting, on which libyaml's composer overflows the stack and ends the process."""
    if len(body) > limits.http_yaml_bytes_max:
        raise BadRequest(f"a YAML body has at most {limits.http_yaml_bytes_max} bytes: send JSON")
    try:
        depth = 0
        for token in yaml.scan(body, Loader=_YamlLoader):
            if isinstance(token, yaml.AliasToken):
                raise BadRequest("the body has YAML aliases, which are not read: repeat the values")
            depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
            if depth > OBJECT_DEPTH_MAX:
                raise BadRequest(f"the body is YAML that is nested more than {OBJECT_DEPTH_MAX} deep")
        root: yaml.Node | None = yaml.compose(body, Loader=_YamlLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not YAML: {_yaml_problem(error)}") from error
    if root is None:
        raise BadRequest("the body is empty: send one object")
    return root


# -- fields ------------------------------------------------------------------------------------------


def unknown_fields(body: Mapping[str, Any], facts: TypeFacts, table: TypeTable, *, patch: bool = False) -> list[str]:
    """Messages about fields that the type does not have, in the order they stand; the first few of them.

    In a merge patch null removes a field, and `$` begins a directive of a strategic merge: neither is reported.
    """
    if all_known(body, facts, table):
        return []
    found = []
    for path in _unknown(body, facts, table, "", patch):
        found.append(f'unknown field "{path}"')
        if len(found) >= _UNKNOWN_MAX:
            break
    return found


def all_known(body: Mapping[str, Any], facts: TypeFacts, table: TypeTable) -> bool:
    """Whether there is nothing to report; False on any doubt. Nearly every body has known fields alone."""
    parts = table.parts(facts)
    for name, value in body.items():
        if name not in parts:
            return False
        part = parts[name]
        if part is None:
            continue
        shape, inner = part
        if shape is FieldShape.ONE:
            if type(value) is dict and not all_known(value, inner, table):
                return False
            continue
        for item in value.values() if type(value) is dict else value if type(value) is list else ():
            if type(item) is dict and not all_known(item, inner, table):
                return False
    return True


def _unknown(body: Mapping[str, Any], facts: TypeFacts, table: TypeTable, path: str, patch: bool) -> Iterator[str]:
    for name, value in body.items():
        place = f"{path}.{name}" if path else name
        field = facts.json.get(name)
        if field is None:
            if not patch or (value is not None and not name.startswith("$")):
                yield place
        elif not field.scalar:
            yield from _unknown_in(value, field, table, place, patch)


def _unknown_in(value: Any, field: FieldFacts, table: TypeTable, path: str, patch: bool) -> Iterator[str]:
    facts = table[field.type]
    if "custom" in facts.flags or "list" in facts.flags:
        return
    if field.shape is FieldShape.LIST and isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, Mapping):
                yield from _unknown(item, facts, table, f"{path}[{index}]", patch)
    elif field.shape is FieldShape.MAP and isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(item, Mapping):
                yield from _unknown(item, facts, table, f"{path}.{name}", patch)
    elif field.shape is FieldShape.ONE and isinstance(value, Mapping):
        yield from _unknown(value, facts, table, path, patch)
