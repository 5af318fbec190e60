"""A merge patch of labels and annotations alone: only the metadata is decoded and encoded again.

`writes.change` has the plain path, which decodes, merges, compares and encodes the whole object. Controllers and users
mark objects often, and a spec is long.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from kedge.api.defaults import SHARED_SPEC_BYTES_MAX, filled_pod_spec, has_defaults
from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import Patch, PatchType, Update
from kedge.api.validation import check_object
from kedge.api.views.base import json_name
from kedge.api.wellknown import CONFIG_MAP_KIND, LEASE_KIND, NODE_KIND, POD_KIND
from kedge.errors import OperatingError
from kedge.keys import NO_REVISION

PATCH_BYTES_MAX: Final = 8192
"""A larger patch costs more than the rest of its object."""


class _MetadataChange(
    msgspec.Struct, frozen=True, gc=False, rename=json_name, forbid_unknown_fields=True, omit_defaults=True
):
    annotations: dict[str, str | None] | UnsetType = UNSET
    labels: dict[str, str | None] | UnsetType = UNSET
    resource_version: str = ""
    uid: str = ""


class _MetadataPatch(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A patch that touches nothing else."""

    metadata: _MetadataChange


class _StoredParts(msgspec.Struct, frozen=True, gc=False):
    """The parts of a stored object that decide how it may be patched here, undecoded."""

    metadata: msgspec.Raw
    spec: msgspec.Raw = msgspec.Raw()


_PATCHES = msgspec.json.Decoder(_MetadataPatch)
_PARTS = msgspec.json.Decoder(_StoredParts)
_METADATA = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXTS = msgspec.json.Decoder(dict[str, str])
_encode = msgspec.json.Encoder().encode
_PLAIN_KINDS: Final = frozenset({CONFIG_MAP_KIND, LEASE_KIND, NODE_KIND})
"""Kinds without defaults, and without a status that the service writes."""
_METADATA_NAME: Final = b'"metadata":'
_DOUBTS: Final = (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError, OperatingError)


def is_metadata_patch(body: bytes) -> bool:
    """Whether a merge patch has known fields of metadata alone, and none of them twice. False on any doubt. Pure."""
    if len(body) > PATCH_BYTES_MAX or b"\\u" in body:
        return False
    try:
        change = _PATCHES.decode(body)
    except _DOUBTS:
        return False
    # A member that was dropped takes its colon with it: see `duplicates_in_json`.
    return _encode(change).count(b":") == body.count(b":")


def patch_metadata(kind: Kind, old: Object, request: Patch | Update) -> tuple[Object, tuple[str, ...]] | None:
    """The next version of `old`, and warnings about it; None on any doubt, also if nothing would change. Pure."""
    if not isinstance(request, Patch) or request.patch_type is not PatchType.MERGE or request.subresource:
        return None
    try:
        change = _change_of(request.body)
        if change is None or not _holds_for(change, old):
            return None
        value = _patched(kind, old.value, change)
        if value is None:
            return None
        checked = check_object(kind, value)
    except _DOUBTS:
        return None  # the plain path reports errors
    return Object(kind, old.key, value, revision=NO_REVISION, known_view=checked.view), checked.warnings


def _change_of(body: Any) -> _MetadataChange | None:
    if isinstance(body, bytes):
        return _PATCHES.decode(body).metadata if len(body) <= PATCH_BYTES_MAX else None
    return msgspec.convert(body, _MetadataPatch).metadata


def _holds_for(change: _MetadataChange, old: Object) -> bool:
    """Whether `old` is the version that the patch names, if it names one."""
    return change.resource_version in ("", str(old.revision)) and change.uid in ("", old.uid)


def _patched(kind: Kind, value: bytes, change: _MetadataChange) -> bytes | None:
    parts = _PARTS.decode(value)
    if not _rest_stays(kind, parts):
        return None
    before = bytes(parts.metadata)
    first = value.find(_METADATA_NAME) + len(_METADATA_NAME)  # the first such name is that of the object itself
    if not value.startswith(before, first):
        return None
    metadata: dict[str, Any] = _METADATA.decode(before)
    if not _merge(metadata, change):
        return None
    return b"%b%b%b" % (value[:first], _encode(metadata), value[first + len(before) :])


def _rest_stays(kind: Kind, parts: _StoredParts) -> bool:
    """Whether the plain path would leave everything but the metadata as it is stored."""
    if kind.key_kind == POD_KIND:
        spec = bytes(parts.spec)
        return 0 < len(spec) <= SHARED_SPEC_BYTES_MAX and not filled_pod_spec(spec)[1]
    return kind.key_kind in _PLAIN_KINDS and not has_defaults(kind)


def _merge(metadata: dict[str, Any], change: _MetadataChange) -> bool:
    """Apply a patch to undecoded metadata. Returns whether anything changed."""
    changed = False
    for name, texts in (("annotations", change.annotations), ("labels", change.labels)):
        if texts is UNSET:
            continue
        raw = metadata.get(name)
        before = {} if raw is None else _TEXTS.decode(raw)
        after = {**before, **texts}
        if None in texts.values():
            after = {key: text for key, text in after.items() if text is not None}
        if after == before:
            continue
        changed = True
        if after:
            metadata[name] = after
        else:
            del metadata[name]
    return changed
