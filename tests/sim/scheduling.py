"""Schedulers in a hostile world: two of one name and one of another, users and operators who change everything.

The invariants read committed state, never a cache. `Town` keeps every process, so that each attempt can be run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.objects import NODE, POD, ZONE_QUOTA, node, pod, zone_quota
from tests.unit.scheduler import plain

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions
from kedge.client.contract import Client
from kedge.controllers.quotas import quota_controller
from kedge.errors import Fenced, OperatingError, OutcomeUnknown, Refused
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.recorder import Recorder
from kedge.placement.ledger import ClaimState, Ledger, ledger_of
from kedge.placement.predicates import first_misfit
from kedge.placement.resources import Units, add, node_allocatable, pod_requests, shortages, to_units
from kedge.scheduler import Scheduler
from kedge.scheduler.recheck import recheck_attempts
from kedge.sim.cluster import Cluster, Commit, RemoteTransport
from kedge.sim.kernel import Host, Simulation

Wrong = Iterator[tuple[str, str]]
NODES = ("node-a", "node-b", "node-c")
ZONES = {"node-a": "zone-a", "node-b": "zone-b", "node-c": "zone-b"}
PODS = tuple(f"web-{n}" for n in range(8))
GANG = ("duo-0", "duo-1")
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
QUOTA = Key("ZoneQuota.kedge.dev", "default", "zones")
RECORD = Key("Reservation.kedge.dev", "default", "duo")
OTHER = "other-scheduler"

LIMITS = Limits(
    lease_s=4.0,
    lease_renew_s=2.5,
    lease_retry_s=1.0,
    relist_every_s=1e6,
    watch_probe_s=20.0,
    cache_wait_s=1.0,
    watch_request_s=3.0,
    watch_backoff_s_max=2.0,
    client_backoff_s_max=1.0,
    watch_progress_s=5.0,
    scheduler_flush_s=1e6,
    scheduler_assumed_s=6.0,
    scheduler_quarantine_s=15.0,
    scheduler_explained_s=1.0,
    gang_wait_s=10.0,
    floor_wait_s=5.0,
    decisions_sample_every=1,
)
"""Changes of leader come round within a run; nets do not: who is not woken is never looked at."""


# -- what is committed -----------------------------------------------------------------------------


class State:
    """Everything that a store holds after a commit."""

    def __init__(self, store: Any) -> None:
        self.objects: dict[str, dict[str, Object]] = {}
        for entry in store.entries():
            if entry.key.kind.startswith(("Operation", "Fence", "Lease", "Event")):
                continue
            kind = KINDS.of_key_kind(entry.key.kind)
            found = Object(kind, entry.key, entry.value, revision=entry.modified, created=entry.created)
            self.objects.setdefault(entry.key.kind, {})[entry.key.name] = found

    def of(self, kind: str) -> dict[str, Object]:
        return self.objects.get(kind, {})

    def ledgers(self) -> dict[str, Ledger]:
        return {name: ledger_of(found.view) for name, found in self.of("NodeAllocation.kedge.dev").items()}

    def live_ledgers(self) -> dict[str, Ledger]:
        """Those of nodes that are still the incarnation the ledger is about."""
        nodes = self.of("Node")
        return {n: each for n, each in self.ledgers().items() if n in nodes and nodes[n].uid == each.node_uid}


class Accounts:
    """Accounts balance at every commit, and no commit adds to what is full."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._nodes_of: dict[str, str] = {}
        self._used: dict[str, Units] = {}
        self._generations: dict[str, str] = {}
        """Which incarnation of a quota or node `_used` is about."""
        self._committed: frozenset[str] = frozenset()

    def __call__(self, commit: Commit) -> Wrong:
        if all(key.kind in ("Event", "Lease.coordination.k8s.io", "Operation.kedge.dev") for key in commit.keys):
            return
        state = State(commit.store)
        yield from self._one_node_each(state)
        yield from self._ledgers_say_what_is_held(state)
        yield from self._never_overfull(state)
        yield from self._quotas_are_sums(state)
        yield from self._gangs_are_whole(state)

    def _one_node_each(self, state: State) -> Wrong:
        """A pod uid is bound to one node, for ever; and it has a claim on at most one."""
        for found in state.of("Pod").values():
            node_name = found.view.spec.node_name
            if node_name and self._nodes_of.setdefault(found.uid, node_name) != node_name:
                yield "two nodes", f"{found.key} moved from {self._nodes_of[found.uid]} to {node_name}"
        seen: dict[str, str] = {}
        for name, ledger in state.live_ledgers().items():
            for uid in ledger.claims:
                if seen.setdefault(uid, name) != name:
                    yield "two nodes", f"{uid} has claims on {seen[uid]} and {name}"

    def _ledgers_say_what_is_held(self, state: State) -> Wrong:
        """A ledger is its bound pods, its reservations, and what lingers of pods that are gone; and nothing else."""
        reserved: dict[str, str] = {}
        for found in state.of("Reservation.kedge.dev").values():
            spec = found.view.spec
            if spec.pod.uid and reserved.setdefault(spec.pod.uid, spec.node_name) != spec.node_name:
                yield "two reservations", f"{spec.pod.name} is reserved on {reserved[spec.pod.uid]} too"
        pods = {found.uid: found for found in state.of("Pod").values()}
        for name, ledger in state.live_ledgers().items():
            total = add(*(claim.requests for claim in ledger.claims.values()))
            if total != ledger.allocated:
                yield "ledger", f"{name}: claims come to {total}, the ledger says {ledger.allocated}"
            for uid, claim in ledger.claims.items():
                holder = pods.get(uid)
                if claim.state is ClaimState.RESERVED:
                    if reserved.get(uid) != name:
                        yield "orphan", f"{name} keeps a place for {claim.name} that nobody reserved"
                elif holder is None:
                    if uid not in self._nodes_of:
                        yield "leak", f"{name} holds {claim.name}, which never was bound"
                elif holder.view.spec.node_name != name or holder.view.finished:
                    yield "leak", f"{name} holds {claim.name}, which is on {holder.view.spec.node_name!r}"
            for uid, bound in pods.items():
                view = bound.view
                if view.spec.node_name != name or view.finished or uid in ledger.claims:
                    continue
                if state.of("Node")[name].created <= self._bound_on(bound, name):
                    yield "missing", f"{bound.key} runs on {name} without its claim"

    @staticmethod
    def _bound_on(found: Object, name: str) -> int:
        proved: int = msgspec.json.decode(found.metadata.annotations["kedge.dev/bind"])["provedOn"][f"Node/{name}"]
        return proved

    def _never_overfull(self, state: State) -> Wrong:
        after: dict[str, tuple[str, Units, Units]] = {}
        for name, ledger in state.live_ledgers().items():
            owner = state.of("Node")[name]
            after[name] = owner.uid, ledger.allocated, node_allocatable(owner.view)
        for found in state.of("ZoneQuota.kedge.dev").values():
            for zone, use in found.view.status.zones.items():
                if zone in found.view.spec.zones:
                    hard = to_units(found.view.spec.zones[zone].hard)
                    after[f"{found.key}/{zone}"] = found.uid, to_units(use.used), hard
        for what, (uid, used, limit) in after.items():
            before = self._used.get(what, {})
            known = self._generations.get(what) == uid
            for resource, most in limit.items():
                now, counted = used.get(resource, 0), resource in before or what in state.of("Node")
                if known and counted and now > max(most, before.get(resource, 0)):
                    yield "overfull", f"{what}: {resource} went from {before} to {used} of {dict(limit)}"
        self._used = {what: used for what, (_, used, _) in after.items()}
        self._generations = {what: uid for what, (uid, _, _) in after.items()}

    def _quotas_are_sums(self, state: State) -> Wrong:
        for found in state.of("ZoneQuota.kedge.dev").values():
            for zone, use in found.view.status.zones.items():
                claims = (c for ledger in state.ledgers().values() for c in ledger.claims.values() if c.zone == zone)
                total = add(*(claim.requests for claim in claims))
                if total != {r: n for r, n in to_units(use.used).items() if n}:
                    yield "quota", f"{found.key}: claims in {zone} come to {total}, the quota says {dict(use.used)}"

    def _gangs_are_whole(self, state: State) -> Wrong:
        """A member is bound only once as many as its gang asked for held a place."""
        record = state.of("Reservation.kedge.dev").get(RECORD.name)
        if record is not None and record.view.status.phase == "Committed":
            self._committed |= frozenset(record.view.status.members)
            self._sim.sometimes("a gang was committed")
        for found in state.of("Pod").values():
            if found.key.name in GANG and found.view.spec.node_name and found.uid not in self._committed:
                yield "part of a gang", f"{found.key} was bound, and its gang was never committed with it"


