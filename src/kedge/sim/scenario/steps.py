"""The verbs of scenario steps: the arguments and the action of each.

Arguments are checked when the file is read; verbs act on a `ScenarioState`. A new verb is one function here, or in
`fault_steps` or `machine_steps`, and one line in `docs/scenarios.md`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kedge.api.kinds import KINDS, Kind
from kedge.api.quantity import NANO, Quantity, parse_quantity
from kedge.api.views import PodView
from kedge.api.wellknown import SCHEDULING_POLICY_KIND
from kedge.errors import KedgeError
from kedge.keys import Key
from kedge.runtime.controller import Controller
from kedge.runtime.lease import Leadership
from kedge.scheduler import Scheduler
from kedge.sim.cluster import Node
from kedge.sim.cluster.admission import PolicyPlan, chain_of
from kedge.sim.cluster.agents import MachineFault
from kedge.sim.cluster.users import User
from kedge.sim.kernel import FAULTS, Fault, Host, Placement
from kedge.sim.scenario.components import REPAIR, controller_maker
from kedge.sim.scenario.document import (
    Fields,
    YamlNode,
    flag,
    items,
    mapping,
    number,
    plain_mapping,
    suggest,
    text,
    texts,
)
from kedge.sim.scenario.predicates import key_named, kind_named, ready_pods
from kedge.sim.scenario.scripted_faults import WRITES, ScriptedCluster, hosts_of


class StepFailed(KedgeError):
    """A step cannot be done in this cluster. Correct the scenario file."""


@dataclass
class ScenarioState:
    """The running scenario that steps act on."""

    cluster: ScriptedCluster
    user: User
    policies: dict[Key, dict[str, Mapping[str, Any]]] = field(default_factory=dict)
    """By policy: the spec of each version that was in force."""
    loads: dict[Key, Quantity] = field(default_factory=dict)
    """By workload: the CPU that all its replicas use together."""
    resized: dict[str, Node] = field(default_factory=dict)
    """Nodes that get their size back when faults stop."""
    scans: int = 0
    admissions: int = 0
    """How often the admission policies have changed."""

    def remember_policies(self) -> None:
        for found in self.cluster.all(SCHEDULING_POLICY_KIND):
            spec = found.edit()["spec"]
            self.policies.setdefault(found.key, {}).setdefault(str(spec.get("version", "")), spec)

    def node(self, name: str) -> Node:
        node = self.cluster.nodes.get(name)
        if node is None:
            raise StepFailed(f"there is no node {name}: the scenario has {', '.join(self.cluster.nodes)}")
        return node

    def ready_pods(self, workload: Key | None) -> list[PodView]:
        found = self.cluster.find(workload) if workload is not None else None
        if found is None:
            raise StepFailed(f"{workload} does not exist: name another workload")
        return ready_pods(self.cluster, found)

    def load_of(self, pod_uid: str) -> float:
        """The cores that a pod keeps busy: if it is ready, its share of the load of its workload."""
        busy = 0.0
        for workload, load in self.loads.items():
            there = self.cluster.find(workload) is not None
            pods = [pod.uid for pod in self.ready_pods(workload)] if there else []
            if pod_uid in pods:
                busy += load.nano / NANO / len(pods)
        return busy

    def node_of(self, workload: Key | None) -> Node:
        """The first node by name that runs a ready replica of a workload."""
        on = [pod.spec.node_name for pod in self.ready_pods(workload)]
        if not on:
            raise StepFailed(f"no node runs a ready replica of {workload}: wait for one with `when`")
        return self.node(min(on))

    def later(self, after_s: float, action: Callable[[], object]) -> None:
        world = self.cluster.sim.world
        world.loop.call_later(after_s, action, context=world.context)

    def leader(self, component: str) -> tuple[Host, Leadership]:
        """The host that holds the lease of a scheduler or controller, and its term."""
        for process in reversed(self.cluster.processes):
            if not process.host.up or any(p.host is process.host for p in self._later_processes(process)):
                continue
            for each in process.components:
                if not isinstance(each, Controller | Scheduler) or each.name != component:
                    continue
                if each.leadership is not None:
                    return process.host, each.leadership
        raise StepFailed(f"{component} has no leader now: wait for one, or correct the name")

    def hosts(self, component: str) -> Sequence[Host]:
        """The hosts of a component, of a server or of a node."""
        found = hosts_of(self.cluster, component)
        if not found:
            raise StepFailed(f"no component {component} runs here: correct the name")
        return found

    def place(self, fault: MachineFault, node: str) -> None:
        """Place a fault on the machine of a node; without a name, on every machine."""
        for each in [self.node(node)] if node else self.cluster.nodes.values():
            each.driver.place(fault)

    def _later_processes(self, process: Any) -> list[Any]:
        return self.cluster.processes[self.cluster.processes.index(process) + 1 :]


Act = Callable[[ScenarioState, Any], Awaitable[None]]
Read = Callable[[YamlNode], Any]
NEEDED = object()


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb of steps."""

    name: str
    act: Act
    sole: str
    """The argument that a scalar value sets; `whole` if the whole value is the argument."""
    arguments: Mapping[str, tuple[Read, Any]]

    def read(self, part: YamlNode) -> Mapping[str, Any]:
        """The arguments, checked."""
        if self.sole == "whole" or (self.sole and not isinstance(part.value, dict)):
            name = self.sole
            given = {name: self.arguments[name][0](part)}
            for other, (_, default) in self.arguments.items():
                if other != name and default is NEEDED:
                    part.fail(f"`{self.name}` lacks `{other}`: write `{self.name}: {{{name}: ..., {other}: ...}}`")
                given.setdefault(other, default)
            return given
        fields = Fields(part, f"`{self.name}`")
        found = {
            name: fields.need(name, read) if default is NEEDED else fields.take(name, read, default)
            for name, (read, default) in self.arguments.items()
        }
        fields.done()
        return found

    def summary(self, args: Mapping[str, Any]) -> str:
        if self.sole == "whole" and isinstance(body := args["whole"], dict):
            return f"{self.name} {body['kind']}/{body['metadata']['name']}"
        shown = [
            _format(value) if name == self.sole else f"{name} {_format(value)}"
            for name, value in args.items()
            if value is not self.arguments[name][1] and value not in ("", ())
        ]
        return " ".join([self.name, *shown])


