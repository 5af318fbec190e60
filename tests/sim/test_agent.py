"""Agents and machines under crashes, lost replies, reboots and cut links, checked by the invariants."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from tests.kit.agent import CALM, LEDGER, NODE, bind, claims, is_ready, live, new_cluster, until, without_faults
from tests.objects import pod, pod_key

from kedge.api.conditions import find_condition
from kedge.api.requests import DeleteOptions
from kedge.api.wellknown import AT_MOST_ONE
from kedge.controllers.node.controller import lifecycle_controller
from kedge.keys import Key
from kedge.limits import Limits
from kedge.sim.cluster import Cluster, Commit, Component, ProcessContext
from kedge.sim.kernel import NO_FAULTS, FixedRates, Simulation, run


def test_a_bound_pod_runs_becomes_ready_and_leaves_no_claim_when_it_is_deleted() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        await bind(cluster, pod())
        await until(lambda: is_ready(cluster))
        assert (live(cluster), claims(cluster)) == (["web-0"], ["web-0"])
        await cluster.authority.delete(pod_key())
        await until(lambda: cluster.find(pod_key()) is None)
        assert (live(cluster), claims(cluster)) == ([], [])

    without_faults(program)


def test_a_restarted_agent_continues_with_the_running_processes() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        await bind(cluster, pod())
        await until(lambda: is_ready(cluster))
        node = cluster.nodes["node-a"]
        node.host.crash()
        await asyncio.sleep(5)
        assert live(cluster) == ["web-0"]
        node.host.restart()
        await asyncio.sleep(60)
        assert len(node.driver.started) == 1
        assert is_ready(cluster)

    without_faults(program)


def test_a_pod_removed_while_the_agent_was_down_is_stopped_and_confirmed_after_the_restart() -> None:
    """Bug 25: a pod is force-deleted while its process runs. Its claim is not freed before the process has ended."""

    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        await bind(cluster, pod())
        await until(lambda: is_ready(cluster))
        node = cluster.nodes["node-a"]
        node.host.crash()
        await cluster.authority.delete(pod_key(), DeleteOptions(grace_s=0))
        await asyncio.sleep(30)
        assert (live(cluster), claims(cluster)) == (["web-0"], ["web-0"])
        node.host.restart()
        await until(lambda: not live(cluster) and not claims(cluster))

    without_faults(program)


def test_the_claim_of_a_pod_that_was_gone_before_its_agent_saw_it_is_released() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        node = cluster.nodes["node-a"]
        node.host.crash()
        await bind(cluster, pod())
        await cluster.authority.delete(pod_key(), DeleteOptions(grace_s=0))
        assert claims(cluster) == ["web-0"]
        node.host.restart()
        await until(lambda: not claims(cluster), within_s=3 * CALM.agent_audit_s)
        assert node.driver.started == []

    without_faults(program)


def test_a_pod_that_was_removed_while_its_image_was_pulled_is_never_started() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        sim.faults.script("pull of image", "slow")
        await bind(cluster, pod())
        # Its deletion event arrives only after the pull is done.
        node = cluster.nodes["node-a"]
        await until(lambda: cluster.find(pod_key()).view.status.phase == "Pending")  # type: ignore[union-attr]
        async with sim.faults.partition(cluster.servers[0], [node.host], both_ways=False):
            await cluster.authority.delete(pod_key(), DeleteOptions(grace_s=0))
            await asyncio.sleep(1)
        await asyncio.sleep(60)
        assert node.driver.started == []

    without_faults(program)


def test_a_new_incarnation_of_a_node_runs_no_process_of_the_former_one() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        await bind(cluster, pod())
        await until(lambda: is_ready(cluster))
        first = cluster.find(Key("Node", "", "node-a"))
        await cluster.authority.delete(Key("Node", "", "node-a"))

        def is_another() -> bool:
            node = cluster.find(Key("Node", "", "node-a"))
            if node is not None and first is not None and node.uid != first.uid:
                assert live(cluster) == []
                return True
            return False

        await until(is_another)
        await until(lambda: cluster.find(pod_key()).view.status.reason == "NodeReplaced")  # type: ignore[union-attr]
        assert cluster.find(pod_key()).view.status.phase == "Failed"  # type: ignore[union-attr]
        assert len(cluster.nodes["node-a"].driver.started) == 1

    without_faults(program)


def test_without_contact_an_agent_keeps_its_pods_running_except_at_most_one_pods() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        once = pod("once-0")
        once["metadata"]["annotations"] = {AT_MOST_ONE: "true"}
        await bind(cluster, pod())
        await bind(cluster, once)
        await until(lambda: is_ready(cluster) and is_ready(cluster, "once-0"))
        await asyncio.sleep(60)  # kept alive by renewals
        assert sorted(live(cluster)) == ["once-0", "web-0"]
        async with sim.faults.partition(cluster.nodes["node-a"].host, cluster.servers):
            await asyncio.sleep(CALM.agent_contact_s + 1)
            assert live(cluster) == ["web-0"]
            await asyncio.sleep(CALM.node_lost_s)
            assert live(cluster) == ["web-0"]
        await until(lambda: sorted(live(cluster)) == ["once-0", "web-0"])

    without_faults(program)


def test_an_at_most_one_pod_stops_even_if_its_agent_is_gone() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        once = pod("once-0")
        once["metadata"]["annotations"] = {AT_MOST_ONE: "true"}
        await bind(cluster, once)
        await until(lambda: is_ready(cluster, "once-0"))
        cluster.nodes["node-a"].host.crash()
        await asyncio.sleep(CALM.agent_contact_s + 1)
        assert live(cluster) == []

    without_faults(program)


def test_an_at_most_one_pod_is_stopped_well_before_its_node_may_be_lost() -> None:
    limits = Limits()
    assert limits.agent_contact_s * 1.1 < limits.node_lost_s / 1.1


def test_a_machine_that_lost_power_starts_its_pods_again() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        await bind(cluster, pod())
        await until(lambda: is_ready(cluster))
        cluster.nodes["node-a"].power_off()
        await asyncio.sleep(5)
        assert live(cluster) == []
        cluster.nodes["node-a"].power_on()
        await until(lambda: live(cluster) == ["web-0"])
        await until(lambda: cluster.find(pod_key()).view.status.container_statuses[0].restart_count == 1)  # type: ignore[union-attr]

    without_faults(program)


def test_a_process_that_fails_its_liveness_probe_is_restarted() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        body = pod()
        probe = {"exec": {"command": ["true"]}, "periodSeconds": 5, "failureThreshold": 2}
        body["spec"]["containers"][0] |= {"livenessProbe": probe, "readinessProbe": {**probe, "failureThreshold": 1}}
        await bind(cluster, body)
        await until(lambda: is_ready(cluster))
        for nth in range(1, 9):
            sim.faults.script("probe", "fail", nth=nth)
        await until(lambda: not is_ready(cluster))
        await until(lambda: len(cluster.nodes["node-a"].driver.started) == 2)
        await until(lambda: is_ready(cluster))

    without_faults(program)


def run_lifecycle(cluster: Cluster) -> None:
    def manager(context: ProcessContext) -> Component:
        return lifecycle_controller(context.runtime())

    cluster.boot("manager", [manager])


def test_a_node_that_is_back_in_contact_sends_a_heartbeat_before_any_pod_status() -> None:
    """Otherwise the node lifecycle, without a heartbeat, overwrites the status at once, and the two write in a loop."""

    class ReadyChanges:
        """Every change of the pod's readiness, and the age of the heartbeat at that time."""

        def __init__(self, cluster: Cluster) -> None:
            self.cluster = cluster
            self.renewed_s = 0.0
            self.reported: list[tuple[str, float]] = []

        def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
            now_s = self.cluster.sim.now_s
            for key in commit.keys:
                if (key.kind, key.name) == ("Lease.coordination.k8s.io", "node-a"):
                    self.renewed_s = now_s
                elif key == pod_key() and (found := self.cluster.find(key)) is not None:
                    ready = find_condition(found.view.status.conditions, "Ready")
                    if ready is not None and (not self.reported or self.reported[-1][0] != ready.status):
                        self.reported.append((ready.status, now_s - self.renewed_s))
            yield from ()

    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a", "node-b")
        run_lifecycle(cluster)
        await bind(cluster, pod())
        await until(lambda: is_ready(cluster))
        written = ReadyChanges(cluster)
        sim.check_always(written)
        cut = sim.network.partition([cluster.nodes["node-a"].host], cluster.servers)
        await asyncio.sleep(sim.choose_int("for", 45, 75))
        cut.heal()
        await until(lambda: is_ready(cluster))
        await asyncio.sleep(60)  # the backoff of a watch that failed for long is long
        assert [status for status, _ in written.reported] == ["Unknown", "True"], written.reported
        assert written.reported[-1][1] < CALM.node_suspect_s

    for seed in range(12):
        outcome = run(program, seed, faults=NO_FAULTS)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-1500:]}"