# -- the schedulers --------------------------------------------------------------------------------


class Observed(RemoteTransport):
    """A wire that notes what became of binds."""

    def __init__(self, sim: Simulation, host: Host, remote: Any, holds: tuple[str, ...]) -> None:
        super().__init__(remote)
        self._sim = sim
        self._host = host
        self._holds = holds
        self.binds_out: dict[Key, str] = {}
        """The uid of each pod whose bind is out."""
        self.on_bind: Callable[[], None] = lambda: None

    def stop_the_host(self) -> None:
        """For longer than its lease, with this bind in its hands: it is sent when another leads."""
        host, process, world = self._host, self._host.process, self._sim.world
        host.pause()
        self._sim.sometimes("a scheduler was stopped in the middle of a bind")

        def go_on() -> None:
            if host.process is process:
                host.resume()

        world.loop.call_later(3 * LIMITS.lease_s, go_on, context=world.context)

    async def bind(self, request: Any, *, options: Any) -> Any:
        self.binds_out[request.pod] = request.pod_uid
        if self._sim.faults.active:
            held = self._sim.choose("a bind is held up", self._holds)
            if held == "stopped":
                self.stop_the_host()
            if held:
                await asyncio.sleep(self._sim.choose("for", (0.5, 2.5)))
        try:
            return await super().bind(request, options=options)
        except Refused as error:
            self._sim.sometimes("a bind was refused")
            self._sim.sometimes(f"refused: {error.refusal}")
            raise
        except Fenced:
            self._sim.sometimes("a bind was fenced off")
            raise
        except OutcomeUnknown:
            self._sim.sometimes("a bind's outcome was unknown")
            raise
        finally:
            self.binds_out.pop(request.pod, None)
            self.on_bind()