def _format(value: Any) -> str:
    match value:
        case float():
            return f"{value:g}s"
        case Key():
            return str(value)
        case tuple() if all(isinstance(each, str) for each in value):
            return ", ".join(value)
        case Kind():
            return value.key_kind
        case Mapping():
            return json.dumps(value)
        case [PolicyPlan(), *_]:
            return ", ".join(each.name for each in value)
        case bool():
            return "commit" if value else "nothing"
    return str(value)


VERBS: dict[str, Verb] = {}
"""Every verb of a step, by name."""


SCENARIO_STEP = "step of scenario"
"""The fault point of faults that a step places."""


def verb(name: str, *, sole: str = "", **arguments: tuple[Read, Any]) -> Callable[[Act], Act]:
    def register(act: Act) -> Act:
        VERBS[name] = Verb(name, act, sole, arguments)
        return act

    return register


def fault_verb(
    name: str, effect: str, *, sole: str = "", lasts: bool = False, **arguments: tuple[Read, Any]
) -> Callable[[Act], Act]:
    """Register a verb that places a fault, and declare the fault."""
    FAULTS.declare(Fault(name, SCENARIO_STEP, effect, lasts=lasts, rates=(), plans=(Placement.SCENARIO,)))
    return verb(name, sole=sole, **arguments)


def must(read: Read) -> tuple[Read, Any]:
    return read, NEEDED


def may(read: Read, default: Any) -> tuple[Read, Any]:
    return read, default


def _manifest(part: YamlNode) -> dict[str, Any]:
    from kedge.sim.scenario.schema import manifest

    return manifest(part)


def write_verb(part: YamlNode) -> str:
    if text(part) not in WRITES:
        part.fail(f"`{part.value}` is not a write{suggest(part.value, WRITES)}")
    return text(part)


def quantity(part: YamlNode) -> Quantity:
    try:
        return parse_quantity(str(part.value))
    except ValueError as error:
        part.fail(f"{error}: write an amount, such as 4 or 500m")


def moment(part: YamlNode) -> bool:
    if part.value not in ("commit", "nothing"):
        part.fail("expected `commit` (the reply is lost) or `nothing` (the request is lost)")
    return bool(part.value == "commit")


def _copies(part: YamlNode) -> tuple[str, ...]:
    return texts(part) if isinstance(part.value, list) else (text(part),)


def policies_named(part: YamlNode) -> tuple[PolicyPlan, ...]:
    """Admission policies; an empty list removes them."""
    return tuple(_policy(each) for each in items(part))


def _policy(part: YamlNode) -> PolicyPlan:
    fields = Fields(part, "an admission policy")
    name = fields.need("name", text)
    kinds = fields.need("kinds", lambda part: tuple(kind_named(each).key_kind for each in items(part)))
    merge, where = plain_mapping(fields, "merge"), plain_mapping(fields, "where")
    refuse = fields.take("refuse", text, "")
    verbs: tuple[str, ...] = ("create", "update")
    if "on" in fields:
        verbs = fields.need("on", lambda part: tuple(_admitted_verb(each) for each in items(part)))
    fields.done()
    if bool(merge) == bool(refuse):
        part.fail("an admission policy has either `merge` or `refuse`: keep one")
    return PolicyPlan(name, kinds, merge, refuse, where, verbs)