def test_a_restarted_agent_starts_no_at_most_one_pod_before_its_first_heartbeat() -> None:
    """Its node may be lost at any moment and the pod replaced: the agent does not know for how long it was down."""

    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        once = pod("once-0")
        once["metadata"]["annotations"] = {AT_MOST_ONE: "true"}
        await bind(cluster, once)
        await until(lambda: is_ready(cluster, "once-0"))
        node = cluster.nodes["node-a"]
        node.power_off()
        await asyncio.sleep(100)
        for _ in range(30):  # only renewals of an agent are updates
            sim.faults.script("request of api.update", "lose", where=lambda way: way.startswith("node-a"))
        node.power_on()
        await asyncio.sleep(20)
        assert len(node.driver.started) == 1
        sim.faults.scripts.clear()
        await until(lambda: live(cluster) == ["once-0"])

    without_faults(program)


def test_a_node_that_was_removed_before_its_agent_first_listed_is_registered_again() -> None:
    async def program(sim: Simulation) -> None:
        removed: list[str] = []

        def remove_at_once(commit: Commit) -> Iterator[tuple[str, str]]:
            if NODE in commit.keys and not removed and (found := cluster.find(NODE)) is not None:
                removed.append(found.uid)
                cluster.store_host.spawn(cluster.authority.delete(NODE), name="removal")
            yield from ()

        cluster = Cluster(sim, servers=2, limits=CALM)
        await cluster.set_up()
        sim.check_always(remove_at_once)
        cluster.add_node("node-a")
        await until(lambda: bool(removed) and cluster.find(NODE) is None)
        await until(lambda: (found := cluster.find(NODE)) is not None and found.uid != removed[0])

    without_faults(program)


