"""Safeguards of nodes, agents and scheduling: evidence before destruction, one process a pod, wake-ups that arrive."""

from __future__ import annotations

import asyncio
from typing import Any

from kedge.agent.core.agent import Agent
from kedge.agent.core.node import NodeKeeper
from kedge.agent.core.pods import Ground, PodWorker
from kedge.api.views import PodView
from kedge.controllers import lifecycle, nodes
from kedge.controllers.heartbeats import Heartbeats
from kedge.controllers.lifecycle import NodeLifecycle
from kedge.controllers.nodes import Standing
from kedge.scheduler.binder import Binder
from kedge.scheduler.pending import Pending
from kedge.sim.zoo.entries import Entry, swapping
from kedge.sim.zoo.runtime import LATE

SUSPICION = "nothing is destroyed on suspicion alone"
ONE_COPY = "an at most one slot has one live copy"
ONE_PROCESS = "a pod uid has one live process"
STARTED = "a process is started only for its binding"
RUNNING = "processes are those of the bound"
PLACED = "pods that fit are bound"

_next_standing = nodes.next_standing
_survey = Heartbeats.survey


def _lost_on_suspicion(was: Standing, sight: Any, limits: Any, *, out_of_service: bool = False) -> Standing:
    found = _next_standing(was, sight, limits, out_of_service=out_of_service)
    return Standing.LOST if found in (Standing.SUSPECT, Standing.UNKNOWN) else found


def _never_blind(self: Heartbeats, zone: str, members: Any) -> dict[str, Any]:
    return {**_survey(self, zone, members), "blind": "", "clear_s": 1e9}


async def _silent_by_cache(self: NodeLifecycle, *_: Any) -> bool:  # noqa: ARG001
    return True


def _look_without_sight(self: Heartbeats, node: str, age_s: float) -> dict[str, Any]:  # noqa: ARG001
    heard = self._heard.get(node)
    silence_s = self._env.monotonic() - (heard.at_s if heard is not None else 0.0)
    return {"silence_s": silence_s, "heard": heard is not None and heard.renewed}


def _keep_for_ever(self: Agent) -> float:  # noqa: ARG001
    return 1e6


async def _start_by_cache(self: PodWorker) -> str:
    return self._ground.node_uid()


async def _always_held(self: Ground, *_: Any) -> bool:  # noqa: ARG001
    return True


async def _nothing_to_clear(self: Agent, node_uid: str = "") -> None:  # noqa: ARG001
    return


async def _never(self: Any) -> None:  # noqa: ARG001
    await asyncio.get_running_loop().create_future()


async def _never_look(self: NodeKeeper) -> None:  # noqa: ARG001
    return


async def _pod_by_cache(self: PodWorker) -> PodView | None:
    return None if self._seen is None or self._doubted else self._seen.as_view(PodView)


async def _end_by_timer(self: Binder, assumption: Any) -> None:
    self._picture.forget(assumption.uid)


def _deaf(self: Pending, *_: Any, **__: Any) -> None:  # noqa: ARG001
    return


async def _confirm_unasked(self: PodWorker, processes: Any) -> None:  # noqa: ARG001
    return


ENTRIES = (
    Entry(
        name="lost-on-suspicion",
        source="the signal table: missed heartbeats may not delete or replace at once",
        safeguard="a suspect node is not given up before its grace is over",
        breaks=(SUSPICION, ONE_COPY),
        theme="nodes",
        patch=swapping(nodes, "next_standing", _lost_on_suspicion, lifecycle),
    ),
    Entry(
        name="blind-and-evicting",
        source="kubernetes#24200, #28832",
        safeguard="a zone that falls silent at once is not given up",
        breaks=(SUSPICION,),
        theme="nodes",
        patch=swapping(Heartbeats, "survey", _never_blind),
    ),
    Entry(
        name="at-most-one-runs-on",
        source="kubernetes#30972",
        safeguard="an agent out of contact stops what asks for at-most-one, before its node may be lost",
        breaks=(ONE_COPY,),
        theme="nodes",
        patch=swapping(Agent, "_keep_s", _keep_for_ever),
    ),
    Entry(
        name="started-from-the-cache",
        source="watch streams: the cache taken for truth",
        safeguard="an agent proves at the authority that a pod is bound to it, after whatever took long",
        breaks=(STARTED, ONE_COPY, ONE_PROCESS, RUNNING),
        theme="nodes",
        patch=swapping(PodWorker, "_may_start", _start_by_cache),
    ),
    Entry(
        name="claim-not-asked-for",
        source="design: (pod uid, bind revision, node incarnation)",
        safeguard="an agent starts only what its incarnation has the claim of",
        breaks=(STARTED, ONE_COPY, RUNNING, *LATE),
        theme="placement",
        patch=swapping(Ground, "claim_is_held", _always_held),
    ),
    Entry(
        name="former-self-runs-on",
        source="kubernetes#30972",
        safeguard="a node that registers anew has stopped what it ran before",
        breaks=(STARTED, ONE_PROCESS, ONE_COPY, RUNNING),
        theme="placement",
        patch=swapping(Agent, "_clear", _nothing_to_clear),
    ),
    Entry(
        name="orphans-not-adopted",
        source="design: an agent re-adopts its processes after its own restart",
        safeguard="a restarted agent takes on the processes of pods that are gone",
        breaks=(RUNNING, ONE_PROCESS),
        theme="placement",
        patch=swapping(Agent, "_adopt", _never),
    ),
    Entry(
        name="no-audit",
        source="testing: repair eventually removes orphaned state",
        safeguard="an agent looks for claims of pods that it never saw",
        breaks=("accounts are even",),
        theme="placement",
        patch=swapping(Agent, "_audit", _never),
    ),
    Entry(
        name="end-not-confirmed",
        source="testing: repair eventually removes orphaned state",
        safeguard="an agent confirms the end of what was deleted by force",
        breaks=("accounts are even", *LATE),
        theme="placement",
        patch=swapping(PodWorker, "_confirm", _confirm_unasked),
    ),
    Entry(
        name="gone-by-the-cache",
        source="watch streams: a delete that arrives before its cleanup",
        safeguard="that a pod is gone is believed of the authority alone",
        breaks=(ONE_PROCESS, ONE_COPY, STARTED, *LATE),
        theme="placement",
        patch=swapping(PodWorker, "_pod", _pod_by_cache),
    ),
    Entry(
        name="node-never-looked-at",
        source="watch streams: synced once, assumed for ever",
        safeguard="an agent sees at the authority whether its node is still the same",
        breaks=("nodes are well", STARTED, *LATE),
        theme="placement",
        patch=swapping(NodeKeeper, "_look", _never_look),
    ),
    Entry(
        name="assumption-ends-by-timer",
        source="kubernetes#106361",
        safeguard="a bind whose outcome is unknown is read before its place is free",
        breaks=(PLACED, "a pod never has two nodes", "no commit adds to an overfull node"),
        theme="placement",
        patch=swapping(Binder, "settle", _end_by_timer),
    ),
    Entry(
        name="deaf-scheduler",
        source="reconciliation: no resync path",
        safeguard="a pod that waits is woken by what could help it",
        breaks=(PLACED,),
        theme="placement",
        patch=swapping(Pending, "happened", _deaf),
    ),
    Entry(
        name="news-in-flight-lost",
        source="kubernetes#138434",
        safeguard="what happens while a pod is in flight is kept for it",
        breaks=(PLACED,),
        theme="placement",
        patch=swapping(Pending, "_note", _deaf),
    ),
)
