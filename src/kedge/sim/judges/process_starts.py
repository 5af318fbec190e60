"""Invariants of process starts, checked at the machines: these know what runs, whatever the API reports.

`invariants.Judge` checks them. Committed state is in `facts`; a machine is in contact while its lease is renewed.
"""

from __future__ import annotations

from collections.abc import Iterator

from kedge.agent.core import ContainerProcess
from kedge.api.views import PodView
from kedge.api.wellknown import NODE_KIND
from kedge.keys import Key
from kedge.sim.cluster.agents import SimulatedDriver
from kedge.sim.judges.facts import ClusterFacts, Finding
from kedge.sim.judges.pod_facts import requires_at_most_one


def a_pod_uid_has_one_live_process(
    facts: ClusterFacts, driver: SimulatedDriver, started: ContainerProcess
) -> Iterator[Finding]:
    """A container of a pod runs at most once, across all machines and restarts."""
    identity = started.identity
    for other in facts.drivers.values():
        for process in other.live():
            same = (process.identity.pod_uid, process.identity.container) == (identity.pod_uid, identity.container)
            if same and (process.identity != identity or other is not driver):
                yield "twice", f"{started.namespace}/{started.pod} runs on {other.name} and {driver.name}"


def an_at_most_one_slot_has_one_live_copy(
    facts: ClusterFacts, driver: SimulatedDriver, started: ContainerProcess
) -> Iterator[Finding]:
    """At most one copy runs, counting nodes that are cut off."""
    pod = facts.pods.get(started.identity.pod_uid)
    if pod is None or not requires_at_most_one(pod.as_view(PodView)):
        return
    for other in facts.drivers.values():
        for process in other.live():
            same = (process.namespace, process.pod) == (started.namespace, started.pod)
            if same and process.identity.pod_uid != started.identity.pod_uid:
                yield "two copies", f"{started.namespace}/{started.pod} runs on {other.name} and {driver.name}"


def a_process_is_started_only_for_its_binding(
    facts: ClusterFacts, driver: SimulatedDriver, started: ContainerProcess
) -> Iterator[Finding]:
    """A process starts only where its pod has its claim, and only for that incarnation of the node."""
    uid = started.identity.pod_uid
    pod, node = facts.pods.get(uid), facts.objects.get(Key(NODE_KIND, "", driver.name))
    if pod is not None and pod.as_view(PodView).spec.node_name != driver.name:
        yield "elsewhere", f"{pod.key} is bound to {pod.as_view(PodView).spec.node_name}, but started on {driver.name}"
    if uid in facts.claims and driver.name not in facts.claims[uid]:
        yield "no claim", f"{started.namespace}/{started.pod} has its claim on {', '.join(facts.claims[uid])}"
    if node is not None and node.uid != started.identity.node_uid and driver.name in facts.claims.get(uid, {}):
        yield "incarnation", f"{driver.name} started {started.pod} for its incarnation {started.identity.node_uid}"


def running_copies_are_at_most_desired_plus_surge(
    facts: ClusterFacts, driver: SimulatedDriver, started: ContainerProcess
) -> Iterator[Finding]:
    """On nodes in contact no more copies run than were wanted since the oldest began; draining ones count too.

    A surplus replica may stay for as long as faults last: the controller that would remove it may be cut off, and its
    agent restarts it. Starting one too many is wrong at once.
    """
    pod = facts.pods.get(started.identity.pod_uid)
    top = facts.workload_of(pod.as_view(PodView)) if pod is not None else None
    if top is None:
        return
    ours = {each.uid for each in facts.pods_under(top) if not each.finished}
    running = {
        process.identity.pod_uid
        for each in facts.drivers.values()
        if each is driver or facts.in_contact(each.name)
        for process in each.live()
        if process.identity.pod_uid in ours
    }
    since_s = min((facts.born_s[uid] for uid in running if uid in facts.born_s), default=facts.now_s())
    most = facts.most_wanted(top.uid, since_s - facts.lag_s)
    if most is not None and len(running) > most:
        yield (
            top.key.kind,
            f"{top.key} has {len(running)} running copies, and wanted at most {most} since they started",
        )


PROCESSES = (
    a_pod_uid_has_one_live_process,
    an_at_most_one_slot_has_one_live_copy,
    a_process_is_started_only_for_its_binding,
    running_copies_are_at_most_desired_plus_surge,
)