def test_a_failed_verification_of_the_node_is_repeated_soon() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a", limits=replace(CALM, agent_audit_s=3600.0))  # it reads, too
        await asyncio.sleep(2 * CALM.node_renew_s)
        for _ in range(CALM.client_attempts_max):
            sim.faults.script("request of api.get", "lose", where=lambda way: way.startswith("node-a"))
        await cluster.authority.delete(NODE)
        await until(lambda: all(script.seen >= script.nth for script in sim.faults.scripts), within_s=60)
        await until(lambda: cluster.find(NODE) is not None, within_s=CALM.node_renew_s * 0.9)

    without_faults(program)


def test_an_agent_corrects_its_node_status_at_most_once_per_heartbeat() -> None:
    async def program(sim: Simulation) -> None:
        reported: list[float] = []

        def mark_unknown(commit: Commit) -> Iterator[tuple[str, str]]:
            if NODE in commit.keys and (found := cluster.find(NODE)) is not None:
                ready = find_condition(found.view.status.conditions, "Ready")
                if ready is not None and ready.status == "True":
                    reported.append(sim.now_s)
                    unknown = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2030-01-01T00:00:00Z"}
                    cluster.store_host.spawn(
                        cluster.authority.patch(NODE, {"status": {"conditions": [unknown]}}, subresource="status"),
                        name="a lifecycle without lease events",
                    )
            yield from ()

        cluster = await new_cluster(sim, "node-a")
        sim.check_always(mark_unknown)
        await cluster.authority.patch(NODE, {"metadata": {"labels": {"a": "b"}}})
        await asyncio.sleep(10 * CALM.node_renew_s)
        assert 5 <= len(reported) <= 13, f"{len(reported)} times in ten beats"

    without_faults(program)


