"""Between JSON on the wire and the stored form: lossless bytes that do not contain their own revision.

The stored form has `apiVersion`, `kind` and `metadata` first and no `metadata.resourceVersion`, so readers splice
the version in without decoding. Nothing here interprets fields: `validation` does.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol

import msgspec

from kedge.errors import BadRequest, check
from kedge.keys import Revision

OBJECT_DEPTH_MAX = 100
"""How deep an object may nest. Not configurable: every process must be able to read what another stored."""

_DECODER = msgspec.json.Decoder(float_hook=Decimal)
_ENCODER = msgspec.json.Encoder(decimal_format="number")
_RAW_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_DICT_DECODER = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
_STRING_DECODER = msgspec.json.Decoder(str)


# -- whole objects ---------------------------------------------------------------------------------


def parse_object(body: bytes | Mapping[str, Any]) -> dict[str, Any]:
    """Decode an object without loss: floats become `Decimal`, integers may have any size.

    Raises:
        BadRequest: not a JSON object, bad UTF-8, or nested too deep. The message has the cause.
    """
    if not isinstance(body, bytes | bytearray):  # a caller in this process may pass anything
        body = encode_json(body)
    value = decode_json(body)
    if not isinstance(value, dict):
        raise BadRequest(f"the body must be a JSON object, not {_name_of(value)}")
    return value


def decode_json(body: bytes) -> Any:
    """Decode any JSON document; raises as `parse_object` does."""
    try:
        value = _DECODER.decode(body)
    except _DECODE_ERRORS as error:
        raise _bad_body(error, body) from error
    if (opened := body.count(b"{") + body.count(b"[")) > OBJECT_DEPTH_MAX and _nests_too_deep(value, opened):
        raise _too_deep()
    return value


def _nests_too_deep(value: Any, containers_max: int) -> bool:
    """Whether a decoded body of at most so many objects and lists has more levels of them than an object may have."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > OBJECT_DEPTH_MAX:
            return True
        containers_max -= len(level)
        if containers_max <= OBJECT_DEPTH_MAX - depth:
            return False  # even if each of the others is inside the one before
        level = [
            item
            for container in level
            for item in (container.values() if type(container) is dict else container)
            if type(item) is dict or type(item) is list
        ]
    return False


def containers_in(value: Any, depth_max: int = OBJECT_DEPTH_MAX, types: tuple[type, ...] = (dict, list)) -> int | None:
    """How many objects and lists a value has, itself included; None if they nest more than `depth_max` deep."""
    level: list[Any] = [value] if isinstance(value, types) else []
    found = 0
    while level:
        depth_max -= 1
        if depth_max < 0:
            return None
        found += len(level)
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict | Mapping) else container)
            if isinstance(item, types)
        ]
    return found if depth_max >= 0 else None


def encode_json(value: Any) -> bytes:
    """Encode plain JSON data, with `Decimal`s as numbers."""
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, UnicodeEncodeError) and (place := lone_surrogate_in(value)) is not None:
            raise BadRequest(_not_unicode(place)) from error
        raise BadRequest(f"the object cannot be written as JSON: {error}") from error


def lone_surrogate_in(value: Any) -> str | None:
    """Where decoded JSON has a text that UTF-8 cannot carry: the names and indexes that lead there. None if nowhere."""
    left: list[tuple[Any, Any]] = [(None, value)]
    while left:
        place, found = left.pop()
        if isinstance(found, str):
            if not is_unicode(found):
                return _text_of(place)
        elif isinstance(found, Mapping):
            for name, item in found.items():
                if isinstance(name, str) and not is_unicode(name):
                    return f"a name in {_text_of(place) or 'the object'}"
                left.append(((place, f".{name}"), item))
        elif isinstance(found, list | tuple):
            left.extend(((place, f"[{index}]"), item) for index, item in enumerate(found))
    return None


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can carry a text: it has no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text_of(place: Any) -> str:
    """A chain of (the part before, this part) as a path."""
    parts = []
    while place is not None:
        place, part = place
        parts.append(part)
    return "".join(reversed(parts)).lstrip(".")


def _not_unicode(place: str) -> str:
    return f"{place or 'the body'} is not valid Unicode: it has a lone surrogate, which UTF-8 cannot carry"


def encode_object(obj: Mapping[str, Any]) -> bytes:
    """The stored form of an object."""
    try:
        metadata = obj["metadata"]
        ordered = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": metadata}
    except KeyError as error:
        raise BadRequest(f"the object has no {error.args[0]}") from None
    if not isinstance(metadata, dict):
        raise BadRequest(f"metadata must be an object, not {_name_of(metadata)}")
    if "resourceVersion" in metadata:
        ordered["metadata"] = {name: value for name, value in metadata.items() if name != "resourceVersion"}
    ordered.update((name, value) for name, value in obj.items() if name not in ordered)
    return encode_json(ordered)


