"""The verbs of scenario steps on a running cluster of `kedge up`. The words are those of `sim.scenario`.

`kedge up` runs every component in one process, so `restart` of any component kills that process. A verb without an
entry here works in simulations only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kedge.cli.live_faults.fault_socket import BreakWatches
from kedge.cli.live_faults.links import LinkCut, LinkDelay, LinkLateWatch, LinkLostReply, LinkStall
from kedge.cli.live_faults.live_state import LiveState
from kedge.sim.scenario.predicates import ready_pods
from kedge.sim.scenario.steps import StepFailed, namespace_of

LiveAct = Callable[[LiveState, Any], Awaitable[None]]

LIVE_VERBS: dict[str, LiveAct] = {}
"""Every verb that works on a running cluster, by name."""


def live(name: str) -> Callable[[LiveAct], LiveAct]:
    def register(act: LiveAct) -> LiveAct:
        LIVE_VERBS[name] = act
        return act

    return register


# -- users -----------------------------------------------------------------------------------------


@live("admit")
async def admit(state: LiveState, args: Any) -> None:
    await state.user.apply(args["whole"], namespace=namespace_of(args["whole"]))


@live("scale")
async def scale(state: LiveState, args: Any) -> None:
    await state.user.scale(args["workload"], args["to"])


@live("roll out")
async def roll_out(state: LiveState, args: Any) -> None:
    await state.user.roll_out(args["workload"], args["image"])


@live("roll back")
async def roll_back(state: LiveState, args: Any) -> None:
    if await state.user.roll_back(args["workload"]) is None:
        raise StepFailed(f"{args['workload']} has no earlier revision here: roll it out before")


@live("change")
async def change(state: LiveState, args: Any) -> None:
    await state.user.patch(args["object"], args["patch"], subresource=args["subresource"])


@live("delete")
async def delete(state: LiveState, args: Any) -> None:
    await state.user.delete(args["object"], force=args["force"])


@live("cordon")
async def cordon(state: LiveState, args: Any) -> None:
    await state.user.cordon(state.node(args["node"]))


@live("uncordon")
async def uncordon(state: LiveState, args: Any) -> None:
    await state.user.cordon(state.node(args["node"]), cordoned=False)


@live("note")
async def note(state: LiveState, args: Any) -> None:
    del state, args


# -- links -----------------------------------------------------------------------------------------


@live("partition node")
async def partition_node(state: LiveState, args: Any) -> None:
    node = state.node(args["node"])
    end = await state.place(node, LinkCut())
    state.begin(f"{node} is cut off from the API", end, lasting_s=args["lasting"], node=node)


@live("delay watch")
async def delay_watch(state: LiveState, args: Any) -> None:
    kind, to = args["of"].key_kind, args["to"]
    end = await state.place(to, LinkLateWatch(kind))
    state.begin(f"watches of {kind} to {to or 'every component'} are late", end, lasting_s=args["by"])


@live("break watch")
async def break_watch(state: LiveState, args: Any) -> None:
    kind = args["of"].key_kind if args["of"] is not None else ""
    broken = await state.links.ask(BreakWatches(args["to"], kind))
    state.strike(f"{broken} watches of {kind or 'every kind'} to {args['to'] or 'every component'} break")


@live("delay requests")
async def delay_requests(state: LiveState, args: Any) -> None:
    to, by_s = args["to"], args["by"]
    end = await state.place(to, LinkDelay(by_s))
    state.begin(f"requests of {to or 'every component'} take {by_s:g}s longer", end, lasting_s=args["lasting"])


@live("lose reply")
async def lose_reply(state: LiveState, args: Any) -> None:
    key = args["on"]
    names = (args["to"], key.kind, key.namespace, key.name)
    end = await state.place(args["by"], LinkLostReply(*names, args["after"], args["timeout"], args["times"]))
    state.begin(f"the reply to {args['to']} {key} is lost {args['times']} times", end, lasting_s=0.0)


# -- machines and components -----------------------------------------------------------------------


@live("lose node")
async def lose_node(state: LiveState, args: Any) -> None:
    """Cut a node off and kill its keeper and every process: seen from outside, the machine has lost its power."""
    node = state.node(args["node"]) if args["node"] else _node_of(state, args["of"])
    end = await state.place(node, LinkCut())
    killed = state.processes.kill(state.processes.of_node(node))
    state.begin(f"{node} is lost with {killed} processes", end, lasting_s=args["lasting"], node=node)


@live("bring back node")
async def bring_back_node(state: LiveState, args: Any) -> None:
    for fault in [each for each in state.faults if each.node == state.node(args["node"])]:
        await state.end(fault)


@live("pause node")
async def pause_node(state: LiveState, args: Any) -> None:
    """SIGSTOP the keeper and every process of a node; the requests of its agent stand still."""
    node = state.node(args["node"])
    end_stall = await state.place(node, LinkStall())
    entries = state.processes.of_node(node)
    stopped = state.processes.stop(entries)

    async def end() -> None:
        state.processes.resume(entries)
        await end_stall()

    state.begin(f"{node} stands still with {stopped} processes", end, lasting_s=args["lasting"], node=node)


@live("kill process")
async def kill_process(state: LiveState, args: Any) -> None:
    pods = sorted(_ready(state, args["of"]), key=lambda pod: pod.name)
    killed = state.processes.kill(state.processes.of_pod(pods[0].uid))
    state.strike(f"{killed} processes of pod {pods[0].namespace}/{pods[0].name} are killed")


@live("restart")
async def restart(state: LiveState, args: Any) -> None:
    if args["component"] in state.nodes:
        raise StepFailed(f"{args['component']} is a node: use `lose node` with `lasting`")
    await state.restart_up(args["down"])


@live("restart leader")
async def restart_leader(state: LiveState, args: Any) -> None:
    await state.restart_up(args["down"])


def _ready(state: LiveState, workload: Any) -> list[Any]:
    found = state.view.find(workload) if workload is not None else None
    if found is None:
        raise StepFailed(f"{workload} is not in this cluster: admit it first, or name another workload")
    pods = ready_pods(state.view, found)
    if not pods:
        raise StepFailed(f"no replica of {workload} is ready: wait for one with `when`")
    return pods


def _node_of(state: LiveState, workload: Any) -> str:
    return state.node(min(pod.spec.node_name for pod in _ready(state, workload)))
