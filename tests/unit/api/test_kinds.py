"""The registry: every kind by each of its names."""

from __future__ import annotations

import pytest
from tests.unit.api.manifests import manifests

from kedge.api.kinds import KINDS, Kind, Registry
from kedge.errors import BadRequest, InvariantBroken, NotFound

BOAT = Kind(group="example.com", version="v1", kind="Boat", plural="boats", singular="boat", short_names=("bt",))


def test_there_is_a_manifest_of_every_kind_and_a_kind_for_every_manifest() -> None:
    found = [KINDS.of_api(each["apiVersion"], each["kind"]).key_kind for each in manifests()]
    assert sorted(found) == sorted(kind.key_kind for kind in KINDS)
    assert len(KINDS) == len(set(found))


@pytest.mark.parametrize(
    ("word", "key_kind"),
    [
        ("po", "Pod"), ("pods", "Pod"), ("pod", "Pod"), ("Pod", "Pod"), ("PODS", "Pod"), ("no", "Node"),
        ("ns", "Namespace"),
        ("deploy", "Deployment.apps"), ("deployments.apps", "Deployment.apps"),
        ("deployments.v1.apps", "Deployment.apps"),
        ("rs", "ReplicaSet.apps"), ("jobs", "Job.batch"), ("hpa", "HorizontalPodAutoscaler.autoscaling"),
        ("pdb", "PodDisruptionBudget.policy"), ("pc", "PriorityClass.scheduling.k8s.io"), ("cm", "ConfigMap"),
        ("svc", "Service"), ("quota", "ResourceQuota"), ("ev", "Event"), ("leases", "Lease.coordination.k8s.io"),
        ("crd", "CustomResourceDefinition.apiextensions.k8s.io"), ("resv", "Reservation.kedge.dev"),
        ("nalloc", "NodeAllocation.kedge.dev"), ("schedpol", "SchedulingPolicy.kedge.dev"),
        ("zq", "ZoneQuota.kedge.dev"), ("recwin", "RecordingWindow.kedge.dev"),
        ("rollouts", "Rollout.kedge.dev"), ("endpointslices", "EndpointSlice.discovery.k8s.io"),
    ],
)  # fmt: skip
def test_a_kind_is_found_by_each_of_its_names(word: str, key_kind: str) -> None:
    assert KINDS.resolve(word).key_kind == key_kind


def test_every_lookup_leads_to_the_same_kind() -> None:
    for kind in KINDS:
        assert KINDS.of_key_kind(kind.key_kind) is kind
        assert KINDS.of_api(kind.api_version, kind.kind) is kind
        assert KINDS.of_plural(kind.group, kind.version, kind.plural) is kind
        assert KINDS.resolve(kind.resource) is kind
        for short in kind.short_names:
            assert KINDS.resolve(short) is kind


def test_kinds_have_the_scope_and_subresources_kubernetes_gives_them() -> None:
    cluster = {kind.kind for kind in KINDS if not kind.namespaced}
    assert cluster == {
        "Namespace", "Node", "PriorityClass", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
        "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "CustomResourceDefinition", "NodeAllocation",
        "SchedulingPolicy", "RecordingWindow", "ClusterRole", "ClusterRoleBinding",
        "CertificateSigningRequest",
    }  # fmt: skip
    assert {kind.kind for kind in KINDS if kind.has("scale")} == {"Deployment", "ReplicaSet"}
    assert {"status", "binding", "eviction"} <= KINDS.resolve("po").subresources
    assert [kind.kind for kind in KINDS if kind.latest_only] == ["Lease"]
    assert KINDS.resolve("deploy").list_kind == "DeploymentList"


def test_an_unregistered_kind_is_rejected_with_a_hint() -> None:
    with pytest.raises(BadRequest, match="Deployment is in apps/v1"):
        KINDS.of_api("extensions/v1beta1", "Deployment")
    with pytest.raises(NotFound, match="use one that the server has"):
        KINDS.of_key_kind("Boat")
    with pytest.raises(NotFound, match="could not find the requested resource"):
        KINDS.of_plural("", "v1", "boats")
    with pytest.raises(NotFound, match='doesn\'t have a resource type "boats"'):
        KINDS.resolve("boats")


def test_an_extended_registry_does_not_change_the_first() -> None:
    more = KINDS.extended([BOAT])
    assert more.resolve("bt") is BOAT
    assert (BOAT.key_kind, BOAT.api_version, BOAT.resource) == (
        "Boat.example.com",
        "example.com/v1",
        "boats.example.com",
    )
    assert len(more) == len(KINDS) + 1
    with pytest.raises(NotFound):
        KINDS.resolve("bt")


def test_a_custom_kind_cannot_take_the_name_of_a_built_in_one() -> None:
    impostor = Kind(group="example.com", version="v1", kind="Pod", plural="pods", singular="pod")
    more = KINDS.extended([impostor])
    assert more.resolve("pods") is KINDS.resolve("pods")
    assert more.resolve("pods.example.com") is impostor
    with pytest.raises(InvariantBroken, match="registered twice"):
        Registry([BOAT, BOAT])
