"""A harness for one scheduler, on virtual time, with only the faults that a test sets."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import replace
from typing import Any, cast

from tests.kit.controllers import ControllerHarness, UnreliableTransport, new_cluster, until
from tests.objects import BUDGET, NODE, POD, node, pod

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import Bind, DeleteOptions, Evict, Get, List, OpenWatch, Reply, Request, Reserve, Written
from kedge.client.contract import Client
from kedge.env import Env, TaskSpawner
from kedge.errors import Fenced, Forbidden, OutcomeUnknown, Refused, Unavailable
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.recording.recorder import Recorder
from kedge.observe.records import AttemptChoice, Decision, NodeAccount, SchedulingAttempt
from kedge.placement.reasons import Reason
from kedge.runtime.cache import CacheSet
from kedge.scheduler import Scheduler
from kedge.scheduler.report.recheck import recheck_attempts
from kedge.sim.kernel import NO_FAULTS, Host, Simulation, run

LIMITS = Limits(
    decisions_sample_every=1,
    decisions_quiet_per_s=0.0,
    scheduler_flush_s=1e6,
    scheduler_explained_s=1.0,
    lease_s=6.0,
    lease_renew_s=4.0,
)
"""Every record is kept, and a pod that is not woken is never tried: there is no flush."""


class ScriptedTransport(UnreliableTransport):
    """A transport with faults that a test switches on."""

    binds_lost = False
    """Binds are committed, and their replies are lost."""
    binds_held = False
    """Binds wait before they are sent."""
    protected_pod = ""
    """The eviction of this pod is rejected, after a delay."""
    fenced_pod = ""
    """The bind of this pod is fenced off."""
    replies_held = False
    """Binds are committed, and their replies wait."""
    reserves_held = False
    """Reservations of gangs wait before they are sent."""
    pods_unreadable = False
    """Reads of pods fail, and their watch is silent."""
    pod_watch_held = False
    """The watch of pods is silent, but reads work."""
    pod_watch_delay_s = 0.0
    """The delay of each watch event of a pod."""
    ledgers_held = False
    """The watch of ledgers is silent."""
    replica_sets_held = False
    """The watch of ReplicaSets is silent."""
    nodes_held = False
    """The watch of nodes is silent."""
    refusing_node = ""
    """Every bind to this node is refused."""

    async def open_watch(self, request: OpenWatch) -> AsyncGenerator[Any, None]:
        return self._filtered(await super().open_watch(request), request.target.kind)

    async def send(self, request: Request[Reply]) -> Reply:
        match request:
            case Get() | List() if self.pods_unreadable and request.target.kind == "Pod":
                raise Unavailable("no reply")
            case Evict() if request.key.name == self.protected_pod:
                await asyncio.sleep(10)
                raise Forbidden("it stays", key=request.key)
            case Bind():
                return cast("Reply", await self._bind(request))
            case Reserve():
                while self.reserves_held:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        return await super().send(request)

    async def _bind(self, request: Bind) -> Written:
        binding = request.binding
        if binding.pod.name == self.fenced_pod:
            raise Fenced("another leads", key=Key("Lease.coordination.k8s.io", "kube-system", "default-scheduler"))
        while self.binds_held:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        if binding.node == self.refusing_node:
            self._note(request)
            node_key = Key("Node", "", binding.node)
            raise Refused("no", refusal=Reason.TAINT.value, key=node_key, revision=1)
        reply = await super().send(request)
        while self.replies_held:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        if self.binds_lost:
            raise OutcomeUnknown("no reply")
        return reply

    async def _filtered(self, stream: Any, kind: str) -> AsyncGenerator[Any, None]:
        try:
            async for event in stream:
                while self._is_held(kind):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                if kind == "Pod" and self.pod_watch_delay_s:
                    await asyncio.sleep(self.pod_watch_delay_s)
                yield event
        finally:
            await stream.aclose()

    def _is_held(self, kind: str) -> bool:
        if kind == "Pod":
            return self.pods_unreadable or self.pod_watch_held
        held = {
            "NodeAllocation.kedge.dev": self.ledgers_held,
            "Node": self.nodes_held,
            "ReplicaSet.apps": self.replica_sets_held,
        }
        return held.get(kind, False)


class SchedulerHarness(ControllerHarness):
    """A cluster with one scheduler."""

    def _process(self, name: str) -> tuple[Host, Env, ScriptedTransport, Client]:
        host = self.sim.host(name)
        env = replace(host.env(limits=self.limits), spawn=TaskSpawner())
        self.wire = ScriptedTransport(self.cluster.transport(host))
        return host, env, self.wire, Client(self.wire, env, component=name)

    async def open_for(self, *nodes: dict[str, Any], name: str = "default-scheduler") -> Scheduler:
        """Create nodes, and start a scheduler until it leads."""
        for body in nodes or (node("node-a", cpu="1"),):
            await self.cluster.authority.create(NODE, body)
        self.scheduler = Scheduler(self.client, self.env, name=name, caches=self.caches, recorder=self.recorder)
        self.running = self.host.spawn(self.scheduler.run(), name="scheduler")
        await until(lambda: self.scheduler.leading)
        return self.scheduler

    def another_scheduler(self, host_name: str = "second", *, name: str = "default-scheduler") -> SchedulerHarness:
        """Start a second scheduler process."""
        other = SchedulerHarness.__new__(SchedulerHarness)
        other.sim, other.cluster, other.limits, other.reported = self.sim, self.cluster, self.limits, self.reported
        other.host, other.env, other.transport, other.client = other._process(host_name)
        other.caches, other.recorder = CacheSet(other.client, other.env), Recorder(other.env)
        other.scheduler = Scheduler(other.client, other.env, name=name, caches=other.caches, recorder=other.recorder)
        other.running = other.host.spawn(other.scheduler.run(), name="scheduler")
        return other

    async def pod(
        self, name: str, *, labels: dict[str, str] | None = None, annotations: Any = None, **spec: Any
    ) -> Object:
        body = pod(name, **spec)
        body["metadata"]["labels"].update(labels or {})
        body["metadata"]["annotations"] = annotations or {}
        return (await self.cluster.authority.create(POD, body)).object

    async def gang(self, *names: str, size: int, gang: str = "crew", **spec: Any) -> list[Object]:
        annotations = {"kedge.dev/gang-size": str(size)}
        return [await self.pod(n, labels={"kedge.dev/gang": gang}, annotations=annotations, **spec) for n in names]

    async def priority(self, name: str, value: int, **more: Any) -> None:
        kind = KINDS.of_key_kind("PriorityClass.scheduling.k8s.io")
        await self.cluster.authority.create(kind, {"metadata": {"name": name}, "value": value, **more})

    async def budget(self, allowed: int, **labels: str) -> None:
        body = {"metadata": {"name": "budget", "namespace": "default"}, "spec": {"selector": {"matchLabels": labels}}}
        found = (await self.cluster.authority.create(BUDGET, body)).object
        status = {"status": {"disruptionsAllowed": allowed, "observedGeneration": found.metadata.generation}}
        await self.cluster.authority.patch(found.key, status, subresource="status")

    async def remove(self, name: str, *, confirm: bool = True) -> None:
        """Force-delete a pod; its agent confirms the end if `confirm`."""
        key = Key("Pod", "default", name)
        found = await self.cluster.authority.get(key)
        await self.cluster.authority.delete(key, DeleteOptions(uid=found.uid, grace_s=0))
        place = found.view.spec.node_name
        if place and confirm:
            await self.confirm(place, found.uid)

    async def confirm(self, place: str, uid: str) -> None:
        owner = await self.cluster.authority.get(Key("Node", "", place))
        await self.cluster.authority.confirm_ended(node=place, node_uid=owner.uid, pod_uid=uid)

    def find(self, name: str) -> Object | None:
        return self.cluster.find(Key("Pod", "default", name))

    def place(self, name: str) -> str:
        """The node of a pod; empty if it is not bound."""
        found = self.find(name)
        return found.view.spec.node_name if found is not None else ""

    def reason(self, name: str) -> str:
        """The message of the pod's `PodScheduled` condition."""
        found = self.find(name)
        conditions = found.view.status.conditions if found is not None else ()
        return next((each.message for each in conditions if each.type == "PodScheduled"), "")

    def scheduled_condition(self, name: str) -> tuple[str, str, str]:
        """Status, reason and message of the pod's `PodScheduled` condition; empty if it has none."""
        found = self.find(name)
        conditions = found.view.status.conditions if found is not None else ()
        found_conditions = (
            (each.status, each.reason, each.message) for each in conditions if each.type == "PodScheduled"
        )
        return next(found_conditions, ("", "", ""))

    def nominated(self, name: str) -> str:
        """The nominated node of a pod."""
        found = self.find(name)
        return found.view.status.nominated_node_name if found is not None else ""

    def events(self, reason: str) -> list[dict[str, Any]]:
        return [each.edit() for each in self.cluster.all("Event") if each.edit()["reason"] == reason]

    def decisions(self) -> list[Decision]:
        """Attempts, oldest first."""
        return [each for each in super().decisions() if not each.part_of]

    def reports(self, name: str) -> list[Decision]:
        """Records of reports about an object, oldest first."""
        return [each for each in super().decisions() if each.part_of and each.key.name == name]

    def attempts(self, name: str) -> list[Decision]:
        """Oldest first."""
        return [each for each in self.decisions() if each.key.name == name]

    def metric(self, series: str, **labels: str) -> float:
        value = self.env.metrics.registry.get_sample_value(series, labels)
        return value or 0.0

    def recheck_all(self) -> int:
        return recheck_attempts(self.decisions(), self.caches, self.env)

    def nothing_is_left(self) -> bool:
        """No assumption, no bind, nothing in flight, no refusal."""
        scheduler = self.scheduler
        stats = scheduler.statistics()
        return not (
            stats.assumed
            or stats.binding
            or stats.nominated
            or scheduler.queue._in_flight
            or scheduler.queue._events
            or len(scheduler._binder.refusals)
        )


Test = Callable[[SchedulerHarness], Coroutine[Any, Any, None]]


def with_scheduler(limits: Limits = LIMITS) -> Callable[[Test], Callable[[], None]]:
    """Run an async test without random faults. Afterwards every kept attempt is rechecked."""

    def decorate(test: Test) -> Callable[[], None]:
        @functools.wraps(test)
        def within() -> None:
            async def program(sim: Simulation) -> None:
                cluster = await new_cluster(sim, servers=1)
                await cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}})
                harness = SchedulerHarness(sim, cluster, limits)
                await test(harness)
                harness.recheck_all()
                assert not harness.reported, harness.reported

            outcome = run(program, 1, faults=NO_FAULTS)
            assert outcome.violation is None, f"{outcome.violation}\n{outcome.violation.detail}"

        del within.__dict__["__wrapped__"]  # else pytest takes `harness` for a fixture
        return within

    return decorate


def attempt_of(record: Decision) -> SchedulingAttempt:
    assert record.scheduling is not None
    return record.scheduling


def choice_in(record: Decision) -> AttemptChoice:
    choice = attempt_of(record).choice
    assert choice is not None
    return choice


def account_in(record: Decision) -> NodeAccount:
    account = attempt_of(record).account
    assert account is not None
    return account
