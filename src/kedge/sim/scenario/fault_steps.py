"""The verbs of scenario steps that place faults on links, components and servers.

`machine_steps` has those of machines, `steps` the others. `kedge chaos` places some of them on a cluster of real
processes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kedge.api.wellknown import LEASE_KIND
from kedge.sim.kernel import Host
from kedge.sim.scenario.document import number, rate, seconds, text
from kedge.sim.scenario.predicates import key_named, kind_named
from kedge.sim.scenario.scripted_faults import Conflicts, LateWatch, LostReply, SlowRequests, StaleLists
from kedge.sim.scenario.steps import ScenarioState, StepFailed, fault_verb, may, moment, must, write_verb

# -- links -------------------------------------------------------------------------------------------


@fault_verb(
    "delay watch",
    "events of a watch arrive late, in order",
    of=must(kind_named),
    by=must(seconds),
    to=may(text, ""),
)
async def delay_watch(state: ScenarioState, args: Any) -> None:
    """Hold back the events of a watch for a while; then deliver them in order."""
    until_s = state.cluster.sim.now_s + args["by"]
    state.cluster.script.late.append(LateWatch(args["of"].key_kind, args["to"], until_s))


@fault_verb(
    "break watch",
    "a watch breaks before its next event",
    of=may(kind_named, None),
    to=may(text, ""),
)
async def break_watch(state: ScenarioState, args: Any) -> None:
    """Break the open watches of a kind, or of every kind, before their next event. The component resumes them."""
    state.cluster.script.break_watches(args["of"].key_kind if args["of"] is not None else "", args["to"])


@fault_verb(
    "delay requests",
    "requests of a component reach the API late",
    lasts=True,
    by=must(seconds),
    lasting=must(seconds),
    to=may(text, ""),
)
async def delay_requests(state: ScenarioState, args: Any) -> None:
    """Each request to the API takes `by` longer for a while; `to` is a component, else all of them."""
    until_s = state.cluster.sim.now_s + args["lasting"]
    state.cluster.script.slow.append(SlowRequests(args["to"], args["by"], until_s))


@fault_verb(
    "lose reply",
    "the reply to a write, or the request, never arrives",
    to=must(write_verb),
    on=must(key_named),
    by=may(text, ""),
    after=may(moment, True),  # noqa: FBT003
    times=may(number, 1),
    timeout=may(seconds, 1.0),
)
async def lose_reply(state: ScenarioState, args: Any) -> None:
    rule = LostReply(args["to"], args["by"], args["on"], args["after"], args["timeout"], args["times"])
    state.cluster.script.lost.append(rule)


@fault_verb(
    "stall watch",
    "a watch goes silent and never ends",
    lasts=True,
    of=may(kind_named, None),
    to=may(text, ""),
)
async def stall_watch(state: ScenarioState, args: Any) -> None:
    """The open watches deliver nothing from now on, and report no error: their readers must find out."""
    state.cluster.script.break_watches(args["of"].key_kind if args["of"] is not None else "", args["to"], silently=True)


@fault_verb(
    "stale lists",
    "lists of a component come from an old revision",
    lasts=True,
    of=must(kind_named),
    lasting=must(seconds),
    by=may(number, 20),
    to=may(text, ""),
)
async def stale_lists(state: ScenarioState, args: Any) -> None:
    """Lists that fill a cache are `by` revisions old for a while."""
    until_s = state.cluster.sim.now_s + args["lasting"]
    state.cluster.script.stale.append(StaleLists(args["of"].key_kind, args["to"], args["by"], until_s))


@fault_verb(
    "delay status",
    "status writes of a component are applied late",
    lasts=True,
    of=must(kind_named),
    by=must(seconds),
    lasting=must(seconds),
    to=may(text, ""),
)
async def delay_status(state: ScenarioState, args: Any) -> None:
    until_s = state.cluster.sim.now_s + args["lasting"]
    state.cluster.script.slow.append(SlowRequests(args["to"], args["by"], until_s, status_of=args["of"].key_kind))


@fault_verb(
    "conflict",
    "another client changes an object just before a write",
    sole="on",
    on=must(key_named),
    by=may(text, ""),
    times=may(number, 1),
)
async def conflict(state: ScenarioState, args: Any) -> None:
    """The next writes to the object meet a version that they have not read."""
    state.cluster.script.conflicts.append(Conflicts(args["by"], args["on"], args["times"]))


@fault_verb(
    "partition",
    "a component is cut off from every server",
    lasts=True,
    sole="component",
    component=must(text),
    lasting=may(seconds, 0.0),
)
async def partition(state: ScenarioState, args: Any) -> None:
    for host in state.hosts(args["component"]):
        cut = state.cluster.sim.faults.partition(host, state.cluster.servers)
        if args["lasting"]:
            state.later(args["lasting"], cut.heal)


# -- components --------------------------------------------------------------------------------------


@fault_verb(
    "restart leader",
    "the leader crashes, and restarts later",
    lasts=True,
    sole="of",
    of=must(text),
    down=may(seconds, 1.0),
)
async def restart_leader(state: ScenarioState, args: Any) -> None:
    """Crash the leader; it restarts after `down` as a new process with empty caches."""
    _restart_host(state, state.leader(args["of"])[0], args["down"])


@fault_verb(
    "pause leader",
    "the leader stands still, and then goes on",
    lasts=True,
    sole="of",
    of=must(text),
    lasting=may(seconds, 0.0),
)
async def pause_leader(state: ScenarioState, args: Any) -> None:
    """Stop the leader in the middle of a step. Its lease expires, and it goes on without a new look at it."""
    _pause_host(state, state.leader(args["of"])[0], args["lasting"])


@fault_verb("depose leader", "a leader loses its lease without notice", sole="of", of=must(text))
async def depose_leader(state: ScenarioState, args: Any) -> None:
    """Clear the holder of the lease. The leader does not know it yet, so it overlaps with the next one."""
    host, term = state.leader(args["of"])
    lease = term.fence.key._replace(kind=LEASE_KIND)
    state.cluster.script.strike(f"{host.name} loses {lease}")
    await state.cluster.authority.patch(lease, {"spec": {"holderIdentity": ""}})


@fault_verb(
    "restart",
    "every process of a component crashes, and restarts later",
    lasts=True,
    sole="component",
    component=must(text),
    down=may(seconds, 1.0),
)
async def restart(state: ScenarioState, args: Any) -> None:
    for host in state.hosts(args["component"]):
        _restart_host(state, host, args["down"])


@fault_verb(
    "pause",
    "every process of a component stands still, and then goes on",
    lasts=True,
    sole="component",
    component=must(text),
    lasting=may(seconds, 0.0),
)
async def pause(state: ScenarioState, args: Any) -> None:
    for host in state.hosts(args["component"]):
        _pause_host(state, host, args["lasting"])


@fault_verb(
    "slow down",
    "each step of a component takes time",
    lasts=True,
    component=must(text),
    step=must(seconds),
    lasting=may(seconds, 0.0),
)
async def slow_down(state: ScenarioState, args: Any) -> None:
    for host in state.hosts(args["component"]):
        host.slow(args["step"])
        if args["lasting"]:
            state.later(args["lasting"], partial(host.slow, 0.0))


@fault_verb(
    "skew clock",
    "the clock of a component is ahead or behind, or runs at another rate",
    lasts=True,
    of=must(text),
    ahead=may(seconds, 0.0),
    behind=may(seconds, 0.0),
    rate=may(rate, 1.0),
)
async def skew_clock(state: ScenarioState, args: Any) -> None:
    """Set the wall clock of a component or of a node ahead or behind, and both of its clocks to a rate."""
    for host in state.hosts(args["of"]):
        host.skew(offset_s=args["ahead"] - args["behind"], rate=args["rate"])


def _restart_host(state: ScenarioState, host: Host, down_s: float) -> None:
    host.crash()
    state.later(down_s, lambda: None if host.up else host.restart())


def _pause_host(state: ScenarioState, host: Host, lasting_s: float) -> None:
    host.pause()
    if lasting_s:
        state.later(lasting_s, host.resume)


# -- servers and the store -----------------------------------------------------------------------------


@fault_verb(
    "lose server",
    "an API server, or all of them, is down",
    lasts=True,
    sole="server",
    server=must(text),
    lasting=may(seconds, 0.0),
)
async def lose_server(state: ScenarioState, args: Any) -> None:
    """Crash an API server, or with `all` each of them. Watches break, and requests are not answered."""
    names = [host.name for host in state.cluster.servers]
    if args["server"] not in (*names, "all"):
        raise StepFailed(f"there is no server {args['server']}: use {', '.join(names)} or all")
    for host in state.cluster.servers:
        if args["server"] in (host.name, "all"):
            host.crash()
            if args["lasting"]:
                state.later(args["lasting"], partial(state.cluster.restart_server, host))


@fault_verb(
    "pause store",
    "the store stands still, and then goes on",
    lasts=True,
    sole="lasting",
    lasting=must(seconds),
)
async def pause_store(state: ScenarioState, args: Any) -> None:
    """No read and no write is answered for a while; then all of them are."""
    _pause_host(state, state.cluster.store_host, args["lasting"])


@fault_verb(
    "slow disk", "commits wait for the disk", lasts=True, sole="by", by=must(seconds), lasting=may(seconds, 30.0)
)
async def slow_disk(state: ScenarioState, args: Any) -> None:
    """Each commit takes `by` longer for a while."""
    state.cluster.script.disk = SlowRequests("", args["by"], state.cluster.sim.now_s + args["lasting"])


@fault_verb("compact history", "all history but the last revisions is compacted", sole="keep", keep=must(number))
async def compact_history(state: ScenarioState, args: Any) -> None:
    """Drop all history but `keep` revisions: a watch that resumes before them must list."""
    state.cluster.script.strike(f"history is compacted, but {args['keep']} revisions")
    await state.cluster.compact(keep=args["keep"])
