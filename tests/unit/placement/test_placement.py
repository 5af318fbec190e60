"""Node-local placement, compared with plain and slow versions of the same rules."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.api.quantity import parse_quantity
from kedge.api.views import (
    NodeAllocationView,
    NodeView,
    PodView,
    ResourceQuotaView,
    Taint,
    Toleration,
    decode_as,
)
from kedge.api.views.base import ResourceList
from kedge.placement import predicates
from kedge.placement.ledger import ANY_ADDRESS, Claim, ClaimState, HostPort, Ledger, ledger_of
from kedge.placement.predicates import PREDICATES, demand_of, first_misfit, host_ports, tolerates
from kedge.placement.quota import in_scope, is_best_effort
from kedge.placement.reasons import Reason
from kedge.placement.resources import add, pod_limits, pod_requests, shortages, subtract
from kedge.placement.stored_ledger import StoredLedger

AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), st.integers(0, 50), max_size=3)


def pod_view(**spec: Any) -> PodView:
    spec.setdefault("containers", [{"name": "main", "image": "x"}])
    return decode_as(PodView, msgspec.json.encode({"metadata": {"name": "p", "namespace": "d"}, "spec": spec}))


def node_view(labels: dict[str, str] | None = None, *, status: dict[str, Any] | None = None, **spec: Any) -> NodeView:
    offered = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}
    return decode_as(
        NodeView,
        msgspec.json.encode(
            {"metadata": {"name": "n", "labels": labels or {}}, "spec": spec, "status": status or offered}
        ),
    )


def container(
    requests: dict[str, int], *, sidecar: bool = False, limits: dict[str, int] | None = None
) -> dict[str, Any]:
    made: dict[str, Any] = {"name": "c", "image": "x", "resources": {"requests": requests, "limits": limits or {}}}
    return {**made, "restartPolicy": "Always"} if sidecar else made


EMPTY = Ledger("n", "u")

# -- resources -------------------------------------------------------------------------------------


@given(
    st.lists(AMOUNTS, min_size=1, max_size=3),
    st.lists(st.tuples(AMOUNTS, st.booleans()), max_size=4),
    AMOUNTS,
)
def test_a_pod_requests_its_peak_over_all_phases(
    mains: list[dict[str, int]], inits: list[tuple[dict[str, int], bool]], overhead: dict[str, int]
) -> None:
    """Simulated: each init container in turn beside the sidecars before it, then all containers and sidecars."""
    pod = pod_view(
        containers=[container(m) for m in mains],
        initContainers=[container(amount, sidecar=sidecar) for amount, sidecar in inits],
        overhead=overhead,
    )
    moments: list[list[dict[str, int]]] = []
    running: list[dict[str, int]] = []
    for amount, sidecar in inits:
        moments.append([*running, amount])
        if sidecar:
            running.append(amount)
    moments.append([*running, *mains])
    scale = {"cpu": 1000, "memory": 1, "gpu": 1}
    for resource in ("cpu", "memory", "gpu"):
        most = max(sum(part.get(resource, 0) for part in moment) for moment in moments)
        assert pod_requests(pod).get(resource, 0) == (most + overhead.get(resource, 0)) * scale[resource]
    assert pod_requests(pod)["pods"] == 1


def test_overhead_counts_only_against_limits_that_exist() -> None:
    pod = pod_view(containers=[container({}, limits={"cpu": 1})], overhead={"cpu": "1", "memory": "5"})
    assert pod_limits(pod) == {"cpu": 2000}


@given(AMOUNTS, AMOUNTS)
def test_subtracting_what_was_added_changes_nothing(one: dict[str, int], other: dict[str, int]) -> None:
    back = subtract(add(one, other), other)
    assert {r: n for r, n in back.items() if n} == {r: n for r, n in one.items() if n}


@given(AMOUNTS, AMOUNTS, AMOUNTS)
def test_shortages_are_the_resources_that_would_exceed_the_available_amount(
    asked: dict[str, int], used: dict[str, int], offered: dict[str, int]
) -> None:
    expected = [r for r, n in sorted(asked.items()) if n and used.get(r, 0) + n > offered.get(r, 0)]
    assert shortages(asked, used, offered) == expected


# -- ledger ----------------------------------------------------------------------------------------

CLAIMS = st.builds(
    lambda requests, ports, state: Claim("d", "p", state, {r: n for r, n in requests.items() if n}, tuple(ports), "z"),
    AMOUNTS,
    st.lists(st.builds(HostPort, st.sampled_from(["TCP", "UDP"]), st.just(ANY_ADDRESS), st.integers(1, 9)), max_size=2),
    st.sampled_from(ClaimState),
)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.none() | CLAIMS), max_size=20))
def test_a_ledger_is_the_sum_of_its_claims(steps: list[tuple[str, Claim | None]]) -> None:
    ledger = EMPTY
    model: dict[str, Claim] = {}
    for uid, claim in steps:
        if claim is None:
            ledger = ledger.release(uid)
            model.pop(uid, None)
        else:
            ledger = ledger.charge(uid, claim)
            model[uid] = claim
    assert dict(ledger.claims) == model
    assert {r: n for r, n in ledger.allocated.items() if n} == {
        r: n for r, n in add(*(c.requests for c in model.values())).items() if n
    }


@given(
    st.lists(st.tuples(st.sampled_from(["a", 'quo"ted', "c"]), st.none() | CLAIMS, st.booleans()), max_size=20),
    st.booleans(),
)
def test_a_stored_ledger_encodes_the_plain_ledger(steps: list[tuple[str, Claim | None, bool]], handed: bool) -> None:
    ledger = EMPTY
    page = StoredLedger.blank("kedge.dev/v1", "NodeAllocation", {"name": "n", "labels": {"a": "b"}}, "u")
    for uid, claim, restarted in steps:
        ledger = ledger.release(uid) if claim is None else ledger.charge(uid, claim)
        page = page.release(uid) if claim is None else page.charge(uid, claim)
        if restarted:
            page = StoredLedger.read(page.value)
        assert ledger_of(decode_as(NodeAllocationView, page.value)) == ledger
        assert (page.allocated, dict(page.claims()), page.ports()) == (ledger.allocated, ledger.claims, ledger.ports())
        assert [each in page for each in ("a", "c")] == [each in ledger.claims for each in ("a", "c")]
    if handed:
        waiting = Ledger("n", "v")
        for uid, claim in ledger.claims.items():
            if claim.state is ClaimState.UNADMITTED:  # its pod names the node, whatever its incarnation
                waiting = waiting.charge(uid, claim)
        taken = ledger_of(decode_as(NodeAllocationView, page.handed_to("v").value))
        assert (taken.node, taken.node_uid, taken.claims) == ("n", "v", waiting.claims)
        assert {r: n for r, n in taken.allocated.items() if n} == {r: n for r, n in waiting.allocated.items() if n}
    assert decode_as(NodeAllocationView, page.value).labels == {"a": "b"}


UIDS = st.text(max_size=6) | st.sampled_from(
    ['quo"ted', "back\\slash", "line\nbreak", "ünïcode \u2028", '"},"status":{', "", "u"]
)


@given(
    st.lists(UIDS, min_size=2, max_size=4),
    CLAIMS.filter(lambda claim: claim.state is not ClaimState.UNADMITTED),
    st.booleans(),
)
def test_a_ledger_handed_to_a_new_incarnation_equals_a_blank_one(
    owners: list[str], claim: Claim, restarted: bool
) -> None:
    """For any uid: the old uid is cut out by its length, not by searching for it."""

    def begun_by(node_uid: str) -> StoredLedger:
        return StoredLedger.blank(
            "kedge.dev/v1", "NodeAllocation", {"name": "n", "labels": {"a": '","spec":{'}}, node_uid
        )

    page = begun_by(owners[0])
    for node_uid in owners[1:]:
        page = page.charge("pod", claim)
        page = (StoredLedger.read(page.value) if restarted else page).handed_to(node_uid)
        assert (page.value, page.node_uid, bool(page)) == (begun_by(node_uid).value, node_uid, False)
        assert decode_as(NodeAllocationView, page.value).spec.node_uid == node_uid


# -- predicates ------------------------------------------------------------------------------------


def test_taints_are_tolerated_by_kubernetes_rules() -> None:
    keys, values, effects = ("", "k", "j"), ("", "v", "w"), ("", "NoSchedule", "NoExecute")
    for key, value, effect, operator in product(keys, values, effects, ("", "Equal", "Exists")):
        if not key and operator != "Exists":
            continue  # validation rejects it
        toleration = Toleration(key=key, value=value, effect=effect, operator=operator)
        for taint_key, taint_value, taint_effect in product(keys[1:], values, effects[1:]):
            taint = Taint(key=taint_key, value=taint_value, effect=taint_effect)
            expected = (
                (not effect or effect == taint_effect)
                and (not key or key == taint_key)
                and (operator == "Exists" or value == taint_value)
            )
            assert tolerates(toleration, taint) == expected, (toleration, taint)


@given(
    st.lists(
        st.builds(
            HostPort, st.sampled_from(["TCP", "UDP"]), st.sampled_from([ANY_ADDRESS, "10.0.0.1"]), st.integers(1, 3)
        ),
        max_size=4,
    ),
    st.lists(
        st.builds(
            HostPort, st.sampled_from(["TCP", "UDP"]), st.sampled_from(["", "10.0.0.1", "10.0.0.2"]), st.integers(1, 3)
        ),
        max_size=3,
    ),
)
def test_a_port_is_taken_for_its_protocol_on_its_address(taken: list[HostPort], wanted: list[HostPort]) -> None:
    ports = [{"containerPort": 1, "hostPort": w.port, "protocol": w.protocol, "hostIP": w.host_ip} for w in wanted]
    pod = pod_view(containers=[{"name": "c", "image": "x", "ports": ports}])
    ledger = EMPTY.charge("u", Claim("d", "other", ClaimState.BOUND, {}, tuple(taken)))
    clash = any(
        (t.protocol, t.port) == (w.protocol, w.port)
        and (t.host_ip == w.host_ip or "" in (w.host_ip,) or t.host_ip == ANY_ADDRESS)
        for t in taken
        for w in wanted
    )
    misfit = first_misfit(pod, node_view(), ledger)
    assert (misfit is not None) == clash
    if misfit is not None:
        assert misfit.reason is Reason.PORT


def test_the_ports_of_a_sidecar_count_and_those_of_an_init_container_do_not() -> None:
    port = [{"containerPort": 1, "hostPort": 80}]
    init = {"name": "i", "image": "x", "ports": port}
    assert host_ports(pod_view(initContainers=[init])) == ()
    assert host_ports(pod_view(initContainers=[{**init, "restartPolicy": "Always"}])) == (
        HostPort("TCP", ANY_ADDRESS, 80),
    )


AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "gen", "operator": "Gt", "values": ["3"]}]},
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]},
            ]
        }
    }
}


@pytest.mark.parametrize(
    ("pod", "node", "reason"),
    [
        (pod_view(), node_view(), None),
        (pod_view(), node_view(unschedulable=True), Reason.NODE_CORDONED),
        (
            pod_view(tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]),
            node_view(unschedulable=True),
            None,
        ),
        (pod_view(nodeName="other"), node_view(), Reason.NODE_NAME),
        (pod_view(nodeSelector={"disk": "ssd"}), node_view({"disk": "hdd"}), Reason.NODE_SELECTOR),
        (pod_view(nodeSelector={"disk": "ssd"}), node_view({"disk": "ssd"}), None),
        (pod_view(affinity=AFFINITY), node_view({"gen": "3"}), Reason.NODE_AFFINITY),
        (pod_view(affinity=AFFINITY), node_view({"gen": "4"}), None),
        (pod_view(), node_view(taints=[{"key": "a", "effect": "PreferNoSchedule"}]), None),
        (pod_view(), node_view(taints=[{"key": "a", "effect": "NoExecute"}]), Reason.TAINT),
        (
            pod_view(),
            node_view(status={"conditions": [{"type": "Suspect", "status": "True"}], "allocatable": {"pods": "9"}}),
            Reason.NODE_SUSPECT,
        ),
        (pod_view(containers=[container({"example.dev/gpu": 1})]), node_view(), Reason.RESOURCE),
        (pod_view(), node_view(status={"capacity": {"cpu": "1", "pods": "0"}}), Reason.RESOURCE),
    ],
)
def test_each_predicate_has_its_reason(pod: PodView, node: NodeView, reason: Reason | None) -> None:
    misfit = first_misfit(pod, node, EMPTY)
    assert (misfit.reason if misfit else None) == reason


def test_a_pods_demand_is_its_own_when_the_id_of_a_spec_is_reused() -> None:
    """The demand is cached by the id of a spec, and another spec gets that id when the first one is freed."""
    for n in range(2 * predicates._ASKS_MAX + 10):
        pod = pod_view(
            containers=[container({"cpu": n + 1}) | {"ports": [{"containerPort": 80, "hostPort": n % 9 + 1}]}]
        )
        asked = demand_of(pod)
        assert (asked.requests, asked.ports) == (pod_requests(pod), host_ports(pod))
        assert asked.requests["cpu"] == 1000 * (n + 1)
        assert len(predicates._asks) <= predicates._ASKS_MAX
        del pod


def test_pods_that_share_a_spec_share_one_demand_which_a_claim_does_not_change() -> None:
    one = pod_view(containers=[container({"cpu": 2})])
    other = msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, name="q"))
    asked = demand_of(one)
    assert demand_of(other) is asked
    page = StoredLedger.blank("kedge.dev/v1", "NodeAllocation", {"name": "n"}, "u")
    for uid in ("a", "b", "a"):
        page = page.charge(uid, Claim("d", uid, ClaimState.BOUND, asked.requests, asked.ports, "z"))
    assert page.release("b").allocated == asked.requests == pod_requests(one)
    bound = msgspec.structs.replace(
        one, spec=msgspec.structs.replace(one.spec, overhead=ResourceList({"cpu": parse_quantity("1")}))
    )
    assert demand_of(bound).requests["cpu"] == 3000, "another spec, although derived from this one"


def test_the_first_misfit_is_the_first_in_the_published_order() -> None:
    pod = pod_view(nodeSelector={"disk": "ssd"}, containers=[container({"cpu": 99})])
    node = node_view(unschedulable=True)
    reasons = [misfit.reason for predicate in PREDICATES if (misfit := predicate(pod, node, EMPTY)) is not None]
    assert reasons == [Reason.NODE_CORDONED, Reason.NODE_SELECTOR, Reason.RESOURCE]
    first = first_misfit(pod, node, EMPTY)
    assert first is not None
    assert first.reason is Reason.NODE_CORDONED


def test_fractions_of_a_unit_are_rounded_up_once_for_the_pod() -> None:
    tenth = {"name": "c", "resources": {"requests": {"memory": "100m", "cpu": "100u"}}}
    pod = pod_view(containers=[tenth] * 10, initContainers=[{**tenth, "restartPolicy": "Always"}])
    assert pod_requests(pod) == {"memory": 2, "cpu": 2, "pods": 1}


def test_resources_of_the_pod_replace_those_of_its_containers() -> None:
    pod = pod_view(
        containers=[container({"cpu": 1, "gpu": 1}, limits={"cpu": 9, "gpu": 1})] * 2,
        resources={"requests": {"cpu": "3", "memory": "5"}, "limits": {"cpu": "4"}},
        overhead={"cpu": "1"},
    )
    assert pod_requests(pod) == {"cpu": 4000, "memory": 5, "gpu": 2, "pods": 1}
    assert pod_limits(pod) == {"cpu": 5000, "gpu": 2}


@pytest.mark.parametrize(
    ("spec", "best_effort"),
    [
        ({}, True),
        ({"containers": [container({"cpu": 0, "gpu": 1})]}, True),
        ({"containers": [container({}, limits={"memory": 1})]}, False),
        ({"initContainers": [container({"cpu": 1})]}, False),
        ({"resources": {"requests": {"cpu": "1"}}}, False),
        ({"containers": [container({"cpu": 1})], "resources": {"requests": {"cpu": "0"}}}, True),
    ],
)
def test_a_best_effort_pod_requests_and_limits_neither_cpu_nor_memory(spec: dict[str, Any], best_effort: bool) -> None:
    assert is_best_effort(pod_view(**spec)) is best_effort


NAMED = {"priorityClassName": "high"}
DEADLINE = {"activeDeadlineSeconds": 60}


def affinity_to(**term: Any) -> dict[str, Any]:
    required = [{"topologyKey": "zone", "labelSelector": {}, **term}]
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


@pytest.mark.parametrize(
    ("scope", "operator", "values", "spec", "covered"),
    [
        ("PriorityClass", "In", ["high", "low"], NAMED, True),
        ("PriorityClass", "In", ["low"], NAMED, False),
        ("PriorityClass", "In", ["low"], {}, False),
        ("PriorityClass", "NotIn", ["low"], NAMED, True),
        ("PriorityClass", "NotIn", ["high"], NAMED, False),
        ("PriorityClass", "NotIn", ["high"], {}, True),
        ("PriorityClass", "Exists", [], NAMED, True),
        ("PriorityClass", "Exists", [], {}, False),
        ("PriorityClass", "DoesNotExist", [], {}, True),
        ("PriorityClass", "DoesNotExist", [], NAMED, False),
        ("Terminating", "Exists", [], DEADLINE, True),
        ("NotTerminating", "Exists", [], DEADLINE, False),
        ("BestEffort", "Exists", [], {}, True),
        ("NotBestEffort", "Exists", [], {}, False),
        ("CrossNamespacePodAffinity", "Exists", [], {}, False),
        ("CrossNamespacePodAffinity", "Exists", [], affinity_to(), False),
        ("CrossNamespacePodAffinity", "Exists", [], affinity_to(namespaces=["other"]), True),
        ("CrossNamespacePodAffinity", "Exists", [], affinity_to(namespaceSelector={}), True),
    ],
)
def test_a_scope_selector_covers_pods_as_in_kubernetes(
    scope: str, operator: str, values: list[str], spec: dict[str, Any], covered: bool
) -> None:
    requirement = {"scopeName": scope, "operator": operator, "values": values}
    selected = {"spec": {"scopeSelector": {"matchExpressions": [requirement]}}}
    quota = decode_as(ResourceQuotaView, msgspec.json.encode(selected))
    assert in_scope(quota, pod_view(**spec)) is covered
    assert not in_scope(quota, None)
