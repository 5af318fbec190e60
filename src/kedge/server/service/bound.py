"""What a bind makes of a pod: its node's name, the record of the bind, and the condition that says so.

A pod as it was created is spliced, not decoded: its spec is long, and a bind changes three places. Whatever else a
pod may look like is edited member by member; both ways say the same, and `test_bound` holds them to it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from kedge.api.codec import encode_json, encode_object
from kedge.api.conditions import set_condition
from kedge.api.objects import Object
from kedge.api.timestamps import parse_time
from kedge.api.views import Condition, PodView
from kedge.api.views.base import Annotations
from kedge.server.service.core import part

BIND_ANNOTATION = "kedge.dev/bind"
"""Both sides of the staleness boundary: the revisions the decision used, and those the commit proved."""
_SCHEDULED = "PodScheduled"
_UNTOUCHED = b'"status":{"phase":"Pending"}'
"""The status of a pod that nobody has written to."""


class Bound(NamedTuple):
    """The pod's next bytes, and their view if it came for nothing."""

    value: bytes
    view: PodView | None


def bound(pod: Object, node: str, record: str, now: str) -> Bound:
    """`pod` once it is bound to `node` at the time `now`, with the `record` of the bind. Pure."""
    if _can_splice(pod):
        return _spliced(pod, node, record, now)
    document = pod.edit()
    document["spec"]["nodeName"] = node
    part(document["metadata"], "annotations")[BIND_ANNOTATION] = record
    status = part(document, "status")
    status["conditions"] = set_condition(status.get("conditions") or (), _condition(pod), now)
    return Bound(encode_object(document), None)


def _can_splice(pod: Object) -> bool:
    """Whether each place is sure to be where its bytes are first found, and to hold nothing yet.

    A key is found by its bytes. Inside a text they cannot be, as its quotes are escaped; deeper in the object they
    could: so each must be there just once, where the view has seen it. An escape could spell a key another way.
    """
    value = pod.value
    return (
        value.count(b'"spec":') == 1
        and value.count(b'"spec":{') == 1
        and value.count(b'"status":') == 1
        and _UNTOUCHED in value
        and b'"annotations"' not in value
        and b'"nodeName"' not in value
        and b"\\u" not in value
        and bool(pod.as_view(PodView).spec.containers)
        and pod.as_view(PodView).status.phase == "Pending"
    )


def _spliced(pod: Object, node: str, record: str, now: str) -> Bound:
    view = pod.as_view(PodView)
    annotations = encode_json({BIND_ANNOTATION: record})
    condition = encode_json({**_condition(pod), "lastTransitionTime": now})
    value = (
        pod.value.replace(b'"metadata":{', b'"metadata":{"annotations":%b,' % annotations, 1)
        .replace(b'"spec":{', b'"spec":{"nodeName":%b,' % encode_json(node), 1)
        .replace(_UNTOUCHED, b'%b,"conditions":[%b]}' % (_UNTOUCHED[:-1], condition), 1)
    )
    replace = msgspec.structs.replace
    scheduled = Condition(
        type=_SCHEDULED,
        status="True",
        observed_generation=view.metadata.generation,
        last_transition_time=_parsed(now),
    )
    return Bound(
        value,
        replace(
            view,
            metadata=replace(view.metadata, annotations=Annotations({BIND_ANNOTATION: record})),
            spec=replace(view.spec, node_name=node),
            status=replace(view.status, conditions=(scheduled,)),
        ),
    )


def _condition(pod: Object) -> dict[str, Any]:
    return {"type": _SCHEDULED, "status": "True", "observedGeneration": pod.metadata.generation}


_parsed = lru_cache(maxsize=4)(parse_time)  # every bind of one second has the same time
