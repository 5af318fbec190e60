"""Parts of pods that were found valid before, remembered by their bytes.

Replicas differ in their names and times; their labels, owners, spec and status are the same, byte for byte. Such a part
is decoded and checked once. A pod with any other part takes the plain path, which alone reports errors.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from kedge.api.validation.error_list import ErrorList
from kedge.api.validation.metadata import check_labels, check_owners
from kedge.api.validation.pods import check_pod_spec, check_pod_status
from kedge.api.views import ObjectMeta, OwnerReference, PodSpec, PodStatus, PodView
from kedge.api.views.base import Annotations, Int64, Labels, Time, json_name
from kedge.api.views.schema import decoder_of, strict_twin
from kedge.caches import weighed

POD_BYTES_MAX: Final = 8192
"""Larger pods are checked one by one, so that the remembered parts stay small."""

NO_MAP, NO_LIST = msgspec.Raw(b"{}"), msgspec.Raw(b"[]")
NO_ANNOTATIONS = Annotations()
DECODE_ERRORS = (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError)


class PodMetadata(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename=json_name, forbid_unknown_fields=True):
    """`ObjectMeta`, with the parts that replicas share left undecoded."""

    name: str = ""
    generate_name: str | UnsetType = UNSET
    namespace: str = ""
    uid: str = ""
    generation: Int64 = 0
    labels: msgspec.Raw = NO_MAP
    annotations: msgspec.Raw = NO_MAP
    owner_references: msgspec.Raw = NO_LIST
    finalizers: tuple[str, ...] | UnsetType = UNSET
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    deletion_grace_period_seconds: Int64 | None = None


class PodFrame(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename=json_name, forbid_unknown_fields=True):
    """A pod, with the parts that replicas share left undecoded."""

    api_version: str = ""
    kind: str = ""
    metadata: PodMetadata = PodMetadata()
    spec: msgspec.Raw = NO_MAP
    status: msgspec.Raw = NO_MAP


FRAME_DECODER = msgspec.json.Decoder(PodFrame)
ANNOTATIONS_DECODER = decoder_of(Annotations)


def read_known_pod(value: bytes) -> PodView | None:
    """The view of a pod whose fields are all known and whose shared parts are valid; None on any doubt.

    The caller still checks its own parts: name, namespace, annotations and finalizers.
    """
    try:
        frame = FRAME_DECODER.decode(value)
        own = frame.metadata
        spec = valid_spec(bytes(frame.spec))
        status = valid_status(bytes(frame.status))
        labels = valid_labels(bytes(own.labels))
        owners = valid_owners(bytes(own.owner_references))
        if spec is None or status is None or labels is None or owners is None:
            return None
        annotations = NO_ANNOTATIONS if own.annotations is NO_MAP else ANNOTATIONS_DECODER.decode(own.annotations)
    except DECODE_ERRORS:
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


@weighed(entries=1024, bytes_max=32 << 20)
def valid_spec(raw: bytes) -> PodSpec | None:
    spec: PodSpec = _decode_strictly(PodSpec, raw)
    errors = ErrorList()
    check_pod_spec(errors, spec, "spec")
    return None if errors else spec


@weighed(entries=256, bytes_max=8 << 20)
def valid_status(raw: bytes) -> PodStatus | None:
    status: PodStatus = _decode_strictly(PodStatus, raw)
    errors = ErrorList()
    check_pod_status(errors, status)
    return None if errors else status


@weighed(entries=4096, bytes_max=16 << 20)
def valid_labels(raw: bytes) -> Labels | None:
    labels: Labels = decoder_of(Labels).decode(raw)
    errors = ErrorList()
    check_labels(errors, labels, "metadata.labels")
    return None if errors else labels


@weighed(entries=4096, bytes_max=16 << 20)
def valid_owners(raw: bytes) -> tuple[OwnerReference, ...] | None:
    _strict_owners().decode(raw)
    owners: tuple[OwnerReference, ...] = decoder_of(tuple[OwnerReference, ...]).decode(raw)
    errors = ErrorList()
    check_owners(errors, owners)
    return None if errors else owners


@cache
def _strict_owners() -> msgspec.json.Decoder[Any]:
    """Refuses unknown fields in owner references."""
    return decoder_of(tuple[strict_twin(OwnerReference), ...])  # type: ignore[misc]


def _decode_strictly(shape: Any, raw: bytes) -> Any:
    """Decode a part, rejecting unknown fields. The strict twin only checks: a view has one type, not two."""
    decoder_of(strict_twin(shape)).decode(raw)
    return decoder_of(shape).decode(raw)