@dataclass
class Life:
    """One life of one scheduler process."""

    host: Host
    number: int
    scheduler: Scheduler
    recorder: Recorder
    wire: Observed


@dataclass
class Town:
    """A cluster, its schedulers, and what was seen of them."""

    sim: Simulation
    cluster: Cluster
    limits: Limits = LIMITS
    lives: list[Life] = field(default_factory=list)
    make: Callable[..., Scheduler] = Scheduler
    holds: tuple[str, ...] = ("", "", "", "", "late", "late", "late", "stopped")
    """What may become of a bind before it is sent."""

    def boot(self, host_name: str, name: str) -> Host:
        host = self.sim.host(host_name)
        host.skew(rate=self.sim.choose("clock rate", (1.0, 0.8, 1.3)))
        host.boot(lambda host: self._run(host, name))
        return host

    async def _run(self, host: Host, name: str) -> None:
        env = host.env(limits=self.limits)
        server = self.cluster.servers[len(self.lives) % len(self.cluster.servers)]
        wire = Observed(self.sim, host, host.remote(server, "api", timeout_s=2.0), self.holds)
        recorder = Recorder(env)
        scheduler = self.make(Client(wire, env, component=host.name), env, name=name, recorder=recorder)
        life = Life(host, host.process.number, scheduler, recorder, wire)
        self.lives.append(life)
        wire.on_bind = lambda: self._bind_ended(life)
        await scheduler.run()

    def boot_quotas(self) -> Host:
        """The controller that sees to it that quotas are counted."""
        host = self.sim.host("quotas")
        host.boot(lambda host: quota_controller(self.client(host, 1), host.env(limits=self.limits)).run())
        return host

    def client(self, host: Host, server: int) -> Client:
        remote = host.remote(self.cluster.servers[server % 2], "api", timeout_s=2.0)
        return Client(RemoteTransport(remote), host.env(limits=self.limits), component=host.name)

    def living(self) -> list[Life]:
        return [each for each in self.lives if each.host.up and each.number == each.host.process.number]

    def _bind_ended(self, life: Life) -> None:
        others = (each for each in self.living() if each is not life and each.scheduler.name == life.scheduler.name)
        if any(each.scheduler.leading for each in others):
            self.sim.sometimes("a standby took over with binds in flight")

    async def wait_bind(self) -> Life | None:
        """A scheduler that has a bind on its way; None if none has for a while."""
        for _ in range(600):
            life = next((each for each in self.living() if each.wire.binds_out and not each.host.paused), None)
            if life is not None:
                return life
            await asyncio.sleep(0.05)
        return None

    def recheck(self) -> int:
        """Run every kept attempt of every process again. How many there were."""
        return sum(
            recheck_attempts(reversed(list(life.recorder.decisions())), life.scheduler.caches, life.scheduler._env)
            for life in self.lives
        )