def _admitted_verb(part: YamlNode) -> str:
    if text(part) not in ("create", "update", "delete"):
        part.fail(f"`{part.value}` is not a verb of admission: write create, update or delete")
    return text(part)


def namespace_of(body: Mapping[str, Any]) -> str:
    """Namespace of a manifest: `default` if it has none, empty for a cluster-scoped kind."""
    kind = KINDS.of_api(body["apiVersion"], body["kind"])
    return body["metadata"].get("namespace", "default") if kind.namespaced else ""


# -- users -------------------------------------------------------------------------------------------


@verb("admit", sole="whole", whole=must(_manifest))
async def admit(state: ScenarioState, args: Any) -> None:
    await state.user.apply(args["whole"], namespace=namespace_of(args["whole"]))
    state.remember_policies()


@verb("scale", workload=must(key_named), to=must(number))
async def scale(state: ScenarioState, args: Any) -> None:
    await state.user.scale(args["workload"], args["to"])


@verb("roll out", workload=must(key_named), image=must(text))
async def roll_out(state: ScenarioState, args: Any) -> None:
    await state.user.roll_out(args["workload"], args["image"])


@verb("roll back", sole="workload", workload=must(key_named))
async def roll_back(state: ScenarioState, args: Any) -> None:
    if await state.user.roll_back(args["workload"]) is None:
        raise StepFailed(f"{args['workload']} has no previous revision: roll it out first")


@verb("load", workload=must(key_named), cpu=must(quantity))
async def load(state: ScenarioState, args: Any) -> None:
    """From now on the ready replicas share this load; nodes report it with their heartbeats."""
    state.ready_pods(args["workload"])
    state.loads[args["workload"]] = args["cpu"]
    for node in state.cluster.nodes.values():
        node.driver.set_load(state.load_of)


@verb("roll back policy", policy=must(text), to=must(text))
async def roll_back_policy(state: ScenarioState, args: Any) -> None:
    """Restore the spec of an earlier version of a policy."""
    key = Key(SCHEDULING_POLICY_KIND, "", args["policy"])
    versions = state.policies.get(key, {})
    if args["to"] not in versions:
        raise StepFailed(f"{key} never had version {args['to']}: it had {', '.join(versions) or 'none'}")
    gone = {name: None for version in versions.values() for name in version}
    await state.user.patch(key, {"spec": {**gone, **versions[args["to"]]}})


@verb("change", object=must(key_named), patch=must(mapping), subresource=may(text, ""))
async def change(state: ScenarioState, args: Any) -> None:
    await state.user.patch(args["object"], args["patch"], subresource=args["subresource"])
    state.remember_policies()


@verb("delete", sole="object", object=must(key_named), force=may(flag, False))  # noqa: FBT003
async def delete(state: ScenarioState, args: Any) -> None:
    await state.user.delete(args["object"], force=args["force"])


@verb("change admission", policies=must(policies_named), server=may(text, ""))
async def change_admission(state: ScenarioState, args: Any) -> None:
    """Replace the admission policies, on every server or on the one that is named."""
    servers = [host.name for host in state.cluster.servers]
    if args["server"] and args["server"] not in servers:
        raise StepFailed(f"there is no server {args['server']}: the scenario has {', '.join(servers)}")
    state.admissions += 1
    chain = chain_of(args["policies"], revision=state.admissions)
    state.cluster.admit_by(chain, servers=[args["server"]] if args["server"] else ())


@verb("cordon", sole="node", node=must(text))
async def cordon(state: ScenarioState, args: Any) -> None:
    await state.user.cordon(state.node(args["node"]).name)


@verb("uncordon", sole="node", node=must(text))
async def uncordon(state: ScenarioState, args: Any) -> None:
    await state.user.cordon(state.node(args["node"]).name, cordoned=False)


# -- machines and components -----------------------------------------------------------------------


@verb("bring back node", sole="node", node=must(text))
async def bring_back_node(state: ScenarioState, args: Any) -> None:
    node = state.node(args["node"])
    if not node.host.up:
        node.power_on()


@verb("repair scans", sole="for", **{"for": may(_copies, REPAIR)})
async def repair_scans(state: ScenarioState, args: Any) -> None:
    """Start the repair controllers: the first scan covers every object, and they keep running."""
    for each in args["for"]:
        if each not in REPAIR:
            raise StepFailed(f"there is no repair controller {each!r}: use {', '.join(REPAIR)}")
    state.scans += 1
    state.cluster.boot(f"repair-{state.scans}", [controller_maker(name) for name in args["for"]])


@verb("note", sole="words", words=must(text))
async def note(state: ScenarioState, args: Any) -> None:
    """Add a line to the timeline."""


__all__ = [
    "VERBS",
    "ScenarioState",
    "StepFailed",
    "Verb",
    "fault_verb",
    "may",
    "moment",
    "must",
    "quantity",
    "write_verb",
]
