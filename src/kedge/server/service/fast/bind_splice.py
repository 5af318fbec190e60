"""A bind of a pod that was never written to since its create: three places are spliced into its bytes.

`bound_pod` is the plain path, which decodes the pod, edits it and encodes it again. A spec is long, and a bind changes
little of it.
"""

from __future__ import annotations

import msgspec

from kedge.api.codec import encode_json
from kedge.api.objects import Object
from kedge.api.views import Condition, PodView
from kedge.api.views.base import Annotations
from kedge.api.views.schema import decoder_of
from kedge.api.wellknown import BIND_ANNOTATION
from kedge.caches import remembered
from kedge.server.service.bound_pod import scheduled_condition

_METADATA, _SPEC = b'"metadata":{', b'"spec":'
_NEW_POD_END = b',"status":{"phase":"Pending"}}'


def splice_bind(pod: Object, node: str, record: str, now: str) -> tuple[bytes, PodView] | None:
    """As `bound_pod`: the pod's next bytes, and their view; None on any doubt. Pure."""
    view = pod.as_view(PodView)
    places = _places(pod.value, view)
    return None if places is None else _spliced(pod.value, view, places, node, record, now)


_Places = tuple[int, int, int]
"""Where the first member of the metadata and of the spec begins, and where the last of the status ends."""


def _places(value: bytes, view: PodView) -> _Places | None:
    """Where to splice; None unless each place is unambiguous and still empty.

    The end of the bytes is the end of the object. A key is found by its bytes. They cannot stand inside a string, whose
    quotes are escaped. They could stand deeper in the object, so they must occur once, where the view has the key. An
    escape could spell a key another way.
    """
    metadata, spec = value.find(_METADATA), value.find(_SPEC)
    if (
        not value.endswith(_NEW_POD_END)
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


def _spliced(before: bytes, view: PodView, places: _Places, node: str, record: str, now: str) -> tuple[bytes, PodView]:
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


@remembered(entries=16, entry_bytes=1024)  # a number and a time of our own
def _scheduled(generation: int, now: str) -> tuple[bytes, Condition]:
    """The condition, encoded and decoded: pods that are bound within a second share it."""
    text = encode_json({**scheduled_condition(generation), "lastTransitionTime": now})
    return text, decoder_of(Condition).decode(text)
