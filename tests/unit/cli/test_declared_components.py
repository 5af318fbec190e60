"""Declared components: their writes follow from the rights of their roles, and from nothing else."""

from __future__ import annotations

from kedge.api.kinds import KINDS
from kedge.api.wellknown import DEPLOYMENT_KIND, LEASE_KIND, NODE_ALLOCATION_KIND, NODE_KIND, POD_KIND
from kedge.cli.declared_components import declared_components, of_spec
from kedge.observe.readers.coupling import DeclaredComponent
from kedge.runtime import ControllerSpec, writes


def component(name: str) -> DeclaredComponent:
    return next(each for each in declared_components() if each.name == name)


def test_a_controller_writes_what_its_spec_declares_whatever_it_owns() -> None:
    assert component("autoscaler").writes == {
        ("Deployment.apps", "*"),
        ("ReplicaSet.apps", "*"),
        ("HorizontalPodAutoscaler.autoscaling", "status"),
    }
    assert (DEPLOYMENT_KIND, "*") in component("rollout").writes
    pods, nodes = KINDS.of_key_kind(POD_KIND), KINDS.of_key_kind(NODE_KIND)
    spec = ControllerSpec(kind=nodes, owns=(pods,), writes=writes("create", pods, "eviction"))
    assert of_spec(spec).writes == {(POD_KIND, "existence")}


def test_rights_about_every_kind_are_writes_of_every_kind_besides_its_status() -> None:
    garbage, namespace = component("garbage"), component("namespace")
    assert {(DEPLOYMENT_KIND, "*"), (DEPLOYMENT_KIND, "existence"), (LEASE_KIND, "existence")} <= garbage.writes
    assert (DEPLOYMENT_KIND, "existence") in namespace.writes
    assert (DEPLOYMENT_KIND, "*") not in namespace.writes
    assert {each for each in garbage.writes if each[1] == "status"} == set()
    assert {each for each in namespace.writes if each[1] != "existence"} == {
        ("Namespace", "status"),
        ("Namespace", "spec"),
    }


def test_the_scheduler_and_the_agents_write_what_their_roles_allow() -> None:
    requests = ("CertificateSigningRequest.certificates.k8s.io", "existence")
    assert component("default-scheduler").writes == {
        requests,
        (POD_KIND, "existence"),
        (POD_KIND, "spec.nodeName"),
        (POD_KIND, "status"),
        ("Reservation.kedge.dev", "existence"),
        ("SchedulingPolicy.kedge.dev", "status"),
    }
    agents = component("agents")
    assert agents.writes == {
        requests,
        *((NODE_KIND, field) for field in ("existence", "*", "status")),
        *((LEASE_KIND, field) for field in ("existence", "*")),
        *((POD_KIND, field) for field in ("existence", "status")),
        (NODE_ALLOCATION_KIND, "status"),
    }
    assert {POD_KIND, NODE_KIND, "Service", "Secret"} <= agents.reads
    assert POD_KIND in agents.watches
    assert "Secret" not in agents.watches
