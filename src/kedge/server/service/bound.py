"""What a bind makes of a pod: its node's name, the record of the bind, and the condition that says so.

A pod as it was created is spliced, not decoded: its spec is long, and a bind changes three places. Whatever else a
pod may look like is edited member by member; both ways say the same, and `test_bound` holds them to it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from kedge.api.codec import encode_json, encode_object
from kedge.api.conditions import set_condition
from kedge.api.objects import Object
from kedge.api.views import Condition, PodView
from kedge.api.views.base import Annotations
from kedge.api.views.schema import decoder_of
from kedge.api.wellknown import BIND_ANNOTATION
from kedge.server.service.core import part

_SCHEDULED = "PodScheduled"
_METADATA, _SPEC = b'"metadata":{', b'"spec":'
_UNTOUCHED = b',"status":{"phase":"Pending"}}'
"""How a pod ends that nobody has written to."""


Bound = tuple[bytes, PodView | None]
"""The pod's next bytes, and their view if it came for nothing."""


def bound(pod: Object, node: str, record: str, now: str) -> Bound:
    """`pod` once it is bound to `node` at the time `now`, with the `record` of the bind. Pure."""
    view = pod.as_view(PodView)
    places = _places(pod.value, view)
    if places is not None:
        return _spliced(pod.value, view, places, node, record, now)
    document = pod.edit()
    document["spec"]["nodeName"] = node
    part(document["metadata"], "annotations")[BIND_ANNOTATION] = record
    status = part(document, "status")
    status["conditions"] = _without_old_words(
        set_condition(status.get("conditions") or (), _condition(pod.metadata.generation), now)
    )
    return encode_object(document), None


_Places = tuple[int, int, int]
"""Where the first member of the metadata and of the spec begins, and where the last of the status ends."""


def _places(value: bytes, view: PodView) -> _Places | None:
    """Where to splice, if each place is sure to be the only one its bytes can mean, and to hold nothing yet.

    What ends a pod ends the object itself. A key is found by its bytes: inside a text they cannot be, as its quotes are
    escaped; deeper in the object they could, so it must be there just once, where the view has seen it. An escape could
    spell a key another way.
    """
    metadata, spec = value.find(_METADATA), value.find(_SPEC)
    if (
        not value.endswith(_UNTOUCHED)
        or not 0 < metadata < spec  # the order in which pods are written
        or not value.startswith(b"{", spec + len(_SPEC))
        or value.find(_SPEC, spec + 1) >= 0
        or value.find(b'"annotations"', 0, spec) >= 0
        or value.find(b'"nodeName"', spec) >= 0
        or (b"\\" in value and b"\\u" in value)
        or not view.spec.containers
    ):
        return None
    return metadata + len(_METADATA), spec + len(_SPEC) + 1, len(value) - 2


def _spliced(before: bytes, view: PodView, places: _Places, node: str, record: str, now: str) -> Bound:
    in_metadata, in_spec, in_status = places
    text, scheduled = _scheduled(view.metadata.generation, now)
    value = b'%b"annotations":%b,%b"nodeName":%b,%b,"conditions":[%b]%b' % (
        before[:in_metadata],
        encode_json({BIND_ANNOTATION: record}),
        before[in_metadata:in_spec],
        encode_json(node),
        before[in_spec:in_status],
        text,
        before[in_status:],
    )
    replace = msgspec.structs.replace
    return (
        value,
        replace(
            view,
            metadata=replace(view.metadata, annotations=Annotations({BIND_ANNOTATION: record})),
            spec=replace(view.spec, node_name=node),
            status=replace(view.status, conditions=(scheduled,)),
        ),
    )


@lru_cache(maxsize=16)
def _scheduled(generation: int, now: str) -> tuple[bytes, Condition]:
    """The condition as it is written and as it is read: pods that are bound within a second share it."""
    text = encode_json({**_condition(generation), "lastTransitionTime": now})
    return text, decoder_of(Condition).decode(text)


def _without_old_words(conditions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Why it had no node is no longer true of a pod that has one."""
    for each in conditions:
        if each.get("type") == _SCHEDULED:
            each.pop("reason", None)
            each.pop("message", None)
    return conditions


def _condition(generation: int) -> dict[str, Any]:
    return {"type": _SCHEDULED, "status": "True", "observedGeneration": generation}
