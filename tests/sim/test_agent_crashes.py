"""An agent that crashes at every possible point: before a request, after it, and before it reported an action.

Its only notes are its driver's processes; its reports are in the API. So it resumes from both and repeats lost reports,
and the visible result equals that of a run without crashes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from tests.kit.agent import CALM, bind, claims, until
from tests.kit.agent_crashes import CrashPlan, crash_at_notes, crash_at_requests
from tests.objects import pod, pod_key

from kedge.api.requests import DeleteOptions
from kedge.api.wellknown import SIM_EXIT_CODE_LABEL, SIM_RUN_S_LABEL
from kedge.sim.cluster import Cluster, Commit
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import NO_FAULTS, Simulation, run

NOTES = ("start", "stop", "forget")


class ReportedPhases:
    """By pod: the reported phases in order, and the reported start times."""

    def __init__(self, sim: Simulation, cluster: Cluster) -> None:
        self._cluster = cluster
        self.statuses: dict[str, list[tuple[Any, ...]]] = {}
        self.begun: dict[str, set[Any]] = {}
        sim.check_always(self)

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        for key in commit.keys:
            found = self._cluster.find(key) if key.kind == "Pod" else None
            if found is None:
                continue
            status = found.view.status
            ready = any(each.type == "Ready" and each.status == "True" for each in status.conditions)
            codes = [each.state.terminated.exit_code for each in status.container_statuses if each.state.terminated]
            status_line = (status.phase, ready, *codes, *(each.restart_count for each in status.container_statuses))
            reported = self.statuses.setdefault(key.name, [])
            if not reported or reported[-1] != status_line:
                reported.append(status_line)
            if status.start_time is not None:
                self.begun.setdefault(key.name, set()).add(status.start_time)
        yield from ()


async def agent_run(sim: Simulation, crash_plan: CrashPlan) -> None:
    """Pods that serve, end, fail and are force-deleted, and an agent that crashes."""
    cluster = Cluster(sim, limits=CALM)
    await cluster.set_up()
    Judge(cluster)
    crash_at_requests(cluster, crash_plan)
    node = cluster.add_node("node-a")
    crash_at_notes(node, crash_plan, NOTES)
    reports = ReportedPhases(sim, cluster)
    await until(lambda: cluster.find(node.key) is not None)
    for name, run_s, code, policy in (
        ("serves", "", "0", "Always"),
        ("ends", "6", "0", "Never"),
        ("fails", "6", "3", "Never"),
        ("forced", "", "0", "Always"),
    ):
        body = pod(name, restartPolicy=policy)
        if run_s:
            body["metadata"]["labels"] |= {SIM_RUN_S_LABEL: run_s, SIM_EXIT_CODE_LABEL: code}
        await bind(cluster, body)
    await asyncio.sleep(20)
    await cluster.authority.delete(pod_key("serves"))
    await cluster.authority.delete(pod_key("forced"), DeleteOptions(grace_s=0))
    await asyncio.sleep(40)
    check(sim, cluster, reports)
    before = cluster.versions(but=("Lease.coordination.k8s.io",))
    await asyncio.sleep(3 * CALM.agent_audit_s)
    if cluster.versions(but=("Lease.coordination.k8s.io",)) != before:
        sim.violate("then silence", "an agent that has reported everything keeps writing")


def check(sim: Simulation, cluster: Cluster, reports: ReportedPhases) -> None:
    """The visible result: objects, reports, and processes."""
    started = cluster.nodes["node-a"].driver.started
    if len(set(started)) != len(started) or any(each.attempt for each in started):
        sim.violate("started once", f"{started}")
    there = {each.key.name: each.view.status.phase for each in cluster.all("Pod")}
    if there != {"ends": "Succeeded", "fails": "Failed"}:
        sim.violate("ended as their processes did", f"{there}")
    if claims(cluster):
        sim.violate("nothing is held", f"{claims(cluster)}")
    codes = {name: statuses[-1][2] for name, statuses in reports.statuses.items() if name in there}
    if codes != {"ends": 0, "fails": 3}:
        sim.violate("exit codes are reported", f"{codes}")
    for name, statuses in reports.statuses.items():
        if len(set(statuses)) != len(statuses):
            sim.violate("no report is reversed", f"{name}: {statuses}")
        if len(reports.begun.get(name, ())) > 1:
            sim.violate("no report is reversed", f"{name} began at {reports.begun[name]}")


def check_run(crash_plan: CrashPlan) -> None:
    outcome = run(lambda sim: agent_run(sim, crash_plan), 1, faults=NO_FAULTS)
    where = (
        f"{crash_plan.acts[crash_plan.crashes_at]}, {'before' if crash_plan.before else 'after'}"
        if crash_plan.crashes
        else "no crash"
    )
    assert outcome.violation is None, f"{where}: {outcome.violation}\n{outcome.timeline()[-3000:]}"


def test_an_agent_that_crashes_at_any_request_or_note_has_the_same_visible_result() -> None:
    calm = CrashPlan()
    check_run(calm)
    did = {act.what for act in calm.acts}
    assert did >= {"create", "patch", "delete", "confirm_ended", *NOTES}, did
    for number in range(len(calm.acts)):
        for before in (True, False):
            crash_plan = CrashPlan(number, before)
            check_run(crash_plan)
            assert crash_plan.crashes == 1
