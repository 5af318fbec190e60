"""Every controller makes the writes that it declares, and no others: its role is derived from the declaration.

The runtime refuses other writes, so each test that runs a controller would find one that is missing. The test here
finds declarations that are not needed.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.kit.cluster import assert_holds, run_without_faults

from kedge.api.kinds import KINDS
from kedge.cli.controller_identities import controller_specs
from kedge.controllers import CONTROLLERS
from kedge.sim.kernel import Simulation
from kedge.sim.standard import run_standard

TESTS = Path(__file__).parent.parent

Right = tuple[str, str, str, str]
"""Controller, verb, kind and subresource."""

ELSEWHERE: dict[Right, str] = {
    ("autoscaler", "patch", "ReplicaSet.apps", ""): (
        "sim/test_autoscaler.py::test_a_replica_set_without_a_deployment_is_scaled_too"
    ),
    ("binding-repair", "delete", "Pod", ""): (
        "sim/test_repair.py::test_orphans_are_repaired_and_pods_that_may_run_keep_their_claims"
    ),
    ("binding-repair", "patch", "Pod", "status"): (
        "sim/test_repair.py::test_orphans_are_repaired_and_pods_that_may_run_keep_their_claims"
    ),
    ("deployment", "delete", "ReplicaSet.apps", ""): (
        "sim/test_workload_lifecycle.py::test_old_replica_sets_beyond_the_history_limit_are_deleted"
    ),
    ("endpoints", "delete", "EndpointSlice.discovery.k8s.io", ""): (
        "sim/test_budgets.py::test_evictions_never_break_a_budget_and_services_list_the_ready_pods"
    ),
    ("garbage", "create", "Event", ""): (
        "sim/test_garbage.py::test_dependents_are_deleted_with_their_last_owner_and_no_sooner"
    ),
    ("garbage", "patch", "*", ""): ("sim/test_garbage_evidence.py::test_a_child_that_no_cache_has_is_orphaned_too"),
    ("job", "delete", "Job.batch", ""): (
        "sim/test_workload_lifecycle.py::"
        "test_a_finished_job_is_deleted_after_its_time_to_live_and_its_pods_have_no_finalizer"
    ),
    ("job", "delete", "Pod", ""): (
        "sim/test_workload_lifecycle.py::test_a_suspended_job_stops_and_continues_when_resumed"
    ),
    ("job", "patch", "Pod", "status"): (
        "sim/test_workload_lifecycle.py::test_an_at_most_one_pod_of_a_job_waits_for_the_end_of_the_pod_before_it"
    ),
    ("ledger-repair", "create", "NodeAllocation.kedge.dev", "ended"): (
        "sim/test_repair.py::test_orphans_are_repaired_and_pods_that_may_run_keep_their_claims"
    ),
    ("namespace", "delete", "*", ""): ("sim/test_garbage.py::test_a_deleted_namespace_is_emptied_and_others_stay"),
    ("namespace", "patch", "Namespace", "finalize"): (
        "sim/test_garbage.py::test_a_deleted_namespace_is_emptied_and_others_stay"
    ),
    ("namespace", "patch", "Namespace", "status"): (
        "sim/test_garbage.py::test_a_deleted_namespace_is_emptied_and_others_stay"
    ),
    ("node-lifecycle", "create", "Pod", "eviction"): (
        "sim/test_nodes.py::test_a_drain_empties_a_node_as_budgets_allow"
    ),
    ("node-lifecycle", "delete", "Pod", ""): (
        "sim/test_nodes.py::test_the_pods_of_a_failed_node_are_replaced_once_and_every_decision_rechecks"
    ),
    ("quota", "patch", "ZoneQuota.kedge.dev", "status"): (
        "sim/test_repair.py::test_orphans_are_repaired_and_pods_that_may_run_keep_their_claims"
    ),
    ("replicaset", "patch", "Pod", "status"): (
        "sim/test_workload_lifecycle.py::test_a_lost_replica_is_released_and_replaced_once_by_one_that_names_it"
    ),
    ("reservation-repair", "delete", "Reservation.kedge.dev", ""): (
        "sim/test_repair.py::test_orphans_are_repaired_and_pods_that_may_run_keep_their_claims"
    ),
    ("reservation-repair", "patch", "Reservation.kedge.dev", "status"): (
        "sim/test_holds.py::test_a_controller_shows_a_hold_and_acts_only_when_it_has_ended"
    ),
    ("rollout", "patch", "Deployment.apps", ""): (
        "sim/test_rollout.py::test_a_template_is_rolled_out_in_stages_or_back_and_enough_serve_throughout"
    ),
    ("rollout", "patch", "Rollout.kedge.dev", "status"): (
        "sim/test_rollout.py::test_a_template_is_rolled_out_in_stages_or_back_and_enough_serve_throughout"
    ),
    ("rollout", "patch", "SchedulingPolicy.kedge.dev", ""): (
        "sim/test_rollout.py::test_a_policy_that_leaves_pods_without_a_node_is_rolled_back"
    ),
}
"""Writes that the standard run does not make, each with the test that makes it."""


def test_every_declared_write_is_made_by_a_test() -> None:
    async def program(sim: Simulation) -> list[Right]:
        world = await run_standard(sim)
        recorders = [each.context.recorder for each in world.cluster.processes]
        rows = [row for recorder in recorders for row in recorder.counts_record("").rows]
        return sorted({right for row in rows if (right := right_of(row.controller, row.verb, row.kind)) is not None})

    outcome = run_without_faults(program, seed=0)
    assert_holds(outcome)
    made = set(outcome.result)
    declared = {(spec.name, *each.place) for spec in controller_specs() for each in spec.writes or ()}
    wide = {right for right in declared if right[2] == "*"}
    made = {
        next((each for each in wide if (each[0], each[1], each[3]) == (c, v, p)), (c, v, k, p)) for c, v, k, p in made
    }
    assert made <= declared, "the runtime refuses these"
    assert declared - made == set(ELSEWHERE), "a right that no test needs is taken out of the spec"


def right_of(controller: str, verb: str, kind: str) -> Right | None:
    """The right behind a row of counted calls; None for reads and for other components."""
    if controller not in CONTROLLERS:
        return None
    word, _, part = verb.partition(" ")
    if word in ("create", "ensure"):
        return controller, "create", kind, ""
    if verb == "evict":
        return controller, "create", kind, "eviction"
    return (controller, word, kind, part) if word in ("patch", "delete") else None


def test_the_tests_of_the_other_writes_exist() -> None:
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert re.search(rf"def {name}\(", (TESTS / file).read_text()), place


def test_every_controller_declares_its_writes_and_the_kinds_exist() -> None:
    assert [spec.name for spec in controller_specs()] == list(CONTROLLERS)
    for spec in controller_specs():
        assert spec.writes is not None, spec.name
        for each in spec.writes:
            assert each.kind is None or each.kind in list(KINDS), each
            if each.subresource and each.kind is not None and each.subresource != "ended":
                assert each.subresource in {*each.kind.subresources, "finalize"}, each
