"""Resource quotas: every write is charged to its namespace's quotas in its own commit.

A charge is the difference that a write makes, so create, update, end and removal follow one rule. A quota whose use was
never counted is counted in a commit of its own before the first write that needs it. Every write that changes the use
writes the quota too, so a count that missed a write cannot be committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kedge.api.codec import encode_object
from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.quantity import format_units
from kedge.api.requests import WriteOptions
from kedge.api.views import NamespaceView, PodView, ResourceQuotaView
from kedge.api.wellknown import POD_KIND, RESOURCE_QUOTA_KIND
from kedge.errors import Forbidden, NotFound
from kedge.keys import Key
from kedge.placement.quota import in_scope, object_cost, overruns, quota_delta, tracked
from kedge.placement.resources import Units, add, to_units
from kedge.server.service.core import Core, Proof, Staged, Unsettled, part, staged_value
from kedge.server.service.namespaces import namespace_key
from kedge.server.service.slices import entries_in_slices


async def charge_quotas(
    core: Core,
    proof: Proof,
    kind: Kind,
    key: Key,
    old: PodView | None,
    new: PodView | None,
    exists: int,
    *,
    enforced: bool = True,
) -> None:
    """Charge a write to every quota of its namespace; `Forbidden` names the quota that it would exceed.

    A write that is not `enforced` is charged past the limit: a report of a pod's status cannot be refused.
    """
    namespace = await proof.object(namespace_key(key.namespace))
    if namespace is None:
        return
    names = namespace.as_view(NamespaceView).status.resource_quotas
    if not names:
        return
    quotas = await proof.objects(*(Key(RESOURCE_QUOTA_KIND, key.namespace, name) for name in names))
    charged = []
    for quota in quotas:
        if quota is not None and quota.key != key:
            delta = quota_delta(kind, quota.as_view(ResourceQuotaView), old, new, exists)
            charged.append((quota, {r: amount for r, amount in delta.items() if amount}))
    charged = [(quota, delta) for quota, delta in charged if delta]
    uncounted = [quota.key for quota, _ in charged if not _is_counted(quota.as_view(ResourceQuotaView))]
    if uncounted and not proof.dry_run:
        raise Unsettled(lambda options: _ensure_counted(core, uncounted, options))
    for quota, delta in charged:
        await _charge_one(core, proof, quota, kind, key, delta, enforced=enforced)


async def _charge_one(
    core: Core, proof: Proof, quota: Object, kind: Kind, key: Key, delta: Units, *, enforced: bool
) -> None:
    view = quota.as_view(ResourceQuotaView)
    hard = to_units(view.spec.hard)
    used = to_units(view.status.used) if _is_counted(view) else await count_use(core, quota)
    broken = overruns(delta, used, hard) if enforced else ()
    if broken:

        def listed(amounts: Units) -> str:
            return ",".join(f"{r}={format_units(r, amounts.get(r, 0))}" for r in broken)

        why = f"requested: {listed(delta)}, used: {listed(used)}, limited: {listed(hard)}"
        proof.note(quota.key, "refused", why)
        raise Forbidden(f'{kind.resource} "{key.name}" is forbidden: exceeded quota: {quota.key.name}, {why}', key=key)
    write_use(proof, quota, add(used, delta))


def write_use(proof: Proof, quota: Object, used: dict[str, int]) -> None:
    """Stage the quota's status: its use and its limits."""
    document = quota.edit()
    _set_use(document, used)
    proof.put(quota.key, encode_object(document))


def _is_counted(quota: ResourceQuotaView) -> bool:
    return quota.status.used.keys() == quota.spec.hard.keys()


async def _ensure_counted(core: Core, keys: Sequence[Key], options: WriteOptions) -> None:
    """Count the use of quotas, once for all the writes that wait for it."""
    for key in keys:

        async def attempt(proof: Proof, key: Key = key) -> Staged:
            quota = await proof.object(key)
            if quota is None:
                raise NotFound(f'resourcequotas "{key.name}" not found: it was removed while it was counted', key=key)
            if not _is_counted(quota.as_view(ResourceQuotaView)):
                write_use(proof, quota, await count_use(core, quota))
            return Staged(quota.kind, key, staged_value(proof, quota), created=quota.created)

        core.queue_on(key)  # the first attempt counts; the others wait, and find it counted
        with suppress(NotFound):
            await core.prove(attempt, options)


async def count_use(core: Core, quota: Object) -> dict[str, int]:
    """The namespace's current use of each resource that the quota limits."""
    view = quota.as_view(ResourceQuotaView)
    hard = set(view.spec.hard)
    used: dict[str, int] = dict.fromkeys(hard, 0)
    for kind in core.kinds:
        if not _may_charge(kind, hard):
            continue
        async for entries in entries_in_slices(core, kind.key_kind, quota.key.namespace):
            for entry in entries:
                pod = core.object_of(entry, remember=False).as_view(PodView) if kind.key_kind == POD_KIND else None
                if in_scope(view, pod):
                    used = add(used, tracked(object_cost(kind, pod), hard))
    return used


async def recount(core: Core, quota: Object, document: dict[str, Any]) -> None:
    """Write the namespace's current use into `document`: a status without a use requests a recount.

    The quota is read under the proof before anything is counted, and every write that changes the use writes the quota.
    So a count that missed a write cannot be committed.
    """
    _set_use(document, await count_use(core, quota))


def _set_use(document: dict[str, Any], used: Units) -> None:
    hard = part(part(document, "spec"), "hard")
    document["status"] = {
        **part(document, "status"),
        "hard": hard,
        "used": {r: format_units(r, max(0, used.get(r, 0))) for r in hard},
    }


def _may_charge(kind: Kind, hard: set[str]) -> bool:
    """Whether objects of `kind` can be charged to a resource in `hard`. Pods can be charged to any resource."""
    return kind.namespaced and (kind.key_kind == POD_KIND or not hard.isdisjoint(object_cost(kind, None)))
