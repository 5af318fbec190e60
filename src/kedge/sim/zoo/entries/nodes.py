"""Safeguards of nodes, agents and scheduling: evidence before destruction, one process a pod, wake-ups that arrive.

Each function stands in for the one that has the safeguard; its docstring says what is missing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kedge.agent.core.agent import Agent
from kedge.agent.core.node import NodeRegistration
from kedge.agent.core.pods import PodWorker, WorkerContext
from kedge.api.views import PodView
from kedge.controllers.node import controller as lifecycle
from kedge.controllers.node import evacuation
from kedge.controllers.node.heartbeats import Heartbeats
from kedge.controllers.node.plan import NodeState
from kedge.scheduler.binding.binder import Binder
from kedge.scheduler.queue.scheduling_queue import SchedulingQueue
from kedge.scheduler.state.cluster_state import ClusterState
from kedge.sim.zoo.entry import without

SUSPICION = "nothing is destroyed on suspicion alone"
ONE_COPY = "an at most one slot has one live copy"
ONE_PROCESS = "a pod uid has one live process"
STARTED = "a process is started only for its binding"
RUNNING = "machines run the bound pods"
EVEN = "claims belong to pods"
PLACED = "pods that fit are bound"
CLAIMED = "the bound have claims"

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
    """A suspect node's pods are not given up before its grace is over."""
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
def blind_and_evicting(self: Heartbeats, zone: str, members: Any) -> dict[str, Any]:
    """A zone that falls silent at once is not given up."""
    return {**_survey(self, zone, members), "blind": "", "clear_s": 1e9}


# -- agents ----------------------------------------------------------------------------------------


@without(NodeRegistration, "keep_s", source="kubernetes#30972", breaks=ONE_COPY, world="nodes")
def at_most_one_runs_on(self: NodeRegistration) -> float:  # noqa: ARG001
    """An agent out of contact stops what asks for at-most-one, before its node may be lost."""
    return 1e6


@without(
    PodWorker,
    "_may_start",
    source="watch streams: the cache taken for truth",
    breaks=(STARTED, ONE_PROCESS, CLAIMED),
    world="agents",
)
async def started_from_the_cache(self: PodWorker) -> str:
    """An agent proves at the authority that a pod is bound to it, after whatever took long."""
    return self._context.node.uid


@without(
    WorkerContext,
    "claim_is_held",
    source="design: (pod uid, bind revision, node incarnation)",
    breaks=(STARTED, CLAIMED),
    world="agents",
)
async def claim_not_asked_for(self: WorkerContext, *_: Any) -> bool:  # noqa: ARG001
    """An agent starts only what its incarnation has the claim of."""
    return True


@without(Agent, "_clear", source="kubernetes#30972", breaks=(ONE_PROCESS, RUNNING, CLAIMED), world="agents")
async def former_self_runs_on(self: Agent, node_uid: str = "") -> None:
    """A node that registers anew has stopped what it ran before."""


@without(
    Agent,
    "_adopt",
    source="design: an agent re-adopts its processes after its own restart",
    breaks=(RUNNING, EVEN),
    world="restarts",
)
async def orphans_not_adopted(self: Agent) -> None:  # noqa: ARG001
    """A restarted agent takes on the processes of pods that are gone."""
    await asyncio.get_running_loop().create_future()


@without(
    Agent,
    "_audit",
    source="testing: repair eventually removes orphaned state",
    breaks=EVEN,
    world="agents",
)
async def no_audit(self: Agent) -> None:  # noqa: ARG001
    """An agent looks for claims of pods that it never saw."""
    await asyncio.get_running_loop().create_future()


@without(
    PodWorker,
    "_confirm",
    source="testing: repair eventually removes orphaned state",
    breaks=EVEN,
    world="agents",
)
async def end_not_confirmed(self: PodWorker, processes: Any) -> None:
    """An agent confirms the end of what was deleted by force."""


@without(
    PodWorker,
    "_pod",
    source="watch streams: a delete that arrives before its cleanup",
    breaks=("only the unwanted is stopped", ONE_PROCESS),
    world="agents",
    by="old lists",
)
async def gone_by_the_cache(self: PodWorker) -> PodView | None:
    """That a pod is gone is believed of the authority alone."""
    return None if self._seen is None or self._unconfirmed else self._seen.as_view(PodView)


@without(
    NodeRegistration,
    "_verify",
    source="watch streams: synced once, assumed for ever",
    breaks=("nodes are ready", STARTED),
    world="agents",
)
async def node_never_looked_at(self: NodeRegistration) -> None:
    """An agent sees at the authority whether its node is still the same."""


# -- the scheduler ---------------------------------------------------------------------------------


@without(
    Binder,
    "settle",
    source="kubernetes#106361",
    breaks="neighbours stand each other",
    world="apart",
    by="cut off after a bind",
)
async def assumption_ends_by_timer(self: Binder, assumption: Any) -> None:
    """A bind whose outcome is unknown is read before its place is free."""
    self._cluster_state.forget(assumption.uid)


@without(SchedulingQueue, "notify", source="reconciliation: no resync path", breaks=PLACED, world="placement")
def deaf_scheduler(self: SchedulingQueue, *_: Any, **__: Any) -> None:
    """A pod that waits is woken by what could help it."""


@without(
    ClusterState,
    "assume",
    source="watch streams: the cache taken for truth",
    breaks="neighbours stand each other",
    world="apart",
)
def places_not_remembered(self: ClusterState, pod: Any, node: str, request: Any) -> Any:
    """What a scheduler has decided takes its place until the cache shows what became of it."""
    made = _assume(self, pod, node, request)
    self.forget(made.uid)
    return made
