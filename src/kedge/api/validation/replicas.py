"""A short cut for the most common write: another pod of a workload, whose spec was found clean before.

Replicas differ in their metadata and have the same spec, byte for byte. A clean spec is remembered by its bytes, so
that it is decoded and judged once; whatever is not plainly clean takes the long way, which alone reports errors.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import msgspec

from kedge.api.validation.complaints import Complaints
from kedge.api.validation.pods import check_pod_spec
from kedge.api.views import ObjectMeta, PodSpec, PodStatus, PodView
from kedge.api.views.shapes import decoder_of, strict_twin


class _Frame(msgspec.Struct, frozen=True, gc=False):
    """A pod whose spec is left unread."""

    metadata: ObjectMeta = ObjectMeta()
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: PodStatus = PodStatus()


def read_known_pod(value: bytes) -> PodView | None:
    """The view of a pod whose fields are all known and whose spec is clean; None if there is any doubt."""
    try:
        _name_decoder().decode(value)
        frame: _Frame = decoder_of(_Frame).decode(value)
    except (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError):
        return None
    spec = _clean_spec(bytes(frame.spec))
    return None if spec is None else PodView(metadata=frame.metadata, spec=spec, status=frame.status)


@lru_cache(maxsize=1024)
def _clean_spec(raw: bytes) -> PodSpec | None:
    try:
        decoder_of(strict_twin(PodSpec)).decode(raw)
        spec: PodSpec = decoder_of(PodSpec).decode(raw)
    except (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError):
        return None
    complaints = Complaints()
    check_pod_spec(complaints, spec, "spec")
    return None if complaints else spec


@cache
def _name_decoder() -> msgspec.json.Decoder[Any]:
    """Refuses unknown fields in a pod, its spec aside."""
    members: list[tuple[str, Any, Any]] = [
        ("apiVersion", msgspec.Raw, msgspec.field(default=None)),
        ("kind", msgspec.Raw, msgspec.field(default=None)),
        ("metadata", strict_twin(ObjectMeta), msgspec.field(default=None)),
        ("spec", msgspec.Raw, msgspec.field(default=None)),
        ("status", strict_twin(PodStatus), msgspec.field(default=None)),
    ]
    return msgspec.json.Decoder(msgspec.defstruct("PodNames", members, gc=False, forbid_unknown_fields=True))
