"""Which fields of an existing object may change, and which may not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.unit.api.manifests import manifest, manifests

from kedge.api.kinds import KINDS
from kedge.api.validation import check_update
from kedge.errors import Invalid

UID = "3b2f9a50-0000-4000-8000-1234567890ab"


def update(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The errors of the step from `old` to `new`."""
    kind = KINDS.of_api(old["apiVersion"], old["kind"])
    try:
        check_update(kind, old, new)
    except Invalid as error:
        return [str(each) for each in error.errors]
    return []


def changed(obj: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    new = copy.deepcopy(obj)
    *parents, last = path.split("/")
    node: Any = new
    for part in parents:
        node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
    node[int(last) if isinstance(node, list) else last] = value
    return new


@pytest.mark.parametrize("obj", manifests(), ids=lambda obj: str(obj["kind"]))
def test_an_unchanged_object_is_a_valid_update(obj: dict[str, Any]) -> None:
    assert update(obj, obj) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", "other"), ("namespace", "other"), ("uid", "other"), ("creationTimestamp", "2027-01-01T00:00:00Z"),
     ("deletionTimestamp", "2027-01-01T00:00:00Z"), ("deletionGracePeriodSeconds", 5)],
)  # fmt: skip
def test_identity_never_changes(field: str, value: Any) -> None:
    old = changed(changed(manifest("Pod"), "metadata/uid", UID), "metadata/creationTimestamp", "2026-01-01T00:00:00Z")
    (found,) = update(old, changed(old, f"metadata/{field}", value))
    assert found.startswith(f"metadata.{field}: Invalid value")
    assert found.endswith("field is immutable")


def test_fields_of_the_server_may_be_absent_in_an_update() -> None:
    old = changed(manifest("Pod"), "metadata/uid", UID)
    assert update(old, manifest("Pod")) == []


def test_a_terminating_object_may_lose_a_finalizer_but_gets_no_new_one() -> None:
    old = changed(manifest("Pod"), "metadata/deletionTimestamp", "2026-01-01T00:00:00Z")
    old["metadata"]["finalizers"] = ["a.io/x", "a.io/y"]
    assert update(old, changed(old, "metadata/finalizers", ["a.io/y"])) == []
    (found,) = update(old, changed(old, "metadata/finalizers", ["a.io/x", "a.io/z"]))
    assert found.startswith("metadata.finalizers: Forbidden: no new finalizers")


# -- pods ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec/containers/0/image", "web:2"),
        ("spec/initContainers/0/image", "setup:2"),
        ("spec/activeDeadlineSeconds", 60),
        ("metadata/labels", {"app": "x"}),
        ("metadata/annotations", {"a": "b"}),
        ("status/phase", "Failed"),
    ],
)
def test_these_fields_of_a_pod_may_change(path: str, value: Any) -> None:
    pod = manifest("Pod")
    assert update(pod, changed(pod, path, value)) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec/nodeName", "node-2"),
        ("spec/containers/0/command", ["other"]),
        ("spec/containers/0/resources/requests/cpu", "1"),
        ("spec/nodeSelector", {"disk": "hdd"}),
        ("spec/schedulerName", "other"),
        ("spec/priority", 5),
        ("spec/terminationGracePeriodSeconds", 5),
        ("spec/unknownField", 1),
        ("spec/affinity/nodeAffinity", {}),
    ],
)
def test_the_rest_of_a_pods_spec_is_immutable(path: str, value: Any) -> None:
    pod = manifest("Pod")
    (found,) = update(pod, changed(pod, path, value))
    assert found.startswith("spec: Forbidden: pod updates may not change fields other than")


def test_a_deadline_may_only_become_shorter() -> None:
    pod = changed(manifest("Pod"), "spec/activeDeadlineSeconds", 60)
    assert update(pod, changed(pod, "spec/activeDeadlineSeconds", 30)) == []
    (found,) = update(pod, changed(pod, "spec/activeDeadlineSeconds", 90))
    assert "must be less than or equal to previous value" in found
    (found,) = update(pod, changed(pod, "spec/activeDeadlineSeconds", None))
    assert "must not update from a positive integer to nil" in found


def test_tolerations_may_be_added_and_their_seconds_changed() -> None:
    pod = manifest("Pod")
    more = [*pod["spec"]["tolerations"], {"key": "x", "operator": "Exists"}]
    assert update(pod, changed(pod, "spec/tolerations", more)) == []
    assert update(pod, changed(pod, "spec/tolerations/1/tolerationSeconds", 5)) == []
    (found,) = update(pod, changed(pod, "spec/tolerations", more[1:]))
    assert found.startswith("spec.tolerations: Forbidden")


def test_scheduling_gates_may_be_removed_and_never_added() -> None:
    pod = changed(manifest("Pod"), "spec/schedulingGates", [{"name": "a"}, {"name": "b"}])
    assert update(pod, changed(pod, "spec/schedulingGates", [{"name": "b"}])) == []
    (found,) = update(pod, changed(pod, "spec/schedulingGates", [{"name": "c"}]))
    assert found.startswith("spec.schedulingGates: Forbidden: only deletion is allowed")