# -- users and operators ---------------------------------------------------------------------------


class User:
    """Does one random thing after another through a faulty link, and minds no refusal."""

    def __init__(self, town: Town, client: Client) -> None:
        self._town = town
        self._sim = town.sim
        self._client = client
        self._steps: tuple[tuple[str, Callable[[], Any]], ...] = (
            *(("create", self._create),) * 2,
            *(("burst", self._burst),) * 3,
            ("replace", self._replace),
            ("replace", self._replace),
            ("replace", self._replace),
            ("delete", self._delete),
            ("gang", self._gang),
            ("end", self._end),
            ("quota", self._quota),
            ("resize", self._resize),
            ("node", self._node),
            ("cordon", self._cordon),
            ("relabel", self._relabel),
            ("move", self._move),
            ("depose", self._depose),
        )

    async def step(self, *among: str) -> None:
        """Something random; of those named, if any are."""
        steps = tuple(each for each in self._steps if not among or each[0] in among)
        name, step = self._sim.choose("step", steps)
        try:
            await step()
            self._sim.sometimes(name)
        except OperatingError:
            return

    def body(self, name: str, rules: tuple[str, ...] = ("", "", "apart", "near", "spread")) -> dict[str, Any]:
        body = pod(name, cpu=self._sim.choose("cpu", ("400m", "700m")))
        if name in GANG:
            body["metadata"]["labels"]["kedge.dev/gang"] = "duo"
            body["metadata"]["annotations"] = {"kedge.dev/gang-size": "2"}
            return body
        body["spec"]["schedulerName"] = self._sim.choose("scheduler", ("default-scheduler", OTHER))
        if self._sim.choose("urgent", (False, False, False, True)):
            body["spec"]["priorityClassName"] = "urgent"
        rule = self._sim.choose("rule", rules)
        if rule:
            body["metadata"]["labels"]["app"] = rule
        if rule in ("apart", "near"):
            term = {"labelSelector": {"matchLabels": {"app": rule}}, "topologyKey": HOST if rule == "apart" else ZONE}
            side = "podAntiAffinity" if rule == "apart" else "podAffinity"
            body["spec"]["affinity"] = {side: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        elif rule == "spread":
            body["spec"]["topologySpreadConstraints"] = [
                {
                    "maxSkew": self._sim.choose("skew", (1, 2)),
                    "topologyKey": ZONE,
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": {"app": "spread"}},
                }
            ]
        return body

    async def _create(self) -> None:
        await self._client.create(POD, self.body(self._sim.choose("pod", PODS)))

    async def _burst(self) -> None:
        """Several at once, for both names: they race for the same nodes."""
        names = PODS[self._sim.choose_int("from pod", 0, 4) :][:4]
        await asyncio.gather(*(self._client.create(POD, self.body(name)) for name in names), return_exceptions=True)

    async def _replace(self) -> None:
        """Another pod under the same name, at once."""
        found = await self._client.get(Key("Pod", "default", self._sim.choose("pod", PODS)))
        await self._remove(found)
        await self._client.create(POD, self.body(found.key.name))
        self._sim.sometimes("a namesake took a pod's place")

    async def ambush(self) -> None:
        """Wait for a bind that is on its way, and act before it arrives."""
        life = await self._town.wait_bind()
        if life is None:
            return
        what = self._sim.choose("ambush", ("replace", "replace", "depose", "stop"))
        if what == "stop":
            life.wire.stop_the_host()
        elif what == "depose":
            await self._take_lease(life.scheduler.name)
        else:
            key = self._sim.choose("whom", tuple(life.wire.binds_out))
            await self._town.cluster.authority.delete(key, DeleteOptions(grace_s=0))
            await self._town.cluster.authority.create(POD, self.body(key.name))
            self._sim.sometimes("a namesake took a pod's place")

    async def _delete(self) -> None:
        await self._remove(await self._client.get(Key("Pod", "default", self._sim.choose("pod", (*PODS, *GANG)))))

    async def _remove(self, found: Object) -> None:
        """By force; whether the agent confirms that nothing runs any more is another question."""
        await self._client.delete(found.key, DeleteOptions(uid=found.uid, grace_s=0))
        if self._sim.choose("confirmed", (True, True, False)):
            await confirm(self._client, found.view.spec.node_name, found.uid)

    async def _gang(self) -> None:
        for name in GANG:
            await self._client.create(POD, self.body(name))

    async def _end(self) -> None:
        key = Key("Pod", "default", self._sim.choose("pod", PODS))
        await self._client.patch(key, {"status": {"phase": "Succeeded"}}, subresource="status")

    async def _quota(self) -> None:
        if await self._client.find(QUOTA) is None:
            await self._client.create(ZONE_QUOTA, zone_quota(zone_a={"cpu": "800m"}, zone_b={"cpu": "2"}))
        elif self._sim.choose("what becomes of the quota", ("change", "delete")) == "delete":
            await self._client.delete(QUOTA)
        else:
            hard = {"cpu": self._sim.choose("zone quota", ("1500m", "800m", "400m"))}
            await self._client.patch(QUOTA, {"spec": {"zones": {"zone-a": {"hard": hard}}}})

    async def _resize(self) -> None:
        key = Key("Node", "", self._sim.choose("node", NODES))
        cpu = self._sim.choose("cpu of node", ("1500m", "1", "500m"))
        await self._client.patch(key, {"status": {"allocatable": {"cpu": cpu}}}, subresource="status")

    async def _node(self) -> None:
        name = self._sim.choose("node", NODES)
        found = await self._client.find(Key("Node", "", name))
        if found is not None:
            await self._client.delete(found.key, DeleteOptions(uid=found.uid))
            if not self._sim.choose("it comes back at once", (True, False)):
                return
            self._sim.sometimes("a node was replaced under its name")
        await self._client.create(NODE, node(name, zone=ZONES[name], cpu="1500m"))

    async def _relabel(self) -> None:
        """A pod is of another kind from now on: rules that were about it are not, and others are."""
        key = Key("Pod", "default", self._sim.choose("pod", PODS))
        await self._client.patch(key, {"metadata": {"labels": {"app": self._sim.choose("app", ("apart", "web"))}}})

    async def _move(self) -> None:
        """A node is of another zone from now on, and whatever runs there with it."""
        key = Key("Node", "", self._sim.choose("node", NODES))
        zone = self._sim.choose("zone", ("zone-a", "zone-b"))
        await self._client.patch(key, {"metadata": {"labels": {ZONE: zone}}})

    async def _depose(self) -> None:
        await self._take_lease(self._sim.choose("whom", ("default-scheduler", OTHER)))

    async def _take_lease(self, name: str) -> None:
        """From its holder, who does not know it yet."""
        key = Key("Lease.coordination.k8s.io", "kube-system", name)
        await self._town.cluster.authority.patch(key, {"spec": {"holderIdentity": ""}})

    async def _cordon(self) -> None:
        key = Key("Node", "", self._sim.choose("node", NODES))
        found = await self._client.get(key)
        await self._client.patch(key, {"spec": {"unschedulable": not found.view.spec.unschedulable}})


async def confirm(client: Any, node_name: str, uid: str) -> None:
    if node_name:
        owner = await client.get(Key("Node", "", node_name))
        await client.confirm_ended(node=node_name, node_uid=owner.uid, pod_uid=uid)


# -- the end ---------------------------------------------------------------------------------------


def could_be_bound(state: State) -> list[Key]:
    """Pods that wait though some node would take them, by the rules of the bind and by those about other pods."""
    nodes, ledgers = state.of("Node"), state.live_ledgers()
    gangs = [found for found in state.of("Pod").values() if found.key.name in GANG]
    left = []
    for found in state.of("Pod").values():
        view = found.view
        if view.spec.node_name or view.finished or view.terminating:
            continue
        if found.key.name in GANG and len(gangs) < len(GANG):
            continue
        for name, owner in nodes.items():
            ledger = ledgers.get(name) or Ledger(name, owner.uid)
            if first_misfit(view, owner.view, ledger) is None and not _quota_short(state, owner, pod_requests(view)):
                if found.key.name in GANG and not _both_fit(state, gangs):
                    continue
                if _ruled_out(state, found, owner):
                    continue
                if _free_of_the_past(state, name, view, owner):
                    left.append(found.key)
    return left


def _ruled_out(state: State, waiting: Object, owner: Object) -> bool:
    """Whether a rule about other pods keeps a pod off a node, by the plain scheduler, on what is committed."""
    pods = {
        found.uid: plain.Placed(found.uid, found.view.spec.node_name, found.view)
        for found in state.of("Pod").values()
        if found.view.spec.node_name and not found.view.finished
    }
    cluster = plain.Cluster({name: found.view for name, found in state.of("Node").items()}, pods)
    question, home = plain.Question(waiting.view), owner.view
    return any(
        list(failed)
        for failed in (
            plain.spread(0, cluster, question, home),
            plain.pod_affinity(cluster, question, home),
            plain.own_anti_affinity(0, cluster, question, home),
            plain.anti_affinity_of_others(HOST, cluster, question, home),
        )
    )


def _both_fit(state: State, gangs: list[Object]) -> bool:
    """A gang fits surely if some node takes all of it."""
    need = add(*(pod_requests(each.view) for each in gangs if not each.view.spec.node_name))
    return any(
        not shortages(need, _used(state, name), node_allocatable(owner.view))
        and not owner.view.spec.unschedulable
        and not _quota_short(state, owner, need)
        for name, owner in state.of("Node").items()
    )


def _free_of_the_past(state: State, name: str, view: Any, owner: Object) -> bool:
    """Pods of an earlier incarnation still count for the scheduler, until somebody removes them."""
    return not shortages(pod_requests(view), _used(state, name), node_allocatable(owner.view))


def _used(state: State, name: str) -> Units:
    ledger = state.live_ledgers().get(name)
    held = dict(ledger.claims) if ledger is not None else {}
    asked = [claim.requests for claim in held.values()]
    for found in state.of("Pod").values():
        if found.view.spec.node_name == name and not found.view.finished and found.uid not in held:
            asked.append(pod_requests(found.view))
    return add(*asked)


def _quota_short(state: State, owner: Object, need: Units) -> bool:
    zone = owner.metadata.labels.get("topology.kubernetes.io/zone", "")
    for quota in state.of("ZoneQuota.kedge.dev").values():
        limit = quota.view.spec.zones.get(zone)
        if limit is None:
            continue
        hard = to_units(limit.hard)
        claims = (c for ledger in state.ledgers().values() for c in ledger.claims.values() if c.zone == zone)
        used = add(*(claim.requests for claim in claims))
        if shortages({r: need[r] for r in need.keys() & hard.keys()}, used, hard):
            return True
    return False


async def run_agents(town: Town) -> None:
    """Stands in for node agents: what was asked to leave ends, some time later."""
    authority, sim = town.cluster.authority, town.sim
    while True:
        await asyncio.sleep(sim.choose("agents look after", (1.0, 3.0)))
        for found in State(town.cluster.store).of("Pod").values():
            if found.view.terminating:
                try:
                    await authority.delete(found.key, DeleteOptions(uid=found.uid, grace_s=0))
                    sim.sometimes("a victim left", found.view.spec.node_name)
                    await confirm(authority, found.view.spec.node_name, found.uid)
                except OperatingError:
                    continue


async def settle(town: Town) -> None:
    """No more faults: whatever fits is bound, and then nobody writes."""
    sim, cluster = town.sim, town.cluster
    sim.heal()
    for name in NODES:  # what left by force and was not confirmed: now its agent speaks
        ledger = State(cluster.store).live_ledgers().get(name)
        pods = {found.uid for found in State(cluster.store).of("Pod").values()}
        for uid, claim in () if ledger is None else tuple(ledger.claims.items()):
            if uid not in pods and claim.state is ClaimState.BOUND and sim.choose("confirmed late", (True, False)):
                await confirm(cluster.authority, name, uid)
    for _ in range(40):
        before = written(cluster)
        await asyncio.sleep(6)
        moved, left = written(cluster) - before, could_be_bound(State(cluster.store))
        if not moved and not left:
            return
    if left:
        sim.violate("what fits is bound", f"{left} could be bound, and nobody does it")
    sim.violate("then silence", f"writes after everything was done: {sorted(map(str, moved))}")


def written(cluster: Cluster) -> set[tuple[Key, int]]:
    theirs = ("Lease.coordination.k8s.io", "Fence.kedge.dev", "Operation.kedge.dev")
    return {(entry.key, entry.modified) for entry in cluster.store.entries() if entry.key.kind not in theirs}