def test_an_agent_corrects_its_pod_status_at_most_once_per_heartbeat() -> None:
    async def program(sim: Simulation) -> None:
        reported: list[float] = []

        def mark_unknown(commit: Commit) -> Iterator[tuple[str, str]]:
            if pod_key("web-0") in commit.keys and is_ready(cluster, "web-0"):
                reported.append(sim.now_s)
                found = cluster.find(pod_key("web-0"))
                assert found is not None
                conditions = [
                    {**each, "status": "Unknown"} if each["type"] == "Ready" else each
                    for each in found.edit()["status"]["conditions"]
                ]
                write = cluster.authority.patch(
                    pod_key("web-0"), {"status": {"conditions": conditions}}, subresource="status"
                )
                cluster.store_host.spawn(write, name="a lifecycle without lease events")
            yield from ()

        cluster = await new_cluster(sim, "node-a")
        await bind(cluster, pod("web-0"))
        await until(lambda: is_ready(cluster, "web-0"))
        sim.check_always(mark_unknown)
        await cluster.authority.patch(pod_key("web-0"), {"metadata": {"labels": {"a": "b"}}})
        await asyncio.sleep(10 * CALM.node_renew_s)
        assert 5 <= len(reported) <= 13, f"{len(reported)} times in ten beats"

    without_faults(program)


async def under_every_fault(sim: Simulation) -> None:
    """Pods are created, crash and are deleted, some by force, on machines that reboot, while links and servers fail."""
    cluster = await new_cluster(sim, "node-a", "node-b", "node-c", hostile=True)
    names = [f"web-{n}" for n in range(8)]
    for n, name in enumerate(names):
        await bind(cluster, pod(name), f"node-{'abc'[n % 3]}")
    await asyncio.sleep(20)
    for name in names[:4]:
        grace_s = sim.choose("by force", (None, 0))
        await cluster.authority.delete(pod_key(name), DeleteOptions(grace_s=grace_s))
    await asyncio.sleep(10)
    if sim.choose("a machine loses power", (False, True)):
        cluster.nodes["node-b"].power_off()
        await asyncio.sleep(10)
        cluster.nodes["node-b"].power_on()
    if sim.choose("a node is removed", (False, True)):
        await cluster.authority.delete(Key("Node", "", "node-c"))
        sim.sometimes("a node was registered again")
    await asyncio.sleep(30)
    sim.heal()
    every = cluster.nodes.values()

    def is_settled() -> bool:
        if len(cluster.all("Node")) < len(every):
            return False  # its agent has not noticed yet; it will stop its processes before it registers again
        pods = {each.uid: each.view for each in cluster.all("Pod")}
        if any(view.terminating or (not view.finished and not is_ready(cluster, view.name)) for view in pods.values()):
            return False
        wanted = {uid for uid, view in pods.items() if not view.finished}
        held = {uid for each in cluster.all(LEDGER.kind) for uid in each.view.status.entries}
        running = [process.identity.pod_uid for node in every for process in node.driver.live()]
        return sorted(running) == sorted(wanted) and held == wanted

    sim.check_eventually(is_settled)
    await sim.converge(within_s=600, stays_s=10)
    sim.sometimes("a process was restarted", any(i.attempt for node in every for i in node.driver.started))


def test_under_all_faults_processes_follow_bindings_and_claims_follow_processes() -> None:
    marks: dict[str, int] = {}
    rates = {"stop of process: zombie": 0.2, "run of process: crash": 0.2, "pull of image: slow": 0.2}
    for seed in range(24):
        outcome = run(under_every_fault, seed, faults=FixedRates(rates) if seed % 4 == 0 else None)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        for mark, count in outcome.marks.items():
            marks[mark] = marks.get(mark, 0) + count
    assert set(marks) == {"a node was registered again", "a process was restarted"}
