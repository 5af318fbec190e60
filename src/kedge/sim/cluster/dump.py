"""A real cluster as the initial state: loads the output of `kubectl get nodes,pods,deployments -A -o json`.

Fields are kept, uids included, so that owner references stay valid; resource versions of the other store are dropped.
Objects of kedge's own (ledgers, the quotas of a namespace) and missing owners are made from the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kedge.api.codec import encode_object
from kedge.api.defaults import apply_defaults
from kedge.api.kinds import KINDS, Kind
from kedge.api.validation import check_object
from kedge.api.views import NodeView, PodView
from kedge.api.views.decode import decode_view
from kedge.api.wellknown import (
    EVENT_KIND,
    LEASE_KIND,
    NAMESPACE_KIND,
    NAMESPACE_NAME_LABEL,
    NODE_ALLOCATION_KIND,
    POD_KIND,
    REPLICA_SET_KIND,
    ZONE_LABEL,
)
from kedge.env import Env
from kedge.errors import BadRequest, KedgeError, OperatingError
from kedge.keys import Key
from kedge.placement.ledger import Claim, ClaimState
from kedge.placement.predicates import host_ports
from kedge.placement.resources import pod_requests
from kedge.placement.stored_ledger import StoredLedger
from kedge.server.service.namespaces import STATUS_FIELDS
from kedge.sim.cluster.dump_owners import missing_sets
from kedge.store import Absent, Put, Store

_CLOSED = (NODE_ALLOCATION_KIND, LEASE_KIND, EVENT_KIND)
"""Kinds that describe the state of another control plane."""
_CHUNK = 50
"""Objects in one commit."""


class BadDump(KedgeError):
    """The file is not a dump, or one of its objects cannot be loaded. The message names it: correct the file."""


@dataclass(slots=True)
class DumpPlan:
    """The objects to store for a dump. Nothing is written yet."""

    values: dict[Key, bytes] = field(default_factory=dict)
    """The stored form of each object, ledgers included."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Kinds that kedge does not have, with the number of objects of each."""
    namespaces: list[str] = field(default_factory=list)
    """Namespaces that are not in the dump but have objects in it."""
    sets: list[Key] = field(default_factory=list)
    """ReplicaSets that are not in the dump but own pods in it."""
    orphaned: list[Key] = field(default_factory=list)
    """Objects whose owner is not in the dump. Their owner reference is removed, so that they are not collected."""


def read_dump(path: Path) -> list[dict[str, Any]]:
    """The objects of a file: a `List`, or one object."""
    try:
        document = msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise BadDump(f"{path} is not JSON ({error}): write it with kubectl get ... -o json") from error
    return objects_of(document, str(path))


def objects_of(document: Any, source: str = "the dump") -> list[dict[str, Any]]:
    if not isinstance(document, dict):
        raise BadDump(f"{source} has no object: write it with kubectl get ... -o json")
    items = document.get("items") if str(document.get("kind", "")).endswith("List") else [document]
    if not isinstance(items, list):
        raise BadDump(f"{source}: items is not a list: write the dump with kubectl get ... -o json")
    for place, item in enumerate(items):
        if not isinstance(item, dict) or not isinstance(item.get("metadata"), dict) or not item["metadata"].get("name"):
            raise BadDump(f"{source}: item {place} has no metadata.name: it is not a Kubernetes object")
        if not item.get("apiVersion") or not item.get("kind"):
            raise BadDump(f"{source}: item {place} ({item['metadata']['name']}) has no apiVersion or kind")
    return items


def plan_dump(objects: Sequence[Mapping[str, Any]], env: Env) -> DumpPlan:
    """Check every object of a dump and plan the objects to store.

    Raises:
        BadDump: an object is invalid, occurs twice, or needs an object that is missing; the message names it.
    """
    plan = DumpPlan()
    pods: list[PodView] = []
    nodes: dict[str, NodeView] = {}
    quotas: dict[str, dict[str, list[str]]] = {}
    for each in _with_owners(objects, plan):
        kind = _kind_of(each, plan)
        if kind is None:
            continue
        key, value, view = _checked(kind, each, env)
        if key in plan.values:
            raise BadDump(f"{_name(key)} is in the dump twice: remove one")
        plan.values[key] = value
        if isinstance(view, PodView):
            pods.append(view)
        elif isinstance(view, NodeView):
            nodes[view.name] = view
        elif kind.key_kind in STATUS_FIELDS:
            quotas.setdefault(key.namespace, {}).setdefault(STATUS_FIELDS[kind.key_kind], []).append(key.name)
    _plan_namespaces(plan, quotas, env)
    _plan_ledgers(plan, pods, nodes, env)
    return plan


async def load_dump(store: Store, env: Env, objects: Sequence[Mapping[str, Any]]) -> DumpPlan:
    """Write a dump to an empty store, before any watch or judge is there: it is a state, not a history."""
    plan = plan_dump(objects, env)
    items = sorted(plan.values.items())
    for start in range(0, len(items), _CHUNK):
        chunk = items[start : start + _CHUNK]
        await store.commit([Absent(key) for key, _ in chunk], [Put(key, value) for key, value in chunk])
    return plan


