"""Limit ranges of a namespace, applied to a new pod under the proof of its create.

A namespace lists its limit ranges by name in its status, as it lists its quotas: every create proves the namespace that
it read, and each range, so no create can miss one or keep an old version of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kedge.api.codec import encode_object
from kedge.api.objects import Object
from kedge.api.views import LimitRangeView, NamespaceView, PodView
from kedge.api.wellknown import LIMIT_RANGE_KIND
from kedge.errors import Forbidden
from kedge.keys import NO_REVISION, Key
from kedge.placement.limit_ranges import set_defaults, violations
from kedge.server.service.core import Proof
from kedge.server.service.namespaces import namespace_key

LimitRanges = Sequence[LimitRangeView]


async def limit_ranges_of(proof: Proof, namespace: str) -> LimitRanges:
    """The limit ranges of a namespace that was read. Most namespaces have none."""
    found = proof.known(namespace_key(namespace))
    names = found.as_view(NamespaceView).status.limit_ranges if found is not None else ()
    if not names:
        return ()
    ranges = await proof.objects(*(Key(LIMIT_RANGE_KIND, namespace, name) for name in names))
    return [each.as_view(LimitRangeView) for each in ranges if each is not None]


def with_defaults(proof: Proof, pod: Object, ranges: LimitRanges) -> Object:
    """A new pod with the requests and limits that the ranges set; the caller validates it again if it changed."""
    document = pod.edit()
    changed = [each for each in ranges if set_defaults(document, each)]
    for each in changed:
        proof.note(_key_of(pod, each), "changed", "the requests and limits of containers")
    return Object(pod.kind, pod.key, encode_object(document), revision=NO_REVISION) if changed else pod


def _key_of(pod: Object, limits: LimitRangeView) -> Key:
    return Key(LIMIT_RANGE_KIND, pod.key.namespace, limits.name)


def check_limits(proof: Proof, pod: Object, ranges: LimitRanges) -> None:
    """Raise `Forbidden` for the first range that the pod does not keep."""
    for each in ranges:
        broken = violations(pod.as_view(PodView), each)
        if broken:
            proof.note(_key_of(pod, each), "refused", "; ".join(broken))
            why = broken[0] if len(broken) == 1 else f"[{', '.join(broken)}]"
            raise Forbidden(f'pods "{pod.key.name}" is forbidden: {why}', key=pod.key)
