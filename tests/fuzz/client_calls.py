"""Hostile requests for `kedge.client`, as plain documents: hypothesis draws them, and the corpus keeps them as files.

A document is a Python literal with the verb and its arguments. `{"$deep": n}` stands for lists n levels deep.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from kedge.api import requests as api
from kedge.api.kinds import KINDS
from kedge.keys import Fence, Key, Origin

WORDS = ("", "0", "1", "a", "default", "web-0", "node-a", "Pod", "v1", "-1", "2030-01-01T00:00:00Z", "a/b", "..", "%2e",
         "\x00", "é", "a\r\nX: y", "a b", "\ud800", "😀", "x" * 300, "9" * 400,
         "*", "a=b,c", "a in (b", "!", "=", ",")  # fmt: skip
FIELDS = ("apiVersion", "kind", "metadata", "name", "namespace", "generateName", "labels", "annotations", "finalizers",
          "ownerReferences", "resourceVersion", "uid", "spec", "status", "data", "containers", "nodeName", "replicas",
          "selector", "template", "hard", "conditions", "$patch", "$retainKeys", "$deleteFromPrimitiveList/finalizers",
          "$setElementOrder/containers", "\ud800", "")  # fmt: skip
KIND_NAMES = ("Pod", "Node", "Namespace", "ConfigMap", "Deployment.apps", "Lease.coordination.k8s.io",
              "Reservation.kedge.dev", "PodDisruptionBudget.policy", "CustomResourceDefinition.apiextensions.k8s.io",
              "ResourceQuota", "ServiceAccount", "Secret")  # fmt: skip
PATHS = ("", "/", "/metadata", "/metadata/labels/a", "/spec", "/spec/containers/-", "/spec/containers/99", "/status",
         "metadata", "/~2", "/metadata/name", "/\ud800")  # fmt: skip

words = st.sampled_from(WORDS) | st.text(max_size=4)
maybe = st.just("") | words
numbers = st.sampled_from((0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**30, 1.5, 1e999)) | st.integers(-3, 9)
leaves = st.none() | st.booleans() | words | numbers | st.binary(max_size=3)
junk = st.recursive(
    leaves | st.builds(lambda depth: {"$deep": depth}, st.sampled_from((50, 300, 3_000))),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(FIELDS) | words, inner, max_size=4)
        | st.dictionaries(st.integers(0, 2) | st.none(), inner, max_size=1)
    ),
    max_leaves=10,
)
metadata = st.fixed_dictionaries(
    {"name": st.sampled_from(("a", "b", "web-0")) | words}, optional=dict.fromkeys(FIELDS[5:12], junk)
)
objects = st.fixed_dictionaries(
    {"metadata": metadata | junk}, optional={"spec": junk, "status": junk, "data": junk, "kind": words}
)
bodies = objects | junk | st.binary(max_size=12)
operations = st.fixed_dictionaries(
    {"op": st.sampled_from(("add", "remove", "replace", "test", "copy", "move", "x")), "path": st.sampled_from(PATHS)},
    optional={"value": junk, "from": st.sampled_from(PATHS)},
)
keys = st.tuples(
    st.sampled_from(KIND_NAMES) | words,
    st.sampled_from(("default", "")) | words,
    st.sampled_from(("a", "web-0")) | words,
)
origin = st.fixed_dictionaries({}, optional={"operation": words, "decision": words})
writing = st.fixed_dictionaries(
    {},
    optional={
        "dry_run": st.booleans(),
        "origin": origin,
        "fence": st.tuples(words, words, words, st.integers(-1, 3)),
        "recorded": st.booleans(),
        "acting_as": words,
    },
)
deleting = st.fixed_dictionaries(
    {},
    optional={
        "dry_run": st.booleans(), "origin": origin, "uid": words, "revision": numbers.filter(lambda n: n == int(n) if
        n != 1e999 else False), "propagation": words, "grace_s": st.sampled_from((None, 0, -1, 2**70)),
    },
)  # fmt: skip
selecting = st.fixed_dictionaries(
    {},
    optional={
        "namespace": words, "label_selector": words, "field_selector": words, "resource_version": words,
        "resource_version_match": st.sampled_from(("Exact", "NotOlderThan")) | words,
    },
)  # fmt: skip
paging = st.fixed_dictionaries({}, optional={"limit": st.sampled_from((-1, 0, 1, 2**63)), "continue_token": words})
streaming = st.fixed_dictionaries(
    {"timeout_s": st.sampled_from((0.0, -1.0, 0.01))},
    optional={"allow_bookmarks": st.booleans(), "send_initial_events": st.sampled_from((None, True, False))},
)
subresources = st.sampled_from(("", "", "status", "scale", "binding", "eviction", "nothing")) | words


def _call(verb: str, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"verb": st.just(verb), **parts})


calls: st.SearchStrategy[dict[str, Any]] = st.one_of(
    _call("create", kind=st.sampled_from(KIND_NAMES), body=bodies, namespace=maybe, options=writing),
    _call("update", key=keys, body=bodies, subresource=subresources, options=writing),
    _call(
        "patch", key=keys, body=bodies | st.lists(operations | junk, max_size=3), subresource=subresources,
        type=st.sampled_from(("JSON", "MERGE", "STRATEGIC")), options=writing,
    ),
    _call("delete", key=keys, options=deleting),
    _call("evict", key=keys, options=deleting),
    _call("delete_collection", kind=st.sampled_from(("Lease.coordination.k8s.io",)), selection=selecting,
          options=deleting),
    _call("get", key=keys, resource_version=maybe),
    _call("get_scale", key=keys),
    _call("list", kind=st.sampled_from(KIND_NAMES), selection=selecting, paging=paging),
    _call("watch", kind=st.sampled_from(KIND_NAMES), selection=selecting, streaming=streaming),
    _call("bind", pod=keys, node=words, pod_uid=maybe, node_uid=maybe, options=writing),
    _call("reserve", namespace=words, gang=words, size=st.sampled_from((-1, 0, 1, 2**63)), pod=words, node=words,
          commit=st.booleans(), options=writing),
    _call("confirm_ended", node=words, node_uid=words, pod_uid=words, options=writing),
    _call("request_token", key=keys, audience=words, expiration_s=st.sampled_from((-1, 0, 3600, 2**63))),
)  # fmt: skip


def expanded(value: Any) -> Any:
    """A document with its deep parts in full."""
    if isinstance(value, dict):
        if "$deep" in value:
            made: Any = []
            for _ in range(value["$deep"]):
                made = [made]
            return made
        return {name: expanded(each) for name, each in value.items()}
    return [expanded(each) for each in value] if isinstance(value, list) else value


def _write_options(given: dict[str, Any]) -> dict[str, Any]:
    made = dict(given)
    if "origin" in made:
        made["origin"] = Origin(**made["origin"])
    if made.get("fence") is not None:
        *key, revision = made["fence"]
        made["fence"] = Fence(Key(*key), revision)
    return made


def request_of(call: dict[str, Any]) -> api.Request[Any]:
    """The request that a document stands for."""
    options = _write_options(call.get("options", {}))
    key = Key(*call["key"]) if "key" in call else Key("", "", "")
    kind = KINDS.of_key_kind(call["kind"]) if "kind" in call else KINDS.of_key_kind("Pod")
    body = expanded(call.get("body"))
    match call["verb"]:
        case "create":
            return api.Create(kind, body, call["namespace"], api.WriteOptions(**options))
        case "update":
            return api.Update(key, body, call["subresource"], api.WriteOptions(**options))
        case "patch":
            how = api.PatchType[call["type"]]
            return api.Patch(key, body, how, call["subresource"], api.WriteOptions(**options))
        case "delete":
            return api.Delete(key, api.DeleteOptions(**options))
        case "evict":
            return api.Evict(key, api.DeleteOptions(**options))
        case "delete_collection":
            return api.DeleteCollection(kind, api.ListOptions(**call["selection"]), api.DeleteOptions(**options))
        case "get":
            return api.Get(key, api.GetOptions(resource_version=call["resource_version"]))
        case "get_scale":
            return api.GetScale(key)
        case "list":
            return api.List(kind, api.ListOptions(**call["selection"], **call["paging"]))
        case "watch":
            return api.OpenWatch(kind, api.WatchOptions(**call["selection"], **call["streaming"]))
        case "bind":
            names = {name: call[name] for name in ("node", "pod_uid", "node_uid")}
            return api.Bind(api.Binding(pod=Key(*call["pod"]), **names), api.WriteOptions(**options))
        case "reserve":
            place = api.GangPlace(pod=call["pod"], pod_uid=call["pod"], node=call["node"])
            chunk = api.GangChunk(
                namespace=call["namespace"], gang=call["gang"], size=call["size"], commit=call["commit"],
                deadline=datetime(2030, 1, 1, tzinfo=UTC), places=(place,),
            )  # fmt: skip
            return api.Reserve(chunk, api.WriteOptions(**options))
        case "confirm_ended":
            names = {name: call[name] for name in ("node", "node_uid", "pod_uid")}
            return api.ConfirmEnded(**names, options=api.WriteOptions(**options))
    return api.RequestToken(key=key, audiences=(call["audience"],), expiration_s=call["expiration_s"])
