"""Random input to every verb: only operating errors are raised, and a verb that raises has written nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.objects import (
    BUDGET,
    CONFIG_MAP,
    DEPLOYMENT,
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    RESERVATION,
    RESOURCE_QUOTA,
    ZONE_QUOTA,
    World,
    config_map,
    deployment,
    make_world,
    node,
    pod,
    pod_key,
    reservation,
    resource_quota,
    zone_quota,
)

from kedge.api.kinds import KINDS, Kind
from kedge.api.requests import Binding, DeleteOptions, ListOptions, PatchType, WatchOptions, WriteOptions
from kedge.api.wellknown import RESOURCE_QUOTA_KIND, ZONE_QUOTA_KIND
from kedge.errors import OperatingError
from kedge.keys import Fence, Key, Origin, Revision
from kedge.limits import Limits
from kedge.server.service import AdmissionChain, FunctionPolicy
from kedge.store.memory import MemoryStore

LIMITS = Limits(watch_future_wait_s=0.0, watch_progress_s=0.01)
FIELDS = (
    "apiVersion", "kind", "metadata", "name", "namespace", "generateName", "labels", "annotations", "finalizers",
    "ownerReferences", "resourceVersion", "uid", "deletionTimestamp", "generation", "spec", "status", "data",
    "containers", "nodeName", "replicas", "selector", "matchLabels", "template", "hard", "used", "zones", "zone-a",
    "pods", "phase", "conditions", "pod", "deadline", "gang", "gangSize", "holderIdentity", "disruptedPods",
    "disruptionsAllowed", "observedGeneration", "terminationGracePeriodSeconds", "allocatable", "capacity", "taints",
    "resourceQuotas", "zoneQuotas", "scopes", "entries",
)  # fmt: skip
WORDS = ("", "0", "1", "a", "default", "web-0", "node-a", "settings", "Pod", "v1", "Failed", "True", "10", "-1",
         "2030-01-01T00:00:00Z", "a/b", "\x00", "é", "x" * 300, "9" * 400)  # fmt: skip

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(WORDS),
    st.integers(-5, 5),
    st.sampled_from((2**31, 2**62, 2**63, -(2**63), 10**30, 1.5, float("nan"))),
    st.text(max_size=5),
)
junk = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
bodies = st.one_of(
    junk.map(msgspec.json.encode), junk.filter(lambda body: isinstance(body, dict)), st.binary(max_size=20)
)
words = st.sampled_from(WORDS)
maybe_text = st.sampled_from(("", "", "", *WORDS))
kinds = st.sampled_from((POD, NODE, NAMESPACE, CONFIG_MAP, DEPLOYMENT, RESOURCE_QUOTA, ZONE_QUOTA, RESERVATION,
                         BUDGET, LEASE, *KINDS))  # fmt: skip
origins = st.builds(Origin, operation=maybe_text, decision=maybe_text)
fences = st.none() | st.builds(Fence, st.just(Key("Fence.kedge.dev", "", "x")), st.integers(-1, 9))
write_options = st.builds(WriteOptions, dry_run=st.booleans(), origin=origins, fence=fences)
delete_options = st.builds(
    DeleteOptions,
    dry_run=st.booleans(),
    origin=origins,
    uid=maybe_text,
    revision=st.sampled_from((0, 0, 1, -1, 2**70)),
    propagation=st.sampled_from(("", "Background", "Foreground", "Orphan", "Sideways")),
    grace_s=st.sampled_from((None, None, 0, 1, -1, 2**40, 2**70)),
)
selection = st.fixed_dictionaries(
    {
        "namespace": maybe_text,
        "label_selector": st.sampled_from(("", "a", "!a", "a in (b)", "a=", "((", *WORDS)),
        "field_selector": st.sampled_from(("", "metadata.name=a", "status.phase!=x", "nonsense=1", *WORDS)),
        "resource_version": maybe_text,
        "resource_version_match": st.sampled_from(("", "Exact", "NotOlderThan", "Roughly")),
    }
)


@st.composite
def bent(draw: st.DrawFn, manifest: dict[str, Any]) -> dict[str, Any]:
    """A valid manifest with junk in a few places."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(manifest))
    for _ in range(draw(st.integers(0, 3))):
        here: Any = document
        while isinstance(here, dict) and here:
            name = draw(st.sampled_from(sorted(here)))
            if not isinstance(here[name], dict) or not here[name] or draw(st.booleans()):
                here[draw(st.sampled_from((name, *FIELDS)))] = draw(junk)
                break
            here = here[name]
    return document


MANIFESTS: tuple[dict[str, Any], ...] = (
    pod("other", nodeName="node-a"), node("node-b"), config_map("other"), deployment("other"),
    resource_quota("other", pods="3"), zone_quota("other", zone_a={"pods": "3"}),
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}},
    {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l", "namespace": "default"},
     "spec": {"holderIdentity": "a"}},
    {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "default"},
     "spec": {"maxUnavailable": 1, "selector": {}}},
)  # fmt: skip


async def populated(admission: AdmissionChain | None) -> tuple[World, list[Key]]:
    world = await make_world(limits=LIMITS, admission=admission)
    await world.create(node())
    made = [await world.create(pod()), await world.create(pod("bound")), await world.create(pod("held"))]
    made += [await world.create(config_map()), await world.create(deployment())]
    made += [await world.create(resource_quota(pods="9")), await world.create(zone_quota(zone_a={"pods": "9"}))]
    made += [await world.create(reservation(made[2], "node-a")), await world.get(Key("Namespace", "", "default"))]
    made += [await world.create(MANIFESTS[-1])]
    await world.service.bind(Binding(pod=pod_key("bound"), node="node-a"))
    keys = [each.key for each in made]
    return world, [*keys, Key("Node", "", "node-a"), Key("NodeAllocation.kedge.dev", "", "node-a")]


