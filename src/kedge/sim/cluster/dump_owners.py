"""ReplicaSets that a dump of nodes, pods and Deployments does not have, made again from the pods they own. Pure.

Without them a loaded cluster would collect its running pods as garbage and create others. Name and uid come from the
owner references of the pods; the template from the Deployment if the pods run it, else from a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kedge.api.selectors import label_selector
from kedge.api.views import DeploymentView, OwnerReference, PodView
from kedge.api.wellknown import DEPLOYMENT_REVISION, TEMPLATE_HASH_LABEL
from kedge.controllers.shared.pods import is_ready

Body = Mapping[str, Any]


def missing_sets(
    pods: Sequence[tuple[PodView, Body]], deployments: Sequence[tuple[DeploymentView, Body]], known: Iterable[str]
) -> list[dict[str, Any]]:
    """One ReplicaSet for each uid that some pod names as its controller and that is not among `known`."""
    there = frozenset(known)
    groups: dict[str, list[tuple[PodView, Body]]] = {}
    for pod, body in pods:
        owner = controlling_set(pod)
        if owner is not None and owner.uid not in there:
            groups.setdefault(owner.uid, []).append((pod, body))
    current = {}
    for view, body in deployments:
        own = [group for group in groups.values() if _is_of(view, group[0][0])]
        chosen = max(own, key=lambda group: _similarity(body, group), default=None)
        if chosen is not None and _runs(body, chosen[0][1]):
            current[_owner_uid(chosen)] = body
    return [_made(group, deployments, current.get(uid)) for uid, group in groups.items()]


def controlling_set(pod: PodView) -> OwnerReference | None:
    return next(
        (
            ref
            for ref in pod.metadata.owner_references
            if ref.controller and (ref.api_version, ref.kind) == ("apps/v1", "ReplicaSet")
        ),
        None,
    )


def _owner_uid(group: Sequence[tuple[PodView, Body]]) -> str:
    owner = controlling_set(group[0][0])
    assert owner is not None
    return owner.uid


def _is_of(deployment: DeploymentView, pod: PodView) -> bool:
    """Whether a pod belongs to a Deployment: same namespace, selected by it, and its ReplicaSet is named after it."""
    owner = controlling_set(pod)
    return (
        owner is not None
        and pod.namespace == deployment.namespace
        and owner.name.startswith(f"{deployment.name}-")
        and label_selector(deployment.spec.selector).matches(pod.labels)
    )


def _similarity(deployment: Body, group: Sequence[tuple[PodView, Body]]) -> tuple[bool, str, int]:
    newest = max(str(pod.metadata.creation_timestamp) for pod, _ in group)
    return _runs(deployment, group[0][1]), newest, len(group)


def _runs(deployment: Body, pod: Body) -> bool:
    """Whether a pod has the containers and images of the template. Admission may have changed the rest of its spec."""
    wanted = deployment["spec"]["template"]["spec"]["containers"]
    there = pod["spec"]["containers"]
    images = {each["name"]: each.get("image") for each in there}
    return all(images.get(each["name"]) == each.get("image") for each in wanted)


def _made(
    group: Sequence[tuple[PodView, Body]], deployments: Sequence[tuple[DeploymentView, Body]], current: Body | None
) -> dict[str, Any]:
    pod, body = group[0]
    owner = controlling_set(pod)
    assert owner is not None
    above = next(((view, each) for view, each in deployments if _is_of(view, pod)), None)
    labels = dict(pod.labels)
    chosen = labels if above is None else {**above[1]["spec"]["selector"].get("matchLabels", {}), **_hash(labels)}
    template = _template(body, labels) if current is None else _hashed(current["spec"]["template"], labels)
    living = [each for each, _ in group if not each.finished and not each.terminating]
    ready = sum(is_ready(each) for each in living)
    metadata: dict[str, Any] = {
        "name": owner.name,
        "namespace": pod.namespace,
        "uid": owner.uid,
        "generation": 1,
        "labels": labels,
        "annotations": {},
    }
    if above is not None:
        view, deployment = above
        reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": view.name, "uid": view.uid}
        metadata["ownerReferences"] = [{**reference, "controller": True, "blockOwnerDeletion": True}]
        revision = (deployment["metadata"].get("annotations") or {}).get(DEPLOYMENT_REVISION, "1")
        metadata["annotations"] = {DEPLOYMENT_REVISION: revision if current is not None else "0"}
    counts = {"replicas": len(living), "readyReplicas": ready, "availableReplicas": ready}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": metadata,
        "spec": {"replicas": len(living), "selector": {"matchLabels": chosen}, "template": template},
        "status": {**counts, "fullyLabeledReplicas": len(living), "observedGeneration": 1},
    }


def _hash(labels: Mapping[str, str]) -> dict[str, str]:
    return {TEMPLATE_HASH_LABEL: labels[TEMPLATE_HASH_LABEL]} if TEMPLATE_HASH_LABEL in labels else {}


def _hashed(template: Body, labels: Mapping[str, str]) -> dict[str, Any]:
    metadata = dict(template.get("metadata") or {})
    return {**template, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **_hash(labels)}}}


def _template(pod: Body, labels: Mapping[str, str]) -> dict[str, Any]:
    """The template of a pod: its spec without the node."""
    spec = {name: value for name, value in pod["spec"].items() if name not in ("nodeName", "hostname")}
    return {"metadata": {"labels": dict(labels)}, "spec": spec}
