"""Two API servers, several writers, a faulty network: ledgers and quotas must balance at every commit.

The invariants read committed state, not a cache, and recompute every total from its parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.kit.cluster import assert_holds
from tests.kit.committed import State
from tests.objects import (
    NAMESPACE,
    NODE,
    POD,
    RESERVATION,
    RESOURCE_QUOTA,
    ZONE_QUOTA,
    node,
    pod,
    reservation,
    resource_quota,
    zone_quota,
)

from kedge.api.objects import Object
from kedge.api.requests import Binding, DeleteOptions, GangChunk, GangPlace, PatchType
from kedge.client.contract import Client
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.placement.ledger import ClaimState
from kedge.placement.resources import Units, add, node_allocatable, pod_requests, to_units
from kedge.sim.cluster import Cluster, Commit
from kedge.sim.kernel import Simulation, run

Findings = Iterator[tuple[str, str]]
NODES = ("node-a", "node-b")
PODS = tuple(f"web-{n}" for n in range(5))
GANG = "gang"
GANG_KEY = Key("Reservation.kedge.dev", "default", GANG)
MEMBERS = PODS[-2:]
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
ROUNDS = 10


def totals_are_the_sum_of_claims(commit: Commit) -> Findings:
    """The totals of a ledger are the sum of its claims."""
    for name, ledger in State(commit.store).ledgers().items():
        total = add(*(claim.requests for claim in ledger.claims.values()))
        if total != ledger.allocated:
            yield "ledger", f"{name}: the sum of the claims is {total}, the ledger has {ledger.allocated}"


def a_pod_claims_one_node(commit: Commit) -> Findings:
    """A pod has a claim on at most one node."""
    seen: dict[str, str] = {}
    for name, ledger in State(commit.store).live_ledgers().items():
        for uid in ledger.claims:
            if uid in seen:
                yield "two nodes", f"{uid} has claims on {seen[uid]} and {name}"
            seen[uid] = name


def a_running_pod_is_in_the_ledger_of_its_node(commit: Commit) -> Findings:
    """A bound pod that has not ended is in the ledger of its node, with its requests."""
    state = State(commit.store)
    ledgers = state.live_ledgers()
    for found in state.of("Pod").values():
        view = found.view
        ledger = ledgers.get(view.spec.node_name)
        if not view.spec.node_name or view.finished or ledger is None:
            continue
        if state.of("Node")[view.spec.node_name].created > bound_on(found):
            continue  # bound to an earlier incarnation of the node
        claim = ledger.claims.get(view.uid)
        was_bound = "kedge.dev/bind" in found.metadata.annotations
        states = (ClaimState.BOUND,) if was_bound else (ClaimState.BOUND, ClaimState.UNADMITTED)
        if claim is None or claim.state not in states or claim.requests != pod_requests(view):
            yield "missing claim", f"{found.key} runs on {view.spec.node_name} without its claim: {claim}"


def bound_on(found: Object) -> int:
    """The revision of the node that the bind of a pod proved; for a pod created on its node, that of its creation."""
    record = found.metadata.annotations.get("kedge.dev/bind")
    if record is None:
        return found.created
    proved: int = msgspec.json.decode(record)["provedOn"][f"Node/{found.view.spec.node_name}"]
    return proved


def an_ended_pod_has_no_claim(commit: Commit) -> Findings:
    """A pod whose end is recorded has no claim."""
    state = State(commit.store)
    claimed = {uid for ledger in state.ledgers().values() for uid in ledger.claims}
    for found in state.of("Pod").values():
        if found.view.finished and found.uid in claimed:
            yield "leak", f"{found.key} has ended and still holds a claim"


def a_reservation_is_backed_by_a_claim(commit: Commit) -> Findings:
    """A reservation has its claim, and a reserved claim its reservation."""
    state = State(commit.store)
    ledgers = state.live_ledgers()
    for found in state.of("Reservation.kedge.dev").values():
        spec = found.view.spec
        ledger = ledgers.get(spec.node_name)
        if ledger is None:
            continue  # a gang record, or the node is deleted
        claim = ledger.claims.get(spec.pod.uid)
        if claim is None or claim.state is not ClaimState.RESERVED:
            yield "unbacked", f"{found.key} has no claim on {spec.node_name}: {claim}"
    for name, ledger in ledgers.items():
        for uid, claim in ledger.claims.items():
            if claim.state is ClaimState.RESERVED and uid not in state.of("Reservation.kedge.dev"):
                yield "orphan", f"{name} has a reserved claim for {claim.name} without a reservation"


class NoOvercommit:
    """No commit adds to a node, or to a quota, past its limit. (Limits themselves may shrink.)"""

    def __init__(self) -> None:
        self._before: dict[str, Units] = {}

    def __call__(self, commit: Commit) -> Findings:
        state = State(commit.store)
        after: dict[str, Units] = {}
        limits: dict[str, Units] = {}
        for name, ledger in state.live_ledgers().items():
            proved = (each for each in ledger.claims.values() if each.state is not ClaimState.UNADMITTED)
            after[name] = add(*(each.proved for each in proved))
            limits[name] = node_allocatable(state.of("Node")[name].view)
        for found in state.of("ResourceQuota").values():
            after[str(found.key)] = to_units(found.view.status.used)
            limits[str(found.key)] = to_units(found.view.spec.hard)
        for found in state.of("ZoneQuota.kedge.dev").values():
            for zone, use in found.view.status.zones.items():
                after[f"{found.key}/{zone}"] = to_units(use.used)
                limits[f"{found.key}/{zone}"] = to_units(found.view.spec.zones[zone].hard)
        for what, amounts in after.items():
            before = self._before.get(what)
            if before is None:
                continue
            for resource, limit in limits[what].items():
                counted = resource in before or what in NODES  # a quota may be overrun when it is counted first
                if counted and amounts.get(resource, 0) > max(limit, before.get(resource, 0)):
                    yield "overfull", f"{what}: {resource} went from {before} to {amounts} of {limit}"
        self._before = after


def quotas_count_the_pods(commit: Commit) -> Findings:
    """The usage of a counted quota is that of its namespace."""
    state = State(commit.store)
    running = [found.view for found in state.of("Pod").values() if not found.view.finished]
    for found in state.of("ResourceQuota").values():
        used = to_units(found.view.status.used)
        if set(used) != set(found.view.spec.hard):
            continue  # not counted yet
        expected = {"pods": len(running), "requests.cpu": sum(pod_requests(view)["cpu"] for view in running)}
        for resource, amount in used.items():
            if expected[resource] != amount:
                yield "quota", f"{found.key}: {resource} is {expected[resource]}, the quota has {amount}"


def zone_quotas_count_the_claims(commit: Commit) -> Findings:
    """The usage of a counted zone quota is the sum of the claims of the tenant in the zone."""
    state = State(commit.store)
    for found in state.of("ZoneQuota.kedge.dev").values():
        for zone, use in found.view.status.zones.items():
            claims = (c for ledger in state.ledgers().values() for c in ledger.claims.values() if c.zone == zone)
            total = add(*(claim.requests for claim in claims))
            if total != {r: n for r, n in to_units(use.used).items() if n}:
                yield (
                    "zone quota",
                    f"{found.key}: the sum of the claims in {zone} is {total}, the quota has {dict(use.used)}",
                )


def a_gang_record_names_its_reservations(commit: Commit) -> Findings:
    """Until a gang is committed its record names exactly the pods with a reservation under it."""
    reservations = State(commit.store).of("Reservation.kedge.dev")
    record = reservations.get(GANG)
    under = {uid for uid, found in reservations.items() if found.view.spec.gang == GANG}
    if record is None:
        if under:
            yield "stray", f"{sorted(under)} are reserved under a gang that has no record"
    elif record.view.status.phase != "Committed" and set(record.view.status.members) != under:
        yield "members", f"{sorted(under)} are reserved, the record has {sorted(record.view.status.members)}"


class GangsAreWhole:
    """A gang is committed when all members have a reservation; no member is bound before."""

    def __init__(self) -> None:
        self._committed: frozenset[str] = frozenset()
        self._bound: frozenset[str] = frozenset()

    def __call__(self, commit: Commit) -> Findings:
        state = State(commit.store)
        pods = {found.uid: found for found in state.of("Pod").values() if "kedge.dev/gang" in found.view.labels}
        bound = frozenset(uid for uid, found in pods.items() if found.view.spec.node_name)
        for uid in bound - self._bound - self._committed:
            if "kedge.dev/bind" in pods[uid].metadata.annotations:
                yield "part of a gang", f"{pods[uid].key} was bound before its gang was committed"
        record = state.of("Reservation.kedge.dev").get(GANG)
        committed: frozenset[str] = frozenset()
        if record is not None and record.view.status.phase == "Committed":
            committed = frozenset(record.view.status.members)
            if not self._committed and len(committed) < record.view.spec.gang_size:
                yield "too few", f"the gang was committed with {sorted(committed)}"
            for uid in committed - self._committed:
                if uid not in state.of("Reservation.kedge.dev"):
                    yield "no place", f"{uid} is a member without a reservation"
        self._committed, self._bound = committed, bound


INVARIANTS: tuple[Callable[[Commit], Findings], ...] = (
    totals_are_the_sum_of_claims,
    a_pod_claims_one_node,
    a_running_pod_is_in_the_ledger_of_its_node,
    an_ended_pod_has_no_claim,
    a_reservation_is_backed_by_a_claim,
    a_gang_record_names_its_reservations,
    quotas_count_the_pods,
    zone_quotas_count_the_claims,
)


# -- the workload ----------------------------------------------------------------------------------


def pod_key(name: str) -> Key:
    return Key("Pod", "default", name)


class Writer:
    """Makes one random request after another, and ignores refusals."""

    def __init__(self, sim: Simulation, client: Client) -> None:
        self._sim = sim
        self._client = client
        self._steps: tuple[tuple[str, Callable[[], Awaitable[object]]], ...] = (
            ("create pod", self._create_pod),
            ("create pod", self._create_pod),
            ("bind", self._bind),
            ("bind", self._bind),
            ("bind", self._bind),
            ("start pod", self._start_pod),
            ("resize", self._resize),
            ("resize", self._resize),
            ("report", self._report),
            ("report", self._report),
            ("end pod", self._end_pod),
            ("delete pod", self._delete_pod),
            ("reserve", self._reserve),
            ("release", self._release),
            ("gang", self._reserve_gang),
            ("gang", self._reserve_gang),
            ("bind gang", self._bind_gang),
            ("bind gang", self._bind_gang),
            ("end gang", self._end_gang),
            ("quota", self._quota),
            ("zone quota", self._zone_quota),
            ("node", self._node),
        )

    async def step(self) -> None:
        name, step = self._sim.choose("step", self._steps)
        try:
            await step()
        except OperatingError as error:
            self._sim.sometimes(f"{name}: {type(error).__name__}")
        else:
            self._sim.sometimes(name)

    def _name(self) -> str:
        return self._sim.choose("pod", PODS)

    def _node_name(self) -> str:
        return self._sim.choose("node", NODES)

    async def _create_pod(self) -> None:
        cpu = self._sim.choose("cpu", ("300m", "500m"))
        body = pod(self._name(), cpu=cpu)
        if body["metadata"]["name"] in MEMBERS:
            body["metadata"]["labels"]["kedge.dev/gang"] = GANG
        if self._sim.choose("born bound", (False, False, True)):
            body["spec"]["nodeName"] = self._node_name()
        await self._client.create(POD, body)

    async def _bind(self) -> None:
        found = await self._client.get(pod_key(self._name()))
        await self._client.bind(Binding(pod=found.key, pod_uid=found.uid, node=self._node_name()))

    async def _start_pod(self) -> None:
        """As an agent does before it starts a pod; for one that was created with its node, it asks for admission."""
        found = await self._client.get(pod_key(self._name()))
        if found.view.spec.node_name:
            at = f"2030-01-01T00:00:0{self._sim.choose_int('second', 0, 9)}Z"
            await self._client.patch(found.key, {"status": {"startTime": at}}, subresource="status")

    async def _resize(self) -> None:
        size = {"requests": {"cpu": self._sim.choose("cpu", ("200m", "300m", "500m", "900m"))}}
        body = {"spec": {"containers": [{"name": "main", "resources": size}]}}
        key = pod_key(self._name())
        await self._client.patch(key, body, patch_type=PatchType.STRATEGIC, subresource="resize")

    async def _report(self) -> None:
        """As an agent does: the size in the spec is allocated, and applied now or later."""
        found = await self._client.get(pod_key(self._name()))
        if not found.view.spec.node_name:
            return
        wanted = {name: str(amount) for name, amount in found.view.spec.containers[0].resources.requests.items()}
        had = [each for each in found.view.status.container_statuses if each.resources is not None]
        applied = wanted
        if self._sim.choose("later", (True, False)) and had:
            applied = {name: str(amount) for name, amount in had[0].resources.requests.items()}
        shown: dict[str, object] = {"name": "main", "image": "web:1", "imageID": "", "ready": True, "restartCount": 0}
        shown |= {"allocatedResources": wanted, "resources": {"requests": applied}}
        begun = {"type": "PodResizeInProgress", "status": "True", "observedGeneration": found.metadata.generation}
        conditions = [begun] if self._sim.choose("begins", (True, False)) else []
        version = {"resourceVersion": str(found.revision)}
        body = {"metadata": version, "status": {"containerStatuses": [shown], "conditions": conditions}}
        await self._client.patch(found.key, body, subresource="status")

    async def _end_pod(self) -> None:
        key = pod_key(self._name())
        await self._client.patch(key, {"status": {"phase": "Succeeded"}}, subresource="status")

    async def _delete_pod(self) -> None:
        found = await self._client.get(pod_key(self._name()))
        forced = self._sim.choose("forced", (True, False))
        await self._client.delete(found.key, DeleteOptions(uid=found.uid, grace_s=0 if forced else None))
        if forced and found.view.spec.node_name:
            owner = await self._client.get(Key("Node", "", found.view.spec.node_name))
            await self._client.confirm_ended(node=owner.key.name, node_uid=owner.uid, pod_uid=found.uid)

    async def _reserve(self) -> None:
        found = await self._client.get(pod_key(self._name()))
        generation = self._sim.choose_int("generation", 1, 3)
        gang = GANG if found.key.name in MEMBERS else ""
        body = reservation(found, self._node_name(), generation=generation, gang=gang)
        existing = await self._client.find(Key("Reservation.kedge.dev", "default", found.uid))
        if existing is None:
            await self._client.create(RESERVATION, body)
        else:
            await self._client.update(existing.key, body)

    async def _release(self) -> None:
        found = await self._client.get(pod_key(self._name()))
        await self._client.delete(Key("Reservation.kedge.dev", "default", found.uid))

    async def _reserve_gang(self) -> None:
        places = []
        for name in self._sim.choose("members", (MEMBERS, MEMBERS, MEMBERS[:1], MEMBERS[1:], ())):
            found = await self._client.get(pod_key(name))
            places.append(GangPlace(pod=name, pod_uid=found.uid, node=self._node_name()))
        deadline = datetime(2060, 1, 1, tzinfo=UTC) if self._sim.choose("lasting", (True, False)) else _LONG_AGO
        await self._client.reserve(
            GangChunk(
                namespace="default",
                gang=GANG,
                size=len(MEMBERS),
                deadline=deadline,
                places=places,
                commit=self._sim.choose("commit", (True, False)),
            )
        )

    async def _bind_gang(self) -> None:
        """Binds from the gang record, as a new leader does."""
        record = await self._client.get(GANG_KEY)
        for uid, member in record.view.status.members.items():
            await self._client.bind(Binding(pod=pod_key(member.name), pod_uid=uid, node=member.node_name))

    async def _end_gang(self) -> None:
        how = self._sim.choose("how to end the gang", ("delete", "delete", "abort", "commit"))
        if how == "delete":
            await self._client.delete(GANG_KEY)
        else:
            phase = {"abort": "Aborted", "commit": "Committed"}[how]
            await self._client.patch(GANG_KEY, {"status": {"phase": phase}}, subresource="status")

    async def _quota(self) -> None:
        key = Key("ResourceQuota", "default", "limits")
        if await self._client.find(key) is None:
            hard: dict[str, Any] = self._sim.choose("hard", ({"pods": "4"}, {"pods": "5", "requests__cpu": "1500m"}))
            await self._client.create(RESOURCE_QUOTA, resource_quota(**hard))
        else:
            await self._client.delete(key)

    async def _zone_quota(self) -> None:
        key = Key("ZoneQuota.kedge.dev", "default", "zones")
        if await self._client.find(key) is None:
            await self._client.create(ZONE_QUOTA, zone_quota(zone_a={"cpu": "800m"}, zone_b={"pods": "2"}))
        elif self._sim.choose("what to do with the quota", ("drop a zone", "delete")) == "delete":
            await self._client.delete(key)
        else:
            zone = self._sim.choose("quota of zone", ({"zone-a": None}, {"zone-a": {"hard": {"cpu": "700m"}}}))
            await self._client.patch(key, {"spec": {"zones": zone}})

    async def _node(self) -> None:
        name = self._node_name()
        found = await self._client.find(Key("Node", "", name))
        if found is None:
            await self._client.create(NODE, node(name, zone=f"zone-{name[-1]}", cpu="1"))
        elif self._sim.choose("what to do with the node", ("cordon", "cordon", "replace")) == "replace":
            await self._client.delete(found.key, DeleteOptions(uid=found.uid))
        else:
            await self._client.patch(found.key, {"spec": {"unschedulable": not found.view.spec.unschedulable}})


async def random_writers(sim: Simulation) -> None:
    cluster = Cluster(sim, servers=2)
    sim.check_always(*INVARIANTS, NoOvercommit(), GangsAreWhole())
    await cluster.authority.create(NAMESPACE, {"metadata": {"name": "default"}})
    for name in NODES:
        await cluster.authority.create(NODE, node(name, zone=f"zone-{name[-1]}", cpu="1"))
    writers = []
    for n in range(5):
        host = sim.host(f"writer-{n}")
        writers.append((host, Writer(sim, cluster.client(host, server=n % 2))))
    for _ in range(ROUNDS):
        # All at once: races happen between a read and its commit.
        steps = [host.spawn(writer.step(), name="step") for host, writer in writers]
        await asyncio.wait(steps, timeout=120)
    sim.heal()


# -- the tests -------------------------------------------------------------------------------------


def test_ledgers_and_quotas_balance_at_every_commit() -> None:
    reached: dict[str, int] = {}
    for seed in range(250):
        outcome = run(random_writers, seed)
        assert_holds(outcome)
        for mark, times in outcome.marks.items():
            reached[mark] = reached.get(mark, 0) + times
    for needed in (
        "bind",
        "bind: Refused",
        "start pod",
        "resize",
        "resize: Forbidden",
        "report",
        "report: Conflict",
        "end pod",
        "delete pod",
        "reserve",
        "gang",
        "gang: Refused",
        "bind gang",
        "bind gang: Refused",
        "end gang",
        "quota",
        "zone quota",
        "node",
        "create pod: Forbidden",
    ):
        assert reached.get(needed), f"no seed ever reached {needed!r}: {reached}"


@pytest.mark.soak
def test_ledgers_and_quotas_balance_over_many_more_seeds() -> None:
    for seed in range(1_000, 2_500):
        outcome = run(random_writers, seed)
        assert_holds(outcome)
