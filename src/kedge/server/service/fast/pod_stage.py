"""Staging a new pod that changes no other object: unbound, in a namespace that was read and has no quotas.

`effects.stage` is the plain path. This one awaits nothing, and most writes are such creates.
"""

from __future__ import annotations

from kedge.api.objects import Object
from kedge.api.views import NamespaceView, PodView
from kedge.api.wellknown import POD_KIND
from kedge.server.service.core import Proof
from kedge.server.service.namespaces import is_active, namespace_key


def stage_plain_pod(proof: Proof, new: Object) -> Object | None:
    """Stage `new` and return it; None, with nothing staged, on any doubt."""
    key = new.key
    namespace = proof.known(namespace_key(key.namespace))
    if key.kind != POD_KIND or namespace is None or new.as_view(PodView).spec.node_name:
        return None
    view = namespace.as_view(NamespaceView)
    if not is_active(view) or view.status.resource_quotas:
        return None
    proof.put(key, new.value)
    return new
