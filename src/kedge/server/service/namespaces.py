"""Namespaces: whether they accept new objects, and their quotas.

A namespace lists its quotas by name in its status. Every write proves the namespace that it read, so a new quota, or a
namespace that starts to terminate, makes every write in flight read again.
"""

from __future__ import annotations

import uuid
from typing import Final

from kedge.api.codec import encode_object
from kedge.api.names import remembered_name
from kedge.api.objects import Object
from kedge.api.views import NamespaceView
from kedge.api.wellknown import (
    DEFAULT_ACCOUNT,
    LIMIT_RANGE_KIND,
    NAMESPACE_KIND,
    RESOURCE_QUOTA_KIND,
    SERVICE_ACCOUNT_KIND,
    ZONE_QUOTA_KIND,
)
from kedge.errors import Forbidden, NotFound
from kedge.keys import Key
from kedge.server.service.core import Core, Proof, part

FINALIZER = "kubernetes"
"""Kept in `spec.finalizers` until the namespace is empty."""


@remembered_name
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


async def add_default_account(core: Core, proof: Proof, namespace: Object) -> None:
    """A new namespace has a ServiceAccount from its first revision on, so no pod in it ever waits for one."""
    kind = core.kinds.of_key_kind(SERVICE_ACCOUNT_KIND)
    key = Key(SERVICE_ACCOUNT_KIND, namespace.key.name, DEFAULT_ACCOUNT)
    if (await proof.entries(key))[0] is not None:
        return
    metadata = {
        "name": key.name,
        "namespace": key.namespace,
        "uid": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{namespace.uid}/{key.name}")),
        "creationTimestamp": core.timestamp(),
    }
    proof.put(key, encode_object({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}))


async def register_quota(core: Core, proof: Proof, quota: Key, *, present: bool) -> None:
    """Add a quota or a limit range to its namespace's status, or remove it."""
    namespace = await proof.object(namespace_key(quota.namespace))
    if namespace is None:
        return
    field = STATUS_FIELDS[quota.kind]
    document = namespace.edit()
    status = part(document, "status")
    names = [name for name in status.get(field) or () if name != quota.name]
    if present:
        if len(names) >= core.env.limits.namespace_quotas_max:
            raise Forbidden(
                f"{quota} cannot be created: its namespace has {len(names)} such objects already; add its limits to"
                " one that exists",
                key=quota,
            )
        names = sorted([*names, quota.name])
    core.namespace_quotas.set(len(names))
    status[field] = names
    proof.put(namespace.key, encode_object(document))


STATUS_FIELDS: Final = {
    RESOURCE_QUOTA_KIND: "resourceQuotas",
    ZONE_QUOTA_KIND: "zoneQuotas",
    LIMIT_RANGE_KIND: "limitRanges",
}
"""Where a namespace's status lists the objects that its creates must prove. Only the service writes these fields."""