def _with_owners(objects: Sequence[Mapping[str, Any]], plan: DumpPlan) -> list[Mapping[str, Any]]:
    """The objects and the missing ReplicaSets, without references to other owners that the dump lacks."""
    made = _sets_of(objects)
    plan.sets = [Key(REPLICA_SET_KIND, each["metadata"]["namespace"], each["metadata"]["name"]) for each in made]
    every = [*objects, *made]
    uids = {each["metadata"].get("uid") for each in every}
    return [_drop_lost_owners(each, uids, plan) for each in every]


def _sets_of(objects: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    views: dict[str, list[Any]] = {POD_KIND: [], "Deployment": []}
    for each in objects:
        if each["kind"] in views:
            kind = KINDS.of_api(each["apiVersion"], each["kind"])
            with suppress(OperatingError):  # `_checked` reports an object that cannot be read
                views[each["kind"]].append((decode_view(kind, encode_object(dict(each))), each))
    return missing_sets(views[POD_KIND], views["Deployment"], [str(each["metadata"].get("uid")) for each in objects])


def _drop_lost_owners(found: Mapping[str, Any], uids: Collection[Any], plan: DumpPlan) -> Mapping[str, Any]:
    references = found["metadata"].get("ownerReferences") or []
    lost = [ref for ref in references if ref.get("uid") not in uids and _known(ref)]
    if not lost:
        return found
    kind = _known(found)
    if kind is not None:
        namespace = found["metadata"].get("namespace", "default") if kind.namespaced else ""
        plan.orphaned.append(Key(kind.key_kind, namespace, found["metadata"]["name"]))
    left = [ref for ref in references if ref not in lost]
    return {**found, "metadata": {**found["metadata"], "ownerReferences": left}}


def _known(found: Mapping[str, Any]) -> Kind | None:
    try:
        return KINDS.of_api(found.get("apiVersion", ""), found.get("kind", ""))
    except BadRequest:
        return None


def _kind_of(found: Mapping[str, Any], plan: DumpPlan) -> Kind | None:
    kind = _known(found)
    if kind is None or kind.key_kind in _CLOSED:
        plan.skipped[found["kind"]] = plan.skipped.get(found["kind"], 0) + 1
        return None
    return kind


def _checked(kind: Kind, found: Mapping[str, Any], env: Env) -> tuple[Key, bytes, Any]:
    metadata = dict(found["metadata"])
    metadata.pop("resourceVersion", None)
    if kind.namespaced:
        metadata.setdefault("namespace", "default")
    metadata.setdefault("uid", env.new_uid())
    key = Key(kind.key_kind, metadata["namespace"] if kind.namespaced else "", metadata["name"])
    try:
        document = msgspec.json.decode(msgspec.json.encode({**found, "metadata": metadata}))
        apply_defaults(kind, document)  # a server's dump has them; without them the first update would add them
        value = encode_object(document)
        return key, value, check_object(kind, value).view
    except OperatingError as error:
        raise BadDump(f"{_name(key)} cannot be loaded: {error}") from error


def _plan_namespaces(plan: DumpPlan, quotas: Mapping[str, Mapping[str, list[str]]], env: Env) -> None:
    """Add the missing namespaces, and register the quotas of each."""
    for name in dict.fromkeys(key.namespace for key in list(plan.values) if key.namespace):
        key = Key(NAMESPACE_KIND, "", name)
        if key not in plan.values:
            plan.namespaces.append(name)
        elif name not in quotas:
            continue
        document = msgspec.json.decode(plan.values[key]) if key in plan.values else _namespace(name, env)
        document["status"] = {"phase": "Active", **(document.get("status") or {}), **quotas.get(name, {})}
        plan.values[key] = encode_object(document)


def _namespace(name: str, env: Env) -> dict[str, Any]:
    metadata = {"name": name, "uid": env.new_uid(), "labels": {NAMESPACE_NAME_LABEL: name}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata, "spec": {"finalizers": ["kubernetes"]}}


def _plan_ledgers(plan: DumpPlan, pods: Sequence[PodView], nodes: Mapping[str, NodeView], env: Env) -> None:
    """Add the ledger of each node, from the pods bound to it."""
    kind = KINDS.of_key_kind(NODE_ALLOCATION_KIND)
    pages: dict[str, StoredLedger] = {}
    for pod in pods:
        name = pod.spec.node_name
        if not name or pod.finished:
            continue
        node = nodes.get(name)
        if node is None:
            raise BadDump(
                f"Pod {pod.namespace}/{pod.name} is bound to node {name}, which is not in the dump: add nodes"
            )
        if name not in pages:
            pages[name] = StoredLedger.blank(
                kind.api_version, kind.kind, {"name": name, "uid": env.new_uid()}, node.uid
            )
        zone = node.labels.get(ZONE_LABEL, "")
        claim = Claim(pod.namespace, pod.name, ClaimState.BOUND, pod_requests(pod), host_ports(pod), zone)
        pages[name] = pages[name].charge(pod.uid, claim)
    for name, page in pages.items():
        plan.values[Key(kind.key_kind, "", name)] = page.value


def _name(key: Key) -> str:
    kind = key.kind.partition(".")[0]
    return f"{kind} {key.namespace}/{key.name}" if key.namespace else f"{kind} {key.name}"
