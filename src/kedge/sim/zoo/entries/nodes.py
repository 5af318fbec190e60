"""Safeguards of nodes, agents and the scheduler: evidence before destruction, one process per pod, no lost wake-ups.

Each function replaces the one that has the safeguard; its docstring describes the safeguard that is missing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kedge.agent.core.agent import Agent
from kedge.agent.core.node import NodeRegistration
from kedge.agent.core.pods import PodWorker
from kedge.agent.core.worker_context import WorkerContext
from kedge.api.views import PodView
from kedge.controllers.node import controller as lifecycle
from kedge.controllers.node import evacuation
from kedge.controllers.node.heartbeats import Heartbeats
from kedge.controllers.node.plan import NodeState
from kedge.scheduler.binding.binder import Binder
from kedge.scheduler.cycle import attempt
from kedge.scheduler.cycle.gang_preemption import plan_gang_preemption
from kedge.scheduler.queue.scheduling_queue import SchedulingQueue
from kedge.scheduler.state.cluster_state import ClusterState
from kedge.sim.zoo.entry import without

_plan_gang_preemption = plan_gang_preemption

SUSPICION = "nothing is destroyed on suspicion alone"
ONE_COPY = "an at most one slot has one live copy"
ONE_PROCESS = "a pod uid has one live process"
STARTED = "a process is started only for its binding"
RUNNING = "machines run the bound pods"
EVEN = "claims belong to pods"
PLACED = "pods that fit are bound"
CLAIMED = "bound pods have claims"

_plan_evacuation = evacuation.plan_evacuation
_survey = Heartbeats.survey
_assume = ClusterState.assume


# -- evidence --------------------------------------------------------------------------------------


@without(
    lifecycle,
    "plan_evacuation",
    source="the signal table: missed heartbeats may not delete or replace at once",
    breaks=(SUSPICION, ONE_COPY),
    world="nodes",
)
def lost_on_suspicion(
    node: Any,
    state: NodeState,
    health: Any,
    pods: Any,
    limits: Any,
    now: Any,
    *,
    held: Any = (),
    out_of_service: bool = False,
) -> Any:
    """The pods of a suspect node are not given up before its grace period ends."""
    late = state in (NodeState.SUSPECT, NodeState.UNKNOWN)
    return _plan_evacuation(
        node,
        NodeState.LOST if late else state,
        health,
        pods,
        limits,
        now,
        held=held,
        out_of_service=late or out_of_service,
    )


@without(Heartbeats, "survey", source="kubernetes#24200, #28832", breaks=SUSPICION, world="nodes")
def blind_zone_evicted(self: Heartbeats, zone: str, members: Any) -> dict[str, Any]:
    """A zone whose nodes all stop reporting at once is not given up."""
    return {**_survey(self, zone, members), "blind": "", "clear_s": 1e9}


# -- agents ----------------------------------------------------------------------------------------


@without(NodeRegistration, "keep_s", source="kubernetes#30972", breaks=ONE_COPY, world="nodes")
def at_most_one_runs_on(self: NodeRegistration) -> float:  # noqa: ARG001
    """An agent that lost contact stops its at-most-one pods before its node may count as lost."""
    return 1e6


@without(
    PodWorker,
    "_may_start",
    source="watch streams: the cache taken for truth",
    breaks=(STARTED, ONE_PROCESS, CLAIMED),
    world="agents",
)
async def started_from_the_cache(self: PodWorker) -> str:
    """An agent checks with the API server that a pod is still bound to it before it starts a process."""
    return self._context.node.uid


@without(
    WorkerContext,
    "claim_is_held",
    source="design: (pod uid, bind revision, node incarnation)",
    breaks=(STARTED, CLAIMED),
    world="agents",
)
async def claim_not_checked(self: WorkerContext, *_: Any) -> bool:  # noqa: ARG001
    """An agent starts a pod only if its incarnation of the node holds the claim."""
    return True


@without(Agent, "_clear", source="kubernetes#30972", breaks=(ONE_PROCESS, RUNNING, CLAIMED), world="agents")
async def former_incarnation_runs_on(self: Agent, node_uid: str = "") -> None:
    """A node that registers again has stopped the processes of its former incarnation."""


@without(
    Agent,
    "_adopt",
    source="design: an agent re-adopts its processes after its own restart",
    breaks=(RUNNING, EVEN),
    world="restarts",
)
async def orphans_not_adopted(self: Agent) -> None:  # noqa: ARG001
    """A restarted agent adopts the processes of pods that are gone."""
    await asyncio.get_running_loop().create_future()


@without(
    Agent,
    "_audit",
    source="testing: repair eventually removes orphaned state",
    breaks=EVEN,
    world="agents",
)
async def no_audit(self: Agent) -> None:  # noqa: ARG001
    """An agent audits claims of pods that it never saw."""
    await asyncio.get_running_loop().create_future()


@without(
    PodWorker,
    "_confirm",
    source="testing: repair eventually removes orphaned state",
    breaks=EVEN,
    world="agents",
)
async def end_not_confirmed(self: PodWorker, processes: Any) -> None:
    """An agent confirms the end of pods that were deleted by force."""


@without(
    PodWorker,
    "_pod",
    source="watch streams: a delete that arrives before its cleanup",
    breaks=("only unwanted processes are stopped", ONE_PROCESS),
    world="agents",
    by="old lists",
)
async def gone_by_the_cache(self: PodWorker) -> PodView | None:
    """Only the API server is trusted that a pod is gone."""
    return None if self._seen is None or self._unconfirmed else self._seen.as_view(PodView)


@without(
    NodeRegistration,
    "_verify",
    source="watch streams: synced once, assumed for ever",
    breaks=("nodes are ready", STARTED),
    world="agents",
)
async def node_never_checked(self: NodeRegistration) -> None:
    """An agent checks with the API server that its node is still the same incarnation."""


# -- gangs -----------------------------------------------------------------------------------------


@without(
    attempt,
    "plan_gang_preemption",
    source="issue: victims are sufficient before the first eviction",
    breaks="no eviction is in vain",
    world="crowded",
)
def gang_evicts_in_part(state: Any, members: Any, decide: Any) -> Any:
    """Pods are evicted for a gang only if there is then room for every member."""
    plans = (_plan_gang_preemption(state, members[:count], decide) for count in range(len(members), 0, -1))
    return next((each for each in plans if each[0] is not None), (None, False))


# -- the scheduler ---------------------------------------------------------------------------------


@without(
    Binder,
    "settle",
    source="kubernetes#106361",
    breaks="anti affinity holds",
    world="apart",
    by="cut off after a bind",
)
async def assumption_ends_by_timer(self: Binder, assumption: Any) -> None:
    """After a bind with unknown outcome the pod is read before its assumption ends."""
    self._cluster_state.forget(assumption.uid)


@without(SchedulingQueue, "notify", source="reconciliation: no resync path", breaks=PLACED, world="placement")
def scheduler_ignores_events(self: SchedulingQueue, *_: Any, **__: Any) -> None:
    """A pending pod is woken by an event that may unblock it."""


@without(
    ClusterState,
    "assume",
    source="watch streams: the cache taken for truth",
    breaks="anti affinity holds",
    world="apart",
)
def assumptions_not_kept(self: ClusterState, pod: Any, node: str, request: Any) -> Any:
    """A decided pod is assumed on its node until the cache shows the outcome."""
    made = _assume(self, pod, node, request)
    self.forget(made.uid)
    return made
