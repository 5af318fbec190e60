"""A short cut for the most common write: another pod of a workload, most of which was found clean before.

Replicas differ in their names and times; their labels, owners, spec and first status are the same, byte for byte.
Such a part is remembered by its bytes once it was found clean, so that it is decoded, filled in and judged once;
whatever is not plainly clean takes the long way, which alone reports errors.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from kedge.api.codec import decode_json, encode_json
from kedge.api.defaults import filled_pod_spec
from kedge.api.names import label_problem, subdomain_problem
from kedge.api.validation.error_list import ErrorList
from kedge.api.validation.metadata import check_labels, check_metadata, check_owners
from kedge.api.validation.pods import check_pod_spec, check_pod_status
from kedge.api.views import ObjectMeta, OwnerReference, PodSpec, PodStatus, PodView
from kedge.api.views.base import Annotations, Int64, Labels, Time, json_name
from kedge.api.views.schema import decoder_of, strict_twin

if TYPE_CHECKING:
    from kedge.api.kinds import Kind

POD_BYTES_MAX: Final = 8192
"""Larger pods are checked one by one, so that what is remembered of them stays small."""

_NO_MAP, _NO_LIST = msgspec.Raw(b"{}"), msgspec.Raw(b"[]")
_NO_ANNOTATIONS = Annotations()
_DECODE_ERRORS = (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError)


class _Metadata(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename=json_name, forbid_unknown_fields=True):
    """`ObjectMeta`, with what replicas share left unread."""

    name: str = ""
    generate_name: str | UnsetType = UNSET
    namespace: str = ""
    uid: str = ""
    generation: Int64 = 0
    labels: msgspec.Raw = _NO_MAP
    annotations: msgspec.Raw = _NO_MAP
    owner_references: msgspec.Raw = _NO_LIST
    finalizers: tuple[str, ...] | UnsetType = UNSET
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    deletion_grace_period_seconds: Int64 | None = None


class _Frame(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename=json_name, forbid_unknown_fields=True):
    """A pod, with what replicas share left unread."""

    api_version: str = ""
    kind: str = ""
    metadata: _Metadata = _Metadata()
    spec: msgspec.Raw = _NO_MAP
    status: msgspec.Raw = _NO_MAP


class _StoredMetadata(msgspec.Struct, frozen=True, gc=False, rename=json_name, omit_defaults=True):
    """The metadata of a new pod as they are stored."""

    name: str
    namespace: str
    uid: str
    creation_timestamp: str
    generation: int
    labels: msgspec.Raw = _NO_MAP
    annotations: Annotations = _NO_ANNOTATIONS
    owner_references: msgspec.Raw = _NO_LIST
    finalizers: tuple[str, ...] = ()


class _Stored(msgspec.Struct, frozen=True, gc=False, rename=json_name):
    """A new pod as it is stored."""

    api_version: str
    kind: str
    metadata: _StoredMetadata
    spec: msgspec.Raw
    status: msgspec.Raw


_FRAMES = msgspec.json.Decoder(_Frame)
_ENCODER = msgspec.json.Encoder()
_ANNOTATIONS = decoder_of(Annotations)
_TIMES = decoder_of(Time)


def read_known_pod(value: bytes) -> PodView | None:
    """The view of a pod whose fields are all known and whose shared parts are clean; None if there is any doubt.

    Left to be judged: what is the pod's own (its name, namespace, annotations, finalizers).
    """
    try:
        frame = _FRAMES.decode(value)
        own = frame.metadata
        spec = _clean_spec(bytes(frame.spec))
        status = _clean_status(bytes(frame.status))
        labels = _clean_labels(bytes(own.labels))
        owners = _clean_owners(bytes(own.owner_references))
        if spec is None or status is None or labels is None or owners is None:
            return None
        annotations = _NO_ANNOTATIONS if own.annotations is _NO_MAP else _ANNOTATIONS.decode(own.annotations)
    except _DECODE_ERRORS:
        return None
    metadata = ObjectMeta(
        name=own.name,
        generate_name=own.generate_name or "",
        namespace=own.namespace,
        uid=own.uid,
        generation=own.generation,
        labels=labels,
        annotations=annotations,
        owner_references=owners,
        finalizers=own.finalizers or (),
        creation_timestamp=own.creation_timestamp,
        deletion_timestamp=own.deletion_timestamp,
        deletion_grace_period_seconds=own.deletion_grace_period_seconds,
    )
    return PodView(metadata=metadata, spec=spec, status=status)


def new_known_pod(
    kind: Kind, body: bytes, namespace: str, new_uid: Callable[[], str], now: str
) -> tuple[PodView, bytes] | None:
    """A pod on its way in, sent to `namespace`: its view and its stored form; None if there is any doubt about it.

    One pass instead of four (envelope, defaults, encoding, validation), to the same end.
    """
    if len(body) > POD_BYTES_MAX or not body.isascii():  # what is left out unread might be bad UTF-8
        return None
    try:
        frame = _FRAMES.decode(body)
        own = frame.metadata
        home = own.namespace or namespace
        spec = _known_spec(bytes(frame.spec))
        labels = _NO_LABELS if own.labels is _NO_MAP else _known_labels(bytes(own.labels))
        owners = _NO_OWNERS if own.owner_references is _NO_LIST else _known_owners(bytes(own.owner_references))
        if spec is None or labels is None or owners is None:
            return None
        annotations = _NO_ANNOTATIONS
        if own.annotations is not _NO_MAP:
            annotations = _ANNOTATIONS.decode(own.annotations)
            if not annotations:
                return None  # a null, perhaps, which is read as empty but stored as it is
    except _DECODE_ERRORS:
        return None
    if (
        ((frame.kind or frame.api_version) and (frame.kind, frame.api_version) != (kind.kind, kind.api_version))
        or not own.name
        or own.generate_name is not UNSET
        or own.finalizers == ()  # sent, though there are none: it is stored as it was sent
        or (namespace and home != namespace)
        or subdomain_problem(own.name)
        or label_problem(home)
    ):
        return None
    metadata = ObjectMeta(
        name=own.name,
        namespace=home,
        uid=new_uid(),
        generation=1,
        labels=labels.view,
        annotations=annotations,
        owner_references=owners.view,
        finalizers=own.finalizers or (),
        creation_timestamp=_time_of(now),
    )
    if annotations or metadata.finalizers:  # what else it has was judged above, or is made here
        complaints = ErrorList()
        check_metadata(complaints, kind, metadata, shared_parts_clean=True)
        if complaints:
            return None
    stored = _StoredMetadata(
        own.name,
        home,
        metadata.uid,
        now,
        1,
        labels.raw,
        annotations,
        owners.raw,
        metadata.finalizers,
    )
    return (
        PodView(metadata=metadata, spec=spec.view, status=_PENDING.view),
        _ENCODER.encode(_Stored(kind.api_version, kind.kind, stored, spec.raw, _PENDING.raw)),
    )


class _Known(msgspec.Struct, frozen=True, gc=False):
    """A part that was found clean: decoded, and as it is stored."""

    view: Any
    raw: msgspec.Raw


@lru_cache(maxsize=1024)
def _known_spec(raw: bytes) -> _Known | None:
    filled, _ = filled_pod_spec(raw)
    spec = _clean_spec(bytes(filled))
    return None if spec is None else _Known(spec, filled)


@lru_cache(maxsize=4096)
def _known_labels(raw: bytes) -> _Known | None:
    labels = _clean_labels(raw)
    return None if labels is None else _Known(labels, msgspec.Raw(encode_json(decode_json(raw))))


@lru_cache(maxsize=4096)
def _known_owners(raw: bytes) -> _Known | None:
    owners = _clean_owners(raw)
    return None if owners is None else _Known(owners, msgspec.Raw(encode_json(decode_json(raw))))


@lru_cache(maxsize=8)
def _time_of(text: str) -> datetime:
    found: datetime = _TIMES.decode(b'"%b"' % text.encode())
    return found


@lru_cache(maxsize=1024)
def _clean_spec(raw: bytes) -> PodSpec | None:
    spec: PodSpec = _decode_strictly(PodSpec, raw)
    complaints = ErrorList()
    check_pod_spec(complaints, spec, "spec")
    return None if complaints else spec


@lru_cache(maxsize=256)
def _clean_status(raw: bytes) -> PodStatus | None:
    status: PodStatus = _decode_strictly(PodStatus, raw)
    complaints = ErrorList()
    check_pod_status(complaints, status)
    return None if complaints else status


@lru_cache(maxsize=4096)
def _clean_labels(raw: bytes) -> Labels | None:
    labels: Labels = decoder_of(Labels).decode(raw)
    complaints = ErrorList()
    check_labels(complaints, labels, "metadata.labels")
    return None if complaints else labels


@lru_cache(maxsize=4096)
def _clean_owners(raw: bytes) -> tuple[OwnerReference, ...] | None:
    _strict_owners().decode(raw)
    owners: tuple[OwnerReference, ...] = decoder_of(tuple[OwnerReference, ...]).decode(raw)
    complaints = ErrorList()
    check_owners(complaints, owners)
    return None if complaints else owners


@cache
def _strict_owners() -> msgspec.json.Decoder[Any]:
    """Refuses unknown fields in owner references."""
    return decoder_of(tuple[strict_twin(OwnerReference), ...])  # type: ignore[misc]


_PENDING: Final = _Known(PodStatus(phase="Pending"), msgspec.Raw(b'{"phase":"Pending"}'))
"""The status every pod begins with."""
_NO_LABELS: Final = _Known(Labels(), _NO_MAP)
_NO_OWNERS: Final = _Known((), _NO_LIST)


def _decode_strictly(shape: Any, raw: bytes) -> Any:
    """Decode a part, refusing unknown fields. The twin only judges: views have one type, not two."""
    decoder_of(strict_twin(shape)).decode(raw)
    return decoder_of(shape).decode(raw)