class Draft:
    """An incoming object: only `metadata` is decoded; the other fields stay bytes until they are read."""

    __slots__ = ("api_version", "fields", "kind", "metadata")

    def __init__(self, api_version: str, kind: str, metadata: dict[str, Any], fields: dict[str, Any]) -> None:
        self.api_version = api_version
        self.kind = kind
        self.metadata = metadata
        self.fields = fields
        """Every other field: `msgspec.Raw`, or decoded JSON after `get` or `set`."""

    @classmethod
    def parse(cls, body: bytes) -> Draft:
        """Raises `BadRequest` as `parse_object` does, and when apiVersion, kind or metadata have the wrong type."""
        try:
            if not body.isascii():
                body.decode()  # raw fields are not checked again: bad UTF-8 must be found here
            fields: dict[str, Any] = _RAW_DECODER.decode(body)
            api_version = fields.pop("apiVersion", None)
            kind = fields.pop("kind", None)
            metadata = fields.pop("metadata", None)
            return cls(
                "" if api_version is None else _STRING_DECODER.decode(api_version),
                "" if kind is None else _STRING_DECODER.decode(kind),
                {} if metadata is None else _DICT_DECODER.decode(metadata),
                fields,
            )
        except msgspec.ValidationError:
            _explain_envelope(body)
            raise
        except _DECODE_ERRORS as error:
            raise _bad_body(error, body) from error

    def get(self, name: str) -> Any:
        """One top-level field, decoded; None if it is absent. Changes made to it are encoded."""
        value = self.fields.get(name)
        if isinstance(value, msgspec.Raw):
            value = self.fields[name] = decode_json(bytes(value))
        return value

    def set(self, name: str, value: Any) -> None:
        self.fields[name] = value

    def encode(self) -> bytes:
        """The stored form."""
        metadata = self.metadata
        if "resourceVersion" in metadata:
            metadata = {name: value for name, value in metadata.items() if name != "resourceVersion"}
        return encode_json({"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata, **self.fields})


# -- splicing --------------------------------------------------------------------------------------

_METADATA = b'"metadata":{'


class Versioned(Protocol):
    """A stored value and the revision that wrote it; `store.Entry` is one."""

    @property
    def value(self) -> bytes: ...

    @property
    def modified(self) -> Revision: ...


def splice(value: bytes, revision: Revision) -> bytes:
    """A stored object as a reader sees it: with its `resourceVersion`, without decoding it.

    Its metadata is among its first three fields and has a name, so that a comma follows.
    """
    made = value.replace(_METADATA, b'"metadata":{"resourceVersion":"%d",' % revision, 1)
    check(len(made) > len(value), "a stored object has its metadata among its first three fields")
    return made


def splice_list(
    api_version: str,
    kind: str,
    entries: Iterable[Versioned],
    revision: Revision,
    continue_token: str = "",
    remaining: int | None = None,
) -> bytes:
    """A `List` of `kind` (the kind of the items) as JSON, without encoding any item again."""
    metadata: dict[str, Any] = {"resourceVersion": str(revision)}
    if continue_token:
        metadata["continue"] = continue_token
    if remaining:
        metadata["remainingItemCount"] = remaining
    head = _ENCODER.encode({"apiVersion": api_version, "kind": f"{kind}List", "metadata": metadata})
    return b'%b,"items":[%b]}' % (head[:-1], b",".join([splice(each.value, each.modified) for each in entries]))


# -- comparing -------------------------------------------------------------------------------------


def same_content(a: bytes, b: bytes) -> bool:
    """Whether two stored objects are equal as JSON, in any order of members and form of numbers."""
    return a == b or same_json(decode_json(a), decode_json(b))


def same_json(a: Any, b: Any) -> bool:
    """Equality of decoded JSON. Unlike `==`, true is not 1."""
    if type(a) in _CONTAINERS and type(b) in _CONTAINERS:
        # Equal bytes prove it at once. Other bytes may still mean the same: another order of members, 1.0 for 1.
        return bool(a == b) and (encode_json(a) == encode_json(b) or _same_booleans(a, b))
    return _same_booleans(a, b)


def _same_booleans(a: Any, b: Any) -> bool:
    """`same_json`, value by value."""
    if isinstance(a, dict):
        return (
            isinstance(b, dict)
            and len(a) == len(b)
            and all(name in b and _same_booleans(value, b[name]) for name, value in a.items())
        )
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(_same_booleans, a, b))
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    return bool(a == b)


_CONTAINERS = frozenset({dict, list})


# -- errors ----------------------------------------------------------------------------------------

_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, InvalidOperation, ValueError, RecursionError)


_SEARCHED_BYTES_MAX = 256 * 1024
"""Bodies in which a lone surrogate is searched for, to name its field: the search is slower than decoding."""


def _bad_body(error: Exception, body: bytes) -> BadRequest:
    if isinstance(error, msgspec.MsgspecError) and len(body) <= _SEARCHED_BYTES_MAX and b"\\ud" in body.lower():
        with contextlib.suppress(ValueError, RecursionError):
            if (place := lone_surrogate_in(json.loads(body))) is not None:  # the json module decodes them
                return BadRequest(_not_unicode(place))
    match error:
        case RecursionError():
            return _too_deep()
        case UnicodeDecodeError():
            return BadRequest(f"the body is not UTF-8: {error.reason} at byte {error.start}")
        case InvalidOperation():
            return BadRequest("the body has a number whose exponent is out of range")
        case msgspec.ValidationError():
            return BadRequest(f"the body cannot be read: {error}")
        case msgspec.MsgspecError():
            return BadRequest(f"the body is not valid JSON: {error}")
        case _:
            return BadRequest(f"the body has a number that is too long: {error}")


def _too_deep() -> BadRequest:
    return BadRequest(f"the object is nested more than {OBJECT_DEPTH_MAX} deep: flatten it")


def _explain_envelope(body: bytes) -> None:
    """Raise for the part of the envelope that has the wrong type."""
    obj = parse_object(body)
    for name in ("apiVersion", "kind"):
        if not isinstance(obj.get(name, ""), str):
            raise BadRequest(f"{name} must be a string, not {_name_of(obj[name])}")
    metadata = obj.get("metadata", {})
    if not isinstance(metadata, dict):
        raise BadRequest(f"metadata must be an object, not {_name_of(metadata)}")


def _name_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | Decimal():
            return "a number"
        case list():
            return "a list"
        case _:
            return "an object"