class Probe:
    """Sends requests and checks the replies."""

    def __init__(self, world: World, keys: list[Key], data: st.DataObject) -> None:
        self._world = world
        self._keys = st.sampled_from(keys) | st.builds(
            Key, st.sampled_from(("Pod", "Node", "Operation.kedge.dev", "Unknown")), words, words
        )
        self._data = data

    def _draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self._data.draw(strategy)

    async def step(self) -> None:
        before = await self._world.store.revision()
        request, dry_run = await self._request()
        try:
            await request
        except OperatingError:
            assert await self._only_counted_since(before), "a verb that raised has written something"
        else:
            assert not dry_run or await self._world.store.revision() == before, "a dry run has written something"

    async def _only_counted_since(self, before: Revision) -> bool:
        """Whether nothing was written but the first count of a quota, which is a commit of its own."""
        if await self._world.store.revision() == before:
            return True
        store = self._world.store
        assert isinstance(store, MemoryStore)
        changed = [entry.key.kind for entry in store.entries() if entry.modified > before]
        return bool(changed) and set(changed) <= {RESOURCE_QUOTA_KIND, ZONE_QUOTA_KIND}

    async def _request(self) -> tuple[Awaitable[Any], bool]:
        service, draw = self._world.service, self._draw
        verb = draw(st.sampled_from(("create", "bent", "update", "patch", "delete", "collection", "bind", "evict",
                                     "confirm", "list", "watch", "get", "scale")))  # fmt: skip
        key, options, deleting = draw(self._keys), draw(write_options), draw(delete_options)
        subresource = draw(st.sampled_from(("", "", "status", "scale", "finalize", "binding", "eviction", "nonsense")))
        match verb:
            case "create":
                body = draw(bodies)
                kind: Kind = draw(kinds)
                return service.create(kind, body, namespace=draw(maybe_text), options=options), options.dry_run
            case "bent":
                manifest = draw(st.sampled_from(MANIFESTS))
                kind = KINDS.of_api(manifest["apiVersion"], manifest["kind"])
                return service.create(kind, draw(bent(manifest)), options=options), options.dry_run
            case "update":
                body = await self._bent_object(key)
                return service.update(key, body, subresource=subresource, options=options), options.dry_run
            case "patch":
                how = draw(st.sampled_from(PatchType))
                operation = st.fixed_dictionaries(
                    {"op": st.sampled_from(("add", "remove", "replace", "test", "copy", "move")), "value": junk,
                     "path": st.sampled_from(("/metadata", "/spec", "/status", "/metadata/labels", "", "/spec/hard")),
                     "from": st.sampled_from(("/metadata", "/spec"))})  # fmt: skip
                patch = draw(junk | st.binary(max_size=9) | st.lists(operation | junk, max_size=3))
                sent = service.patch(key, patch, patch_type=how, subresource=subresource, options=options)
                return sent, options.dry_run
            case "delete":
                return service.delete(key, deleting), deleting.dry_run
            case "collection":
                return self._collection(deleting), deleting.dry_run
            case "bind":
                binding = Binding(pod=key, node=draw(words), pod_uid=draw(maybe_text), node_uid=draw(maybe_text))
                return service.bind(binding, options=options), options.dry_run
            case "evict":
                return service.evict(key, deleting), deleting.dry_run
            case "confirm":
                names = {name: draw(words) for name in ("node", "node_uid", "pod_uid")}
                return service.confirm_ended(**names, options=options), options.dry_run
            case "list":
                asked = ListOptions(
                    **draw(selection), limit=draw(st.integers(-1, 3)), continue_token=draw(maybe_text | st.text())
                )
                return service.list(draw(kinds), asked), True
            case "watch":
                return self._watch(), True
            case "get":
                return service.get(key, resource_version=draw(maybe_text)), True
            case _:
                return service.get_scale(key), True

    async def _bent_object(self, key: Key) -> Any:
        try:
            found = await self._world.get(key)
        except OperatingError:
            return self._draw(bodies)
        return self._draw(bent(found.edit()))

    async def _collection(self, options: DeleteOptions) -> None:
        selected = ListOptions(**self._draw(selection))
        kind = self._draw(st.sampled_from((CONFIG_MAP, LEASE)))  # at most one of each: it stops at the first error
        await self._world.service.delete_collection(kind, selected, options)

    async def _watch(self) -> None:
        options = WatchOptions(
            **self._draw(selection),
            allow_bookmarks=self._draw(st.booleans()),
            send_initial_events=self._draw(st.sampled_from((None, True, False))),
            timeout_s=self._draw(st.sampled_from((0.0, 0.0, -1.0))),
        )
        async for _ in await self._world.service.watch(self._draw(kinds), options):
            pass


def fuzz(data: st.DataObject, admission: AdmissionChain | None = None) -> None:
    async def run() -> None:
        world, keys = await populated(admission)
        probe = Probe(world, keys, data)
        for _ in range(8):
            await probe.step()
        assert not any(lock.locked() for lock in world.service._core.contended.values())
        assert world.store.statistics().watchers == 0

    asyncio.run(run())


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_verbs_raise_only_operating_errors_and_then_write_nothing(data: st.DataObject) -> None:
    fuzz(data)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_verbs_with_policies_raise_only_operating_errors_and_then_write_nothing(data: st.DataObject) -> None:
    every = [kind.key_kind for kind in KINDS]
    policy = FunctionPolicy("quiet", kinds=every, verbs=("create", "update", "delete"))
    fuzz(data, AdmissionChain([policy], [policy]))
