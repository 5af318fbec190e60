"""The debug view of a workload: what it shows of the blocker and of the autoscaler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from tests.kit.records import BEGAN, decision, read

from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.keys import Key
from kedge.observe.readers.why import ClusterEvidence, debug_view
from kedge.observe.records import Decision, NearestNode, NodeAccount, SchedulingAttempt

QUOTA_FIRST = "0/3 nodes: 1 zone quota risk/zone-c, 2 topology spread zone"
HELD = {"type": "ScalingHeldBack", "status": "True", "reason": "ReplicasPending", "observedGeneration": 1}


def made(kind: str, name: str, revision: int, **parts: Any) -> Object:
    found = KINDS.of_key_kind(kind)
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", **parts.pop("metadata", {})}
    body = {"apiVersion": found.api_version, "kind": found.kind, "metadata": metadata, **parts}
    return Object(found, Key(kind, metadata["namespace"], name), encode_object(body), revision=revision, created=1)


def deployment(revision: int, *, ready: int, replicas: int = 8) -> Object:
    return made("Deployment.apps", "risk-api", revision, spec={"replicas": replicas}, status={"readyReplicas": ready})


def autoscaler(**condition: Any) -> Object:
    return made(
        "HorizontalPodAutoscaler.autoscaling",
        "scaler",
        30,
        spec={"scaleTargetRef": {"kind": "Deployment", "name": "risk-api"}, "maxReplicas": 12},
        status={"conditions": [{**HELD, **condition}]},
    )


def pending_pod(name: str = "replica-042") -> Object:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": "uid-risk-api", "controller": True}
    return made("Pod", name, 20, metadata={"ownerReferences": [owner]}, spec={"containers": []})


def attempt(reason: str, near: NearestNode | None, pod: str = "replica-042") -> Decision:
    account = NodeAccount(b"", (), {}, (), near)
    key = Key("Pod", "default", pod)
    return decision("s:1", controller="s", key=key, reason=reason, scheduling=SchedulingAttempt(account=account))


def lines(objects: Iterable[Object], decisions: Sequence[Decision] = ()) -> list[tuple[str, str]]:
    known = {each.key: each for each in objects}
    workload = known[Key("Deployment.apps", "default", "risk-api")]
    return list(debug_view(workload, ClusterEvidence(known, decisions, BEGAN + timedelta(seconds=60))))


def view(objects: Iterable[Object], decisions: Sequence[Decision] = ()) -> dict[str, str]:
    return dict(lines(objects, decisions))


@pytest.mark.parametrize(
    ("near", "reason"),
    [
        (
            NearestNode("node-c12", "zone quota risk/zone-c", 9),
            f"zone quota risk/zone-c, without which node-c12 would fit; {QUOTA_FIRST}",
        ),
        (NearestNode("node-t1", "taint control", 9), QUOTA_FIRST),
        (None, QUOTA_FIRST),
    ],
)
def test_the_decisive_blocker_is_named_with_the_node_that_would_fit_without_it(
    near: NearestNode | None, reason: str
) -> None:
    found = view([deployment(9, ready=6), pending_pod()], [attempt(QUOTA_FIRST, near)])
    assert found["last scheduling reason"] == reason


@pytest.mark.parametrize("other", [QUOTA_FIRST, "0/3 nodes: 3 cpu"])
def test_a_reason_is_shown_once_for_replicas_that_share_it(other: str) -> None:
    reasons = {"replica-042": QUOTA_FIRST, "replica-043": other}
    found = lines(
        [deployment(9, ready=6), *map(pending_pod, reasons)],
        [attempt(reason, None, name) for name, reason in reasons.items()],
    )
    told = [value for name, value in found if name in ("pending replica", "last scheduling reason")]
    shared = ["replica-043, for the same reason"] if other == QUOTA_FIRST else ["replica-043", other]
    assert told == ["replica-042", QUOTA_FIRST, *shared]


def test_the_autoscaler_has_the_readiness_that_its_last_decision_read() -> None:
    """The status has moved on since: the view shows the version behind the decision."""
    scaler = autoscaler(message="12 are desired")
    old, last = (
        decision(f"a:{n}", [read(deployment(n, ready=ready), cache="Deployment.apps")], key=scaler.key, uid=scaler.uid)
        for n, ready in ((3, 5), (7, 6))
    )
    found = view([deployment(9, ready=8), scaler], [old, last])
    assert found["autoscaler reason"] == (
        "low ready replicas, 6 / 8 at revision 7; holds back:"
        " ScalingHeldBack=True (ReplicasPending), observedGeneration=1: 12 are desired"
    )


def test_an_autoscaler_that_is_not_held_back_is_shown_as_such() -> None:
    found = view([deployment(9, ready=8), autoscaler(status="False", reason="NotHeldBack")])
    assert found["autoscaler reason"].startswith("enough ready replicas, 8 / 8 at revision 9; does not hold back:")


def test_only_the_quotas_of_the_workload_s_tenant_are_shown() -> None:
    tenants = {"default": ("risk", 12), "payments": ("payments", 14)}
    quotas = [
        made("ZoneQuota.kedge.dev", name, revision, metadata={"namespace": space})
        for space, (name, revision) in tenants.items()
    ]
    assert view([deployment(9, ready=6), *quotas])["quota latest revision"] == "ZoneQuota risk@12"
    assert view([deployment(9, ready=6), quotas[1]])["quota latest revision"] == "none recorded"