def test_the_node_constraints_of_a_gated_pod_may_only_narrow() -> None:
    pod = changed(manifest("Pod"), "spec/schedulingGates", [{"name": "a"}])
    assert update(pod, changed(pod, "spec/nodeSelector", {"disk": "ssd", "zone": "a"})) == []
    (found,) = update(pod, changed(pod, "spec/nodeSelector", {"zone": "a"}))
    assert found.startswith("spec.nodeSelector: Invalid value")
    terms = "spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms"
    wanted = {"key": "gpu", "operator": "Exists"}
    one = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    had = one["nodeSelectorTerms"][0]["matchExpressions"]
    assert update(pod, changed(pod, f"{terms}/0/matchExpressions", [*had, wanted])) == []
    (found,) = update(pod, changed(pod, f"{terms}/0/matchExpressions", [wanted]))
    assert "only additions are allowed" in found
    (found,) = update(pod, changed(pod, terms, [*one["nodeSelectorTerms"], {}]))
    assert "no additions/deletions" in found
    ungated = manifest("Pod")
    assert update(ungated, changed(ungated, "spec/nodeSelector", {"disk": "ssd", "zone": "a"}))


# -- other kinds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "path", "value", "place"),
    [
        ("Deployment", "spec/selector/matchLabels/app", "x", "spec.selector"),
        ("ReplicaSet", "spec/selector", {"matchLabels": {"app": "x"}}, "spec.selector"),
        ("Job", "spec/completions", 9, "spec.completions"),
        ("Job", "spec/template/spec/containers/0/image", "x", "spec.template"),
        ("Job", "spec/completionMode", "Indexed", "spec.completionMode"),
        ("PriorityClass", "value", 5, "value"),
        ("EndpointSlice", "addressType", "IPv6", "addressType"),
        ("Secret", "type", "other", "type"),
        ("CustomResourceDefinition", "spec/scope", "Cluster", "spec.scope"),
        ("Reservation", "spec/pod/uid", "x", "spec.pod.uid"),
        ("Rollout", "spec/target/name", "x", "spec.target"),
    ],
)
def test_these_fields_are_immutable(kind: str, path: str, value: Any, place: str) -> None:
    old = manifest(kind)
    found = update(old, changed(old, path, value))
    assert [each.split(": ")[0] for each in found] == [place]
    assert "immutable" in found[0]


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", "spec/replicas", 9),
        ("Deployment", "spec/template/spec/containers/0/image", "x"),
        ("Job", "spec/parallelism", 9),
        ("Job", "spec/suspend", True),
        ("Node", "spec/unschedulable", False),
        ("PodDisruptionBudget", "spec/minAvailable", 1),
        ("Reservation", "spec/generation", 3),
        ("Lease", "spec/holderIdentity", "b"),
    ],
)
def test_these_fields_may_change_at_any_time(kind: str, path: str, value: Any) -> None:
    old = manifest(kind)
    assert update(old, changed(old, path, value)) == []


def test_an_indexed_job_may_grow_if_its_parallelism_does() -> None:
    job = changed(changed(manifest("Job"), "spec/completionMode", "Indexed"), "spec/parallelism", 3)
    grown = changed(changed(job, "spec/completions", 5), "spec/parallelism", 5)
    assert update(job, grown) == []
    assert update(job, changed(job, "spec/completions", 5))


def test_the_placement_of_a_suspended_job_may_change() -> None:
    job = changed(manifest("Job"), "spec/suspend", value=True)
    assert update(job, changed(job, "spec/template/spec/nodeSelector", {"zone": "b"})) == []
    assert update(job, changed(job, "spec/template/spec/containers/0/image", "x"))
    running = manifest("Job")
    assert update(running, changed(running, "spec/template/spec/nodeSelector", {"zone": "b"}))


def test_data_that_was_declared_immutable_stays() -> None:
    for kind in ("ConfigMap", "Secret"):
        loose = manifest(kind)
        assert update(loose, changed(loose, "data", {"x": "eA=="})) == []
        fixed = changed(loose, "immutable", value=True)
        assert update(loose, fixed) == []
        (found,) = update(fixed, changed(fixed, "data", {"x": "eA=="}))
        assert found == "data: Forbidden: field is immutable when `immutable` is set"
        (found,) = update(fixed, changed(fixed, "immutable", value=False))
        assert found.startswith("immutable: Forbidden")


def test_a_service_keeps_its_address_once_it_has_one() -> None:
    service = manifest("Service")
    placed = changed(service, "spec/clusterIP", "10.0.0.1")
    assert update(service, placed) == []
    (found,) = update(placed, changed(service, "spec/clusterIP", "10.0.0.2"))
    assert "may not change once set" in found


def test_every_forbidden_change_is_reported_at_once() -> None:
    old = manifest("Job")
    new = changed(changed(changed(old, "metadata/name", "x"), "spec/completions", 9), "spec/selector", {})
    with pytest.raises(Invalid) as caught:
        check_update(KINDS.resolve("jobs"), old, new)
    assert {error.path for error in caught.value.errors} == {"metadata.name", "spec.selector", "spec.completions"}
    assert caught.value.message.startswith('Job.batch "x" is invalid: [')


def test_updates_between_malformed_objects_raise_no_other_error() -> None:
    shapes: list[dict[str, Any]] = [
        {},
        {"spec": 3},
        {"spec": []},
        {"spec": {"containers": [3], "tolerations": {}, "affinity": []}},
    ]
    for kind in KINDS:
        for strange in shapes:
            obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "a"}, **strange}
            assert update(obj, copy.deepcopy(obj)) == []
