"""The node authorizer: an agent may touch its own node, its lease, the pods bound to it and what they refer to.

Rights that every agent has alike are a role (`system:node`). Rights here depend on the node's name, and some on an
object: those are read from the store for each request, so they end with the pod. Writes of pods, nodes and leases are
proved in their own commits: see `write_checks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kedge.api import wellknown
from kedge.api.access import Attributes
from kedge.api.pod_references import references
from kedge.api.views import NodeAllocationView, PodView
from kedge.api.views.accounts import account_of
from kedge.api.wellknown import (
    CONFIG_MAP_KIND,
    NODE_ALLOCATION_KIND,
    NODE_LEASE_NAMESPACE,
    POD_KIND,
    SECRET_KIND,
    SERVICE_ACCOUNT_KIND,
)
from kedge.keys import Key

if TYPE_CHECKING:
    from kedge.server.service.core import Core

_OWN_NODE: Final = frozenset({"update", "patch"})
_OWN_LEASE: Final = frozenset({"get", "update", "patch"})
_OWN_PODS: Final = {"": frozenset({"get", "delete"}), "status": frozenset({"get", "update", "patch"})}
_REFERRED: Final = {
    ("configmaps", ""): CONFIG_MAP_KIND,
    ("secrets", ""): SECRET_KIND,
    ("serviceaccounts", ""): SERVICE_ACCOUNT_KIND,
    ("serviceaccounts", "token"): SERVICE_ACCOUNT_KIND,
}


def allows_nowait(node: str, wanted: Attributes) -> bool | None:
    """Whether the agent of `node` may do this; None if that depends on an object: await `allows`."""
    match wanted.group, wanted.resource:
        case "", "nodes":
            # The name of a new node is in its body: its commit checks it.
            created = wanted.verb == "create" and not wanted.subresource
            own = wanted.name == node and wanted.subresource in ("", "status") and wanted.verb in _OWN_NODE
            return created or own
        case wellknown.LEASES_GROUP, "leases" if wanted.namespace == NODE_LEASE_NAMESPACE and not wanted.subresource:
            return wanted.verb == "create" or (wanted.name == node and wanted.verb in _OWN_LEASE)
        case wellknown.KEDGE_GROUP, "nodeallocations":
            return wanted.name == node and (wanted.verb, wanted.subresource) in (("get", ""), ("create", "ended"))
        case "", "pods":
            if wanted.verb in ("list", "watch") and not wanted.subresource:
                return f"spec.nodeName={node}" in wanted.field_selector.split(",")
            return None if wanted.verb in _OWN_PODS.get(wanted.subresource, ()) and wanted.name else False
        case "", "configmaps" | "secrets" | "serviceaccounts" if (wanted.resource, wanted.subresource) in _REFERRED:
            reads = wanted.verb == ("create" if wanted.subresource else "get")
            return None if reads and wanted.name and wanted.namespace else False
        case _:
            return False


def hides(node: str, wanted: Attributes) -> bool:
    """Whether an object that the agent of `node` may not see does not exist for it."""
    return bool(node) and wanted[:4] == ("get", "", "pods", "") and bool(wanted.name)


async def allows(core: Core, node: str, wanted: Attributes) -> bool:
    """Whether an object that `allows_nowait` has to know about is of this node."""
    if wanted.resource == "pods":
        (found,) = (await core.store.get([Key(POD_KIND, wanted.namespace, wanted.name)])).entries
        # A pod that does not exist needs no protection: the reply is that it was not found.
        return found is None or core.object_of(found).as_view(PodView).spec.node_name == node
    kind = _REFERRED[wanted.resource, wanted.subresource]
    return await _is_referred_to(core, node, Key(kind, wanted.namespace, wanted.name))


async def _is_referred_to(core: Core, node: str, key: Key) -> bool:
    """Whether a pod that is bound to the node refers to an object. The node's ledger names its pods."""
    (entry,) = (await core.store.get([Key(NODE_ALLOCATION_KIND, "", node)])).entries
    if entry is None:
        return False
    claims = core.object_of(entry).as_view(NodeAllocationView).status.entries
    keys = [Key(POD_KIND, key.namespace, each.name) for each in claims.values() if each.namespace == key.namespace]
    for found in (await core.store.get(keys)).entries if keys else ():
        if found is None:
            continue
        pod = core.object_of(found).as_view(PodView)
        if pod.spec.node_name != node:
            continue
        if account_of(pod.spec) == key.name if key.kind == SERVICE_ACCOUNT_KIND else key in references(pod):
            return True
    return False
