"""The garbage collector: deletes objects that have lost every owner, and finishes foreground and orphaning deletions.

A cache may prove that an owner exists; only a read from the API server proves that it is gone, by uid. A uid never
comes back, so the proof stays valid. The delete names the version that was checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from kedge.api.event_bodies import WARNING, event_body
from kedge.api.holds import active_hold
from kedge.api.kinds import KINDS, Kind, Registry
from kedge.api.objects import Object
from kedge.api.views import OwnerReference
from kedge.api.wellknown import (
    EVENT_KIND,
    LEASE_KIND,
    NODE_ALLOCATION_KIND,
    PRIORITY_CLASS_KIND,
    RECORDING_WINDOW_KIND,
    SIGNING_REQUEST_KIND,
)
from kedge.controllers.garbage.plan import FOREGROUND, ORPHAN, OwnerState, plan_finalizers, plan_garbage
from kedge.controllers.shared.actions import requeue_at
from kedge.env import Env
from kedge.errors import BadRequest, Forbidden, NotFound
from kedge.keys import Key
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec, WatchSpec, writes
from kedge.runtime.cache import BY_OWNER, CacheChange, CacheSet

NAME = "garbage"
_ALONE = KINDS.of_key_kind(PRIORITY_CLASS_KIND)
"""Keys are of every kind, but a controller has one kind of its own, whose changes wake only itself. Objects of this one
neither own nor are owned."""
_UNSEEN_S = 1.0
"""Delay before dependents that no cache has are listed again: no event may ever report their end."""
_NOT_COLLECTED = (EVENT_KIND, LEASE_KIND, NODE_ALLOCATION_KIND, RECORDING_WINDOW_KIND, SIGNING_REQUEST_KIND)
"""Kinds that neither own nor are owned, so they are not watched: most of them change often."""


class GarbageCollector:
    """Reconciles one object of any kind."""

    def __init__(self, env: Env, kinds: Registry = KINDS) -> None:
        self._kinds = kinds
        self._followed = collected_kinds(kinds)
        self._acts = env.metrics.counter(
            "kedge_garbage_total", "Writes of the garbage collector, by action and kind", ("act", "kind")
        )
        self._stuck = env.metrics.gauge("kedge_finalizers_stuck", "Deletions that wait for a finalizer", ("finalizer",))
        self._reported: dict[Key, tuple[str, ...]] = {}
        """The stuck finalizers of each object; used only for the gauge."""

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        if found is None:
            self._count_stuck(key, ())
            return Action.await_change(reason="deleted")
        now = ctx.now()
        hold = active_hold(found.metadata, NAME, now)
        if hold is not None:
            return requeue_at(now, hold.until, reason=str(hold))
        if found.metadata.deletion_timestamp is not None:
            return await self._finish_deletion(ctx, found, now)
        if not found.metadata.owner_references:
            return Action.await_change()
        owners = {ref.uid: await self._owner(ctx, found, ref) for ref in found.metadata.owner_references}
        waiting = OwnerState.WAITING in owners.values()
        dependents = waiting and any(True for _ in self._dependents(ctx, found))
        plan = plan_garbage(found.metadata, owners, has_dependents=dependents)
        if plan.delete:
            self._acts.labels("delete", key.kind).inc()
            await ctx.delete(found, propagation=plan.delete)
        elif plan.drop:
            self._acts.labels("drop owner", key.kind).inc()
            await ctx.patch(found, without_owners(found, plan.drop))
        return Action.await_change(
            reason="" if OwnerState.UNKNOWN not in owners.values() else "an owner has an unknown kind"
        )

    async def _owner(self, ctx: Context, found: Object, ref: OwnerReference) -> OwnerState:
        """The state of one owner. The cache may show that it exists; only the API server that it is gone."""
        try:
            kind = self._kinds.of_api(ref.api_version, ref.kind)
        except (BadRequest, NotFound):
            return OwnerState.UNKNOWN
        if kind.namespaced and not found.key.namespace:
            return OwnerState.UNKNOWN  # it names no namespace
        key = Key(kind.key_kind, found.key.namespace if kind.namespaced else "", ref.name)
        owner = ctx.get(key) if kind in self._followed else None
        if owner is None or owner.uid != ref.uid or _waits(owner, ref):
            owner = await ctx.fresh(key)
        if owner is None or owner.uid != ref.uid:
            return OwnerState.GONE
        return OwnerState.WAITING if _waits(owner, ref) else OwnerState.ALIVE

    def _dependents(self, ctx: Context, owner: Object) -> Iterable[Object]:
        for kind in self._followed:
            for each in ctx.by_index(kind, BY_OWNER, owner.uid):
                if not owner.key.namespace or each.key.namespace == owner.key.namespace:
                    yield each

    async def _finish_deletion(self, ctx: Context, found: Object, now: datetime) -> Action:
        """Handle the dependents, then the finalizers, of an object that is being deleted."""
        finalizers = found.metadata.finalizers
        if ORPHAN in finalizers:
            await self._orphan(ctx, found)
            return Action.await_change(reason="its dependents were orphaned")
        if FOREGROUND in finalizers:
            if any(_blocks(each, found.uid) for each in self._dependents(ctx, found)):
                return Action.await_change(reason="its dependents are deleted first")
            if await self._has_blocking_dependents(ctx, found):
                return Action.requeue(delay_s=_UNSEEN_S, reason="dependents that no cache has yet are deleted first")
            self._acts.labels("finish foreground", found.key.kind).inc()
            await ctx.patch(found, without_finalizers(found, (FOREGROUND,)))
            return Action.await_change(reason="its dependents are gone")
        plan = plan_finalizers(found.metadata, now, stuck_s=ctx.limits.finalizer_stuck_s)
        self._count_stuck(found.key, plan.stuck)
        if plan.remove:
            self._acts.labels("override", found.key.kind).inc()
            await ctx.patch(found, without_finalizers(found, plan.remove))
        if plan.stuck:
            await self._report(ctx, found, plan.stuck)
        return requeue_at(now, plan.requeue_at, reason=f"waits for {', '.join(plan.stuck)}" if plan.stuck else "")

    async def _has_blocking_dependents(self, ctx: Context, owner: Object) -> bool:
        """Whether the API server has a dependent that blocks the deletion: the cache of its kind may be late."""
        for kind in self._followed:
            for each in await ctx.fresh_list(kind, namespace=owner.key.namespace if kind.namespaced else ""):
                if _blocks(each, owner.uid):
                    return True
        return False

    async def _orphan(self, ctx: Context, owner: Object) -> None:
        """Remove the owner from all of its dependents. One that a cache missed would be collected, so they are listed
        at the API server. No later dependent counts: its owner is already being deleted."""
        for kind in self._followed:
            for each in await ctx.fresh_list(kind, namespace=owner.key.namespace if kind.namespaced else ""):
                if any(ref.uid == owner.uid for ref in each.metadata.owner_references):
                    self._acts.labels("orphan", kind.key_kind).inc()
                    await ctx.patch(each, without_owners(each, (owner.uid,)))
        await ctx.patch(owner, without_finalizers(owner, (ORPHAN,)))

    async def _report(self, ctx: Context, found: Object, stuck: Sequence[str]) -> None:
        """Write an Event, once per object: its name follows from the uid."""
        kind = self._kinds.of_key_kind(EVENT_KIND)
        message = f"waits for {', '.join(stuck)}: is their controller gone? A person may override with an expiry"
        body = event_body(
            Key(kind.key_kind, found.key.namespace or "default", f"finalizer-{found.uid}"),
            found,
            component=NAME,
            event_type=WARNING,
            reason="FinalizerStuck",
            message=message,
            now=ctx.now(),
            decision=ctx.decision,
        )
        try:
            await ctx.ensure(kind, body)
        except (NotFound, Forbidden):
            return  # its namespace is being deleted, or does not exist; the metric still counts it

    def forget(self, key: Key) -> None:
        """An object is gone, which wakes no key: it is not counted as stuck any more."""
        self._count_stuck(key, ())

    def _count_stuck(self, key: Key, stuck: tuple[str, ...]) -> None:
        before = self._reported.pop(key, ())
        for name in before:
            self._stuck.labels(name).dec()
        for name in stuck:
            self._stuck.labels(name).inc()
        if stuck:
            self._reported[key] = stuck


def _waits(owner: Object, ref: OwnerReference) -> bool:
    metadata = owner.metadata
    return metadata.deletion_timestamp is not None and FOREGROUND in metadata.finalizers and ref.block_owner_deletion


def _blocks(each: Object, uid: str) -> bool:
    return any(ref.uid == uid and ref.block_owner_deletion for ref in each.metadata.owner_references)


def without_owners(found: Object, uids: Iterable[str]) -> dict[str, Any]:
    gone = set(uids)
    references = found.edit()["metadata"].get("ownerReferences") or []
    return {"metadata": {"ownerReferences": [ref for ref in references if ref.get("uid") not in gone]}}


def without_finalizers(found: Object, names: Iterable[str]) -> dict[str, Any]:
    gone = set(names)
    return {"metadata": {"finalizers": [name for name in found.metadata.finalizers if name not in gone]}}


def collected_kinds(kinds: Registry) -> tuple[Kind, ...]:
    """The kinds that may own objects or be owned."""
    return tuple(kind for kind in kinds if kind.key_kind not in _NOT_COLLECTED)


def may_be_garbage(found: Object) -> bool:
    """Whether it may need a reconcile: it has owners, or it is being deleted and has finalizers."""
    metadata = found.metadata
    return bool(metadata.owner_references) or (metadata.deletion_timestamp is not None and bool(metadata.finalizers))


def _wake_family(
    kinds: Sequence[Kind], forget: Callable[[Key], None]
) -> Callable[[CacheChange, CacheSet], Iterable[Key]]:
    """Wakes the object, the owners that it lost, and its dependents when it is deleted or being deleted.

    `forget` is called with the key of each object that is gone.
    """

    def keys_of(change: CacheChange, caches: CacheSet) -> Iterable[Key]:
        found = change.new or change.old
        assert found is not None
        if change.old is not None and change.old.uid != (change.new.uid if change.new is not None else ""):
            forget(change.key)
        leaving = change.new is None or found.metadata.deletion_timestamp is not None
        if change.new is not None and (leaving or found.metadata.owner_references):
            yield change.key
        # An owner may wait until a dependent is deleted or released: either way it has one less.
        kept = {ref.uid for ref in change.new.metadata.owner_references} if change.new is not None else set()
        for ref in change.old.metadata.owner_references if change.old is not None else ():
            if ref.uid in kept:
                continue
            for kind in kinds:
                if (kind.api_version, kind.kind) == (ref.api_version, ref.kind):
                    yield Key(kind.key_kind, found.key.namespace if kind.namespaced else "", ref.name)
        if leaving:
            for kind in kinds:
                for cache in caches.of_kind(kind.key_kind):
                    # Before every kind is listed this may miss dependents. They are queued anyway: an object with
                    # owners is queued when it is first seen, and no key is reconciled before all caches are listed.
                    if not str(cache.scope):
                        yield from [each.key for each in cache.by_index(BY_OWNER, found.uid).value]

    return keys_of


def garbage_controller(runtime: ControllerRuntime) -> Controller:
    """The controller, ready to run."""
    kinds = collected_kinds(runtime.client.kinds)
    collector = GarbageCollector(runtime.env, runtime.client.kinds)
    wake = _wake_family(kinds, collector.forget)
    return Controller(
        ControllerSpec(
            name=NAME,
            kind=_ALONE,
            writes=(*writes("patch delete", None), *writes("create", KINDS.of_key_kind(EVENT_KIND))),
            indexes=(BY_OWNER,),
            watches=[
                WatchSpec(kind=kind, keys_of=wake, indexes=(BY_OWNER,), resync=may_be_garbage)
                for kind in kinds
                if kind is not _ALONE
            ],
        ),
        collector,
        runtime,
    )
