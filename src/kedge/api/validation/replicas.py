"""A short cut for the most common write: another pod of a workload, most of which was found clean before.

Replicas differ in their names and times; their labels, owners, spec and first status are the same, byte for byte.
Such a part is remembered by its bytes once it was found clean, so that it is decoded and judged once; whatever is
not plainly clean takes the long way, which alone reports errors.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import msgspec

from kedge.api.validation.complaints import Complaints
from kedge.api.validation.metadata import check_labels, check_owners
from kedge.api.validation.pods import check_pod_spec, check_pod_status
from kedge.api.views import ObjectMeta, OwnerReference, PodSpec, PodStatus, PodView
from kedge.api.views.base import Annotations, Int64, Labels, Time, json_name
from kedge.api.views.shapes import decoder_of, strict_twin

_NO_MAP, _NO_LIST = msgspec.Raw(b"{}"), msgspec.Raw(b"[]")
_DECODE_ERRORS = (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError)


class _Metadata(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename=json_name, forbid_unknown_fields=True):
    """`ObjectMeta`, with what replicas share left unread."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: Int64 = 0
    labels: msgspec.Raw = _NO_MAP
    annotations: msgspec.Raw = _NO_MAP
    owner_references: msgspec.Raw = _NO_LIST
    finalizers: tuple[str, ...] = ()
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    deletion_grace_period_seconds: Int64 | None = None


class _Frame(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename=json_name, forbid_unknown_fields=True):
    """A pod, with what replicas share left unread."""

    api_version: msgspec.Raw = _NO_MAP
    kind: msgspec.Raw = _NO_MAP
    metadata: _Metadata = _Metadata()
    spec: msgspec.Raw = _NO_MAP
    status: msgspec.Raw = _NO_MAP


_FRAMES = msgspec.json.Decoder(_Frame)
_ANNOTATIONS = decoder_of(Annotations)
_NO_ANNOTATIONS = Annotations()


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
        generate_name=own.generate_name,
        namespace=own.namespace,
        uid=own.uid,
        generation=own.generation,
        labels=labels,
        annotations=annotations,
        owner_references=owners,
        finalizers=own.finalizers,
        creation_timestamp=own.creation_timestamp,
        deletion_timestamp=own.deletion_timestamp,
        deletion_grace_period_seconds=own.deletion_grace_period_seconds,
    )
    return PodView(metadata=metadata, spec=spec, status=status)


@lru_cache(maxsize=1024)
def _clean_spec(raw: bytes) -> PodSpec | None:
    spec: PodSpec = _decode_strictly(PodSpec, raw)
    complaints = Complaints()
    check_pod_spec(complaints, spec, "spec")
    return None if complaints else spec


@lru_cache(maxsize=256)
def _clean_status(raw: bytes) -> PodStatus | None:
    status: PodStatus = _decode_strictly(PodStatus, raw)
    complaints = Complaints()
    check_pod_status(complaints, status)
    return None if complaints else status


@lru_cache(maxsize=4096)
def _clean_labels(raw: bytes) -> Labels | None:
    labels: Labels = decoder_of(Labels).decode(raw)
    complaints = Complaints()
    check_labels(complaints, labels, "metadata.labels")
    return None if complaints else labels


@lru_cache(maxsize=4096)
def _clean_owners(raw: bytes) -> tuple[OwnerReference, ...] | None:
    _strict_owners().decode(raw)
    owners: tuple[OwnerReference, ...] = decoder_of(tuple[OwnerReference, ...]).decode(raw)
    complaints = Complaints()
    check_owners(complaints, owners)
    return None if complaints else owners


@cache
def _strict_owners() -> msgspec.json.Decoder[Any]:
    """Refuses unknown fields in owner references."""
    return decoder_of(tuple[strict_twin(OwnerReference), ...])  # type: ignore[misc]


def _decode_strictly(shape: Any, raw: bytes) -> Any:
    """Decode a part, refusing unknown fields. The twin only judges: views have one type, not two."""
    decoder_of(strict_twin(shape)).decode(raw)
    return decoder_of(shape).decode(raw)
