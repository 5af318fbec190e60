"""Namespaces: whether they accept new objects, and their quotas.

A namespace lists its quotas by name in its status. Every write proves the namespace that it read, so a new quota, or a
namespace that starts to terminate, makes every write in flight read again.
"""

from __future__ import annotations

from functools import lru_cache

from kedge.api.codec import encode_object
from kedge.api.objects import Object
from kedge.api.views import NamespaceView
from kedge.api.wellknown import NAMESPACE_KIND, RESOURCE_QUOTA_KIND
from kedge.errors import Forbidden, NotFound
from kedge.keys import Key
from kedge.server.service.core import Core, Proof, part

FINALIZER = "kubernetes"
"""Kept in `spec.finalizers` until the namespace is empty."""


@lru_cache(maxsize=4096)
def namespace_key(name: str) -> Key:
    return Key(NAMESPACE_KIND, "", name)


async def active_namespace(proof: Proof, key: Key) -> NamespaceView:
    """The namespace of `key`, which must accept new objects. The commit proves that it still does."""
    return check_active(await proof.object(namespace_key(key.namespace)), key)


def check_active(namespace: Object | None, key: Key) -> NamespaceView:
    """The view of a namespace that was read, which must accept `key`."""
    if namespace is None:
        raise NotFound(
            f'namespaces "{key.namespace}" not found: create it before {key}', key=namespace_key(key.namespace)
        )
    view = namespace.as_view(NamespaceView)
    if not is_active(view):
        raise Forbidden(f'{key} cannot be created: namespace "{key.namespace}" is being terminated', key=key)
    return view


def is_active(namespace: NamespaceView) -> bool:
    return namespace.metadata.deletion_timestamp is None and namespace.status.phase != "Terminating"


async def register_quota(core: Core, proof: Proof, quota: Key, *, present: bool) -> None:
    """Add a quota to its namespace's status, or remove it."""
    namespace = await proof.object(namespace_key(quota.namespace))
    if namespace is None:
        return
    field = _quota_field(quota)
    document = namespace.edit()
    status = part(document, "status")
    names = [name for name in status.get(field) or () if name != quota.name]
    if present:
        if len(names) >= core.env.limits.namespace_quotas_max:
            raise Forbidden(
                f"{quota} cannot be created: its namespace has {len(names)} such quotas already; add its limits to"
                " one of those",
                key=quota,
            )
        names = sorted([*names, quota.name])
    core.namespace_quotas.set(len(names))
    status[field] = names
    proof.put(namespace.key, encode_object(document))


def _quota_field(quota: Key) -> str:
    return "resourceQuotas" if quota.kind == RESOURCE_QUOTA_KIND else "zoneQuotas"
