"""The plan of a ReplicaSet: which pods to create, drain, resume, delete, release and sweep. Pure.

A pod that drains, stops or is on an unreachable node still counts as a copy, so there are never more copies than
requested; it stops counting when its end is recorded. `controller` carries the plan out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from kedge.api.views import PodView
from kedge.api.wellknown import REPLACES
from kedge.controllers.shared.drain import drained_at, is_drained, must_be_marked_again, needs_draining
from kedge.controllers.shared.pods import (
    available_at,
    in_deletion_order,
    is_active,
    is_draining,
    is_lost,
)
from kedge.errors import check


@dataclass(frozen=True, slots=True)
class ReplicaRules:
    """The bounds of a plan: the owner's spec and the limits."""

    want: int
    min_ready_s: int = 0
    burst: int = 50
    drain_s: float = 10.0
    ghosts: int = 0
    """Copies that may still run although their pods are gone; counted only for at-most-one workloads."""


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """The writes to make now. Each names the uid and revision of the pod as it was read."""

    create: tuple[str, ...] = ()
    """One entry per pod to create: the uid of the ended pod that it replaces, or empty."""
    drain: tuple[PodView, ...] = ()
    resume: tuple[PodView, ...] = ()
    delete: tuple[PodView, ...] = ()
    """Surplus pods that are drained, or that need no draining."""
    release: tuple[PodView, ...] = ()
    """Lost with their node: their end is recorded first, then a replacement is planned."""
    sweep: tuple[PodView, ...] = ()
    """Ended pods that are replaced, or need no replacement."""
    requeue_at: datetime | None = None
    """When the plan may change without an event: a drain ends, a pod becomes available."""
    curtailed: bool = False
    """The burst limit cut the plan: reconcile again at once."""

    @property
    def silent(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.create or self.drain or self.resume or self.delete or self.release or self.sweep)


def plan_replicas(
    rules: ReplicaRules,
    pods: Sequence[PodView],
    *,
    now: datetime,
    listed: Collection[str] = (),
    held: Collection[str] = (),
    siblings: Sequence[PodView] = (),
    first: Collection[str] = (),
) -> ReplicaPlan:
    """One step from the pods of a ReplicaSet towards its spec.

    `listed` are the uids that EndpointSlices send work to; `held` the uids that a person holds; `siblings` the pods of
    every ReplicaSet of the same Deployment, to prefer pods on crowded nodes; `first` the uids to delete first, where
    another template is rolled out.
    """
    check(rules.want >= 0, "admission rejects a negative replica count")
    lost = [pod for pod in pods if is_lost(pod) and pod.uid not in held]
    gone_soon = {pod.uid for pod in lost}
    active = [pod for pod in pods if is_active(pod)]
    draining = [pod for pod in pods if is_draining(pod) and not pod.finished and not pod.terminating]
    copies = sum(not pod.finished for pod in pods) + rules.ghosts

    ranked = in_deletion_order(draining, siblings=siblings, min_ready_s=rules.min_ready_s, now=now)
    missing = max(0, rules.want - len(active))
    wanted_back = [pod for pod in reversed(ranked) if pod.uid not in held and pod.uid not in gone_soon]
    resume, missing_still = wanted_back[:missing], max(0, missing - len(wanted_back))
    kept = {pod.uid for pod in resume}
    create = min(missing_still, max(0, rules.want - copies))

    free = [pod for pod in active if pod.uid not in gone_soon]
    surplus = max(0, len(free) - rules.want)
    choice = [pod for pod in free if pod.uid not in held]
    ranked = in_deletion_order(choice, siblings=siblings, min_ready_s=rules.min_ready_s, now=now, first=first)
    given_up = ranked[:surplus]

    leaving = [pod for pod in draining if pod.uid not in kept and pod.uid not in held and pod.uid not in gone_soon]
    drained = [pod for pod in leaving if is_drained(pod, listed=listed, drain_s=rules.drain_s, now=now)]
    delete = [*drained, *(pod for pod in given_up if not needs_draining(pod))]
    again = [pod for pod in leaving if pod not in drained and must_be_marked_again(pod, now)]
    drain = [*again, *(pod for pod in given_up if needs_draining(pod))]
    sweep = _to_sweep(pods, held, enough=rules.want <= copies)
    waits = [drained_at(pod, rules.drain_s) for pod in leaving if pod not in drained]
    waits += [available_at(pod, rules.min_ready_s, now) for pod in active]
    burst = rules.burst
    return ReplicaPlan(
        create=_replaced(pods, min(create, burst)),
        drain=tuple(drain[:burst]),
        resume=tuple(resume[:burst]),
        delete=tuple(delete[:burst]),
        release=tuple(lost[:burst]),
        sweep=tuple(sweep[:burst]),
        requeue_at=min((at for at in waits if at is not None), default=None),
        curtailed=burst < max(create, len(drain), len(resume), len(delete), len(lost), len(sweep)),
    )


def _replaced(pods: Sequence[PodView], count: int) -> tuple[str, ...]:
    """For each pod to create, the uid of the ended pod that it replaces: the oldest first, each once."""
    known = replaced_uids(pods)
    ended = sorted(
        (pod for pod in pods if pod.finished and pod.uid not in known), key=lambda pod: (_age(pod), pod.name)
    )
    uids = [pod.uid for pod in ended[:count]]
    return (*uids, *[""] * (count - len(uids)))


def replaced_uids(pods: Iterable[PodView]) -> frozenset[str]:
    """The uids of ended pods that have a replacement."""
    return frozenset(filter(None, (pod.metadata.annotations.get(REPLACES) for pod in pods)))


def _to_sweep(pods: Sequence[PodView], held: Collection[str], *, enough: bool) -> list[PodView]:
    """Ended pods that are no longer needed as evidence: a replacement names them, or none is needed."""
    known = replaced_uids(pods)
    return [
        pod
        for pod in pods
        if pod.finished
        and pod.uid not in held
        and (enough or pod.uid in known)
        # A pod that waits only for finalizers is deleted already.
        and not (pod.terminating and not pod.metadata.deletion_grace_period_seconds)
    ]


def _age(pod: PodView) -> str:
    return str(pod.metadata.creation_timestamp or "")
