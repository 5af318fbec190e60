"""JSON bodies whose spec was sent before, byte for byte, as that of replicas is: it is decoded and checked once.

`bodies` and `create_warnings` have the plain path, which this never contradicts: on any doubt the answer is None.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kedge.api.codec import OBJECT_DEPTH_MAX, containers_in, decode_json, encode_json
from kedge.api.kinds import KINDS, Kind
from kedge.api.types import FieldShape, TypeFacts, TypeTable, type_table
from kedge.caches import remembered
from kedge.errors import BadRequest
from kedge.server.http.bodies import JSON_TYPES, all_known, media_type
from kedge.server.http.create_warnings import create_warnings
from kedge.server.http.exchange import HttpRequest

_SPEC_BYTES_MAX: Final = 4096
"""Longer specs are read each time."""
_WARNINGS_BYTES_MAX: Final = 4096
"""A spec with longer warnings too."""
_SPEC_NAME: Final = len(b'"spec":')
_decode_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_DECODE_ERRORS: Final = (msgspec.DecodeError, ValueError, RecursionError, BadRequest)


def plain_body(request: HttpRequest, kind: Kind, facts: TypeFacts, table: TypeTable) -> tuple[str, ...] | None:
    """The warnings about a new object in a body that certainly has no unknown and no duplicate field.

    Such a body is compact: encoding it again would give the same bytes, so they may be stored as they are.
    """
    sent, part = request.body, table.parts(facts).get("spec")
    if part is None or part[0] is not FieldShape.ONE or media_type(request) not in JSON_TYPES or b"\\u" in sent:
        return None
    try:
        parts = _decode_parts(sent)
        spec = bytes(parts.pop("spec", b""))
        if not spec or len(spec) > _SPEC_BYTES_MAX:
            return None
        warnings = _spec_warnings(spec, part[1].name, kind.key_kind)
        if warnings is None:
            return None
        rest = {name: decode_json(bytes(each)) for name, each in parts.items()}
    except _DECODE_ERRORS:
        return None
    again = encode_json(rest)
    compact = len(sent.rstrip(b"\n")) == len(again) + _SPEC_NAME + len(spec) + bool(rest)
    # As in `duplicates_in_json`. One more colon is that of the spec.
    unique = again.count(b":") == sent.count(b":") - spec.count(b":") - 1
    flat = again.count(b"{") + again.count(b"[") <= OBJECT_DEPTH_MAX
    return warnings if compact and unique and flat and all_known(rest, facts, table) else None


@remembered(entries=1024, entry_bytes=_SPEC_BYTES_MAX + _WARNINGS_BYTES_MAX)
def _spec_warnings(spec: bytes, type_name: str, kind: str) -> tuple[str, ...] | None:
    decoded, table = decode_json(spec), type_table()
    if (
        not isinstance(decoded, dict)
        or encode_json(decoded) != spec
        or containers_in(decoded, OBJECT_DEPTH_MAX - 1) is None
        or not all_known(decoded, table[type_name], table)
    ):
        return None
    warnings = create_warnings(KINDS.of_key_kind(kind), {"spec": decoded})
    return warnings if sum(map(len, warnings)) <= _WARNINGS_BYTES_MAX else None
