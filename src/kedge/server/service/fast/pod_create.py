"""A new pod like others before it: one pass instead of four (envelope, defaults, encoding, validation).

`writes` has the plain path. Parts that replicas share come from `api.validation.known_parts`, decoded and checked once.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET

from kedge.api.codec import decode_json, encode_json
from kedge.api.defaults import filled_pod_spec
from kedge.api.kinds import Kind
from kedge.api.names import label_problem, subdomain_problem
from kedge.api.validation.error_list import ErrorList
from kedge.api.validation.known_parts import (
    ANNOTATIONS_DECODER,
    DECODE_ERRORS,
    FRAME_DECODER,
    NO_ANNOTATIONS,
    NO_LIST,
    NO_MAP,
    POD_BYTES_MAX,
    PodFrame,
    valid_labels,
    valid_owners,
    valid_spec,
)
from kedge.api.validation.metadata import check_metadata
from kedge.api.views import ObjectMeta, PodStatus, PodView
from kedge.api.views.base import Annotations, Labels, Time, json_name
from kedge.api.views.schema import decoder_of
from kedge.caches import remembered, weighed


class _StoredPodMetadata(msgspec.Struct, frozen=True, gc=False, rename=json_name, omit_defaults=True):
    """The metadata of a new pod as it is stored."""

    name: str
    namespace: str
    uid: str
    creation_timestamp: str
    generation: int
    labels: msgspec.Raw = NO_MAP
    annotations: Annotations = NO_ANNOTATIONS
    owner_references: msgspec.Raw = NO_LIST
    finalizers: tuple[str, ...] = ()


class _StoredPod(msgspec.Struct, frozen=True, gc=False, rename=json_name):
    """A new pod as it is stored."""

    api_version: str
    kind: str
    metadata: _StoredPodMetadata
    spec: msgspec.Raw
    status: msgspec.Raw


class _KnownPart(msgspec.Struct, frozen=True, gc=False):
    """A valid part: decoded, and as it is stored."""

    view: Any
    raw: msgspec.Raw


_ENCODER = msgspec.json.Encoder()
_TIMES = decoder_of(Time)
_PENDING: Final = _KnownPart(PodStatus(phase="Pending"), msgspec.Raw(b'{"phase":"Pending"}'))
"""The status of every new pod."""
_NO_LABELS: Final = _KnownPart(Labels(), NO_MAP)
_NO_OWNERS: Final = _KnownPart((), NO_LIST)


def new_known_pod(
    kind: Kind, body: bytes, namespace: str, new_uid: Callable[[], str], now: str
) -> tuple[PodView, bytes] | None:
    """A new pod, sent to `namespace`: its view and its stored form; None on any doubt."""
    if len(body) > POD_BYTES_MAX or not body.isascii():  # a part that stays undecoded could be bad UTF-8
        return None
    try:
        frame = FRAME_DECODER.decode(body)
        own = frame.metadata
        spec = _known_spec(bytes(frame.spec))
        labels = _NO_LABELS if own.labels is NO_MAP else _known_labels(bytes(own.labels))
        owners = _NO_OWNERS if own.owner_references is NO_LIST else _known_owners(bytes(own.owner_references))
        annotations = NO_ANNOTATIONS if own.annotations is NO_MAP else ANNOTATIONS_DECODER.decode(own.annotations)
    except DECODE_ERRORS:
        return None
    if spec is None or labels is None or owners is None:
        return None
    if not annotations and own.annotations is not NO_MAP:
        return None  # perhaps a null, which is decoded as empty but stored as it is
    target_namespace = own.namespace or namespace
    if not _is_plain(kind, frame) or (namespace and target_namespace != namespace) or label_problem(target_namespace):
        return None
    metadata = ObjectMeta(
        name=own.name,
        namespace=target_namespace,
        uid=new_uid(),
        generation=1,
        labels=labels.view,
        annotations=annotations,
        owner_references=owners.view,
        finalizers=own.finalizers or (),
        creation_timestamp=_time_of(now),
    )
    if (annotations or metadata.finalizers) and not _is_valid(kind, metadata):
        return None  # the other fields were checked above, or are made here
    stored = _StoredPodMetadata(
        own.name, target_namespace, metadata.uid, now, 1, labels.raw, annotations, owners.raw, metadata.finalizers
    )
    return (
        PodView(metadata=metadata, spec=spec.view, status=_PENDING.view),
        _ENCODER.encode(_StoredPod(kind.api_version, kind.kind, stored, spec.raw, _PENDING.raw)),
    )


def _is_plain(kind: Kind, frame: PodFrame) -> bool:
    """Whether it is of `kind`, or of none, and has a valid name of its own."""
    own = frame.metadata
    return (
        (not (frame.kind or frame.api_version) or (frame.kind, frame.api_version) == (kind.kind, kind.api_version))
        and bool(own.name)
        and own.generate_name is UNSET
        and own.finalizers != ()  # an empty list is stored as it was sent
        and not subdomain_problem(own.name)
    )


def _is_valid(kind: Kind, metadata: ObjectMeta) -> bool:
    errors = ErrorList()
    check_metadata(errors, kind, metadata, shared_parts_clean=True)
    return not errors


@weighed(entries=1024, bytes_max=32 << 20)
def _known_spec(raw: bytes) -> _KnownPart | None:
    filled, _ = filled_pod_spec(raw)
    spec = valid_spec(bytes(filled))
    return None if spec is None else _KnownPart(spec, filled)


@weighed(entries=4096, bytes_max=16 << 20)
def _known_labels(raw: bytes) -> _KnownPart | None:
    labels = valid_labels(raw)
    return None if labels is None else _KnownPart(labels, msgspec.Raw(encode_json(decode_json(raw))))


@weighed(entries=4096, bytes_max=16 << 20)
def _known_owners(raw: bytes) -> _KnownPart | None:
    owners = valid_owners(raw)
    return None if owners is None else _KnownPart(owners, msgspec.Raw(encode_json(decode_json(raw))))


@remembered(entries=8, entry_bytes=256)  # times of our own
def _time_of(text: str) -> datetime:
    found: datetime = _TIMES.decode(b'"%b"' % text.encode())
    return found
