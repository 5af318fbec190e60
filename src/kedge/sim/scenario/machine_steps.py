"""The verbs of scenario steps that place faults on machines: power, links, images, processes and probes.

`fault_steps` has those of components and servers. A fault on images and processes strikes at the points at which a
swarm's would, as often as the point is passed.
"""

from __future__ import annotations

from typing import Any

from kedge.api.views import PodView
from kedge.api.wellknown import POD_KIND
from kedge.sim.cluster.agents import MachineFault
from kedge.sim.cluster.fault_points import PROBE, PULL, START, STOP
from kedge.sim.scenario.document import YamlNode, number, seconds, text
from kedge.sim.scenario.predicates import key_named
from kedge.sim.scenario.steps import ScenarioState, StepFailed, fault_verb, may, must, quantity

LASTING_S = 60.0
"""How long a fault of images and processes lasts if the step names no time."""


def pods_named(part: YamlNode) -> str:
    """A pattern of pods, such as `Pod/web-*`, as `namespace/name`."""
    key = key_named(part)
    if key.kind != POD_KIND:
        part.fail(f"expected pods, such as Pod/web-*, got {part.value!r}")
    return f"{key.namespace}/{key.name}"


@fault_verb(
    "partition node",
    "a node is cut off from every server",
    lasts=True,
    sole="node",
    node=must(text),
    lasting=may(seconds, 0.0),
)
async def partition_node(state: ScenarioState, args: Any) -> None:
    """Cut a node off from every server. Its processes keep running."""
    sim = state.cluster.sim
    cut = sim.faults.partition(state.node(args["node"]).host, state.cluster.servers)
    if args["lasting"]:
        state.later(args["lasting"], cut.heal)


@fault_verb(
    "lose node",
    "a machine loses power",
    lasts=True,
    sole="node",
    node=may(text, ""),
    of=may(key_named, None),
    lasting=may(seconds, 0.0),
)
async def lose_node(state: ScenarioState, args: Any) -> None:
    """Cut the power of a machine: its agent and processes end. With `of`, a machine that runs the workload."""
    node = state.node(args["node"]) if args["node"] else state.node_of(args["of"])
    node.power_off()
    if args["lasting"]:
        state.later(args["lasting"], lambda: None if node.host.up else node.power_on())


@fault_verb(
    "pause node",
    "a machine stands still, and then goes on",
    lasts=True,
    sole="node",
    node=must(text),
    lasting=may(seconds, 0.0),
)
async def pause_node(state: ScenarioState, args: Any) -> None:
    """Stop an agent and its processes in the middle of a step, as a hypervisor does. Nothing of them is lost."""
    node = state.node(args["node"])
    node.host.pause()
    if args["lasting"]:
        state.later(args["lasting"], node.host.resume)


@fault_verb("kill process", "a process of a ready replica is killed", sole="of", of=must(key_named))
async def kill_process(state: ScenarioState, args: Any) -> None:
    """Kill the process of a ready replica of a workload, the first by name."""
    pods = sorted(state.ready_pods(args["of"]), key=lambda pod: pod.name)
    if not pods:
        raise StepFailed(f"{args['of']} has no ready replica: wait for one with `when`")
    state.node(pods[0].spec.node_name).driver.crash_process(pods[0].uid, exit_code=137)


@fault_verb("end process", "the processes of a pod end", of=must(key_named), code=may(number, 1))
async def end_process(state: ScenarioState, args: Any) -> None:
    """End the processes of a pod with an exit code, wherever it runs."""
    pod = state.cluster.find(args["of"])
    name = pod.as_view(PodView).spec.node_name if pod is not None and pod.key.kind == POD_KIND else ""
    if pod is None or not name:
        raise StepFailed(f"{args['of']} runs nowhere: wait for it with `when`")
    state.node(name).driver.crash_process(pod.uid, exit_code=args["code"])


@fault_verb("resize node", "the allocatable CPU of a node changes", lasts=True, node=must(text), cpu=must(quantity))
async def resize_node(state: ScenarioState, args: Any) -> None:
    """Change the CPU that a node offers, whatever runs there. It is restored when faults stop."""
    node = state.resized[args["node"]] = state.node(args["node"])
    patch = {"status": {"allocatable": {"cpu": str(args["cpu"])}}}
    await state.cluster.authority.patch(node.key, patch, subresource="status")


# -- images and processes ----------------------------------------------------------------------------


@fault_verb(
    "slow pull",
    "an image pull takes long",
    by=must(seconds),
    image=may(text, "*"),
    node=may(text, ""),
    lasting=may(seconds, LASTING_S),
)
async def slow_pull(state: ScenarioState, args: Any) -> None:
    """A pull that begins within `lasting` takes `by`. A node that has the image does not pull it."""
    _place(state, args, PULL, "slow", args["image"], lasts_s=args["by"])


@fault_verb(
    "fail pull", "an image pull fails", image=may(text, "*"), node=may(text, ""), lasting=may(seconds, LASTING_S)
)
async def fail_pull(state: ScenarioState, args: Any) -> None:
    _place(state, args, PULL, "fail", args["image"])


@fault_verb(
    "slow start",
    "a container takes long to start",
    of=must(pods_named),
    by=must(seconds),
    node=may(text, ""),
    lasting=may(seconds, LASTING_S),
)
async def slow_start(state: ScenarioState, args: Any) -> None:
    _place(state, args, START, "slow", args["of"], lasts_s=args["by"])


@fault_verb(
    "fail probe",
    "probes of pods fail",
    sole="of",
    of=must(pods_named),
    node=may(text, ""),
    lasting=may(seconds, LASTING_S),
)
async def fail_probe(state: ScenarioState, args: Any) -> None:
    """Every probe of these pods fails for a while: startup, readiness and liveness."""
    _place(state, args, PROBE, "fail", args["of"])


@fault_verb(
    "ignore stop",
    "processes ignore the stop signal until they are killed",
    sole="of",
    of=must(pods_named),
    node=may(text, ""),
    lasting=may(seconds, LASTING_S),
)
async def ignore_stop(state: ScenarioState, args: Any) -> None:
    _place(state, args, STOP, "ignore", args["of"])


@fault_verb(
    "outlive kill",
    "processes outlive even the kill for a while",
    lasts=True,
    of=must(pods_named),
    by=must(seconds),
    node=may(text, ""),
    lasting=may(seconds, LASTING_S),
)
async def outlive_kill(state: ScenarioState, args: Any) -> None:
    """A process that is stopped within `lasting` ends `by` after its grace, as one with blocked I/O does."""
    _place(state, args, STOP, "zombie", args["of"], lasts_s=args["by"])


def _place(state: ScenarioState, args: Any, point: str, kind: str, about: str, *, lasts_s: float = 0.0) -> None:
    until_s = state.cluster.sim.now_s + args["lasting"]
    fault = MachineFault(point, kind, about, until_s, state.cluster.script.strike, lasts_s)
    state.place(fault, args["node"])
