"""The Job controller: runs pods until enough have succeeded, too many have failed, or the deadline has passed.

`plan` decides and counts; this carries it out in the order that counting requires: the status that names the ended pods
is committed before their finalizers are removed. A finished Job is deleted after its time to live.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from kedge.api.conditions import find_condition
from kedge.api.holds import active_hold, hold_conditions, next_hold_end
from kedge.api.objects import Object
from kedge.api.owners import controller_of, owner_reference
from kedge.api.timestamps import format_time
from kedge.api.views import EndpointSliceView, JobView, PodView
from kedge.api.wellknown import JOB_INDEX, JOB_NAME_LABEL, JOB_TRACKING_FINALIZER, JOB_UID_LABEL, SLOT
from kedge.controllers.job.plan import (
    SUSPENDED,
    JobPlan,
    JobRules,
    count_ended,
    deadline_of,
    format_indexes,
    is_over,
    named_index,
    outcome_of,
    over_since,
    plan_job,
)
from kedge.controllers.job.status import end_conditions, suspension
from kedge.controllers.shared.actions import POD_EVENTS, REFUSALS, ActionRecorder, requeue_at
from kedge.controllers.shared.conditions import REPLICA_FAILURE, failure_condition, stage_conditions
from kedge.controllers.shared.endpoint_slices import listed_uids, wake_listed
from kedge.controllers.shared.ghosts import find_ghosts
from kedge.controllers.shared.holds import held_until, split_held
from kedge.controllers.shared.kinds import ENDPOINT_SLICE, JOB, POD, RESOURCE_QUOTA
from kedge.controllers.shared.pods import is_ready, requires_at_most_one
from kedge.controllers.shared.progress import progress_of
from kedge.controllers.shared.quota_room import wake_blocked
from kedge.controllers.shared.replicas import PRIORITY_CLASSES, lost_status, template_priority
from kedge.controllers.shared.slots import free_slots, slot_name, slot_of
from kedge.controllers.shared.templates import template_of
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec, WatchSpec, writes
from kedge.runtime.cache.indexes import by_label

NAME = "job"
BY_JOB_NAME = by_label(JOB_NAME_LABEL)


class JobReconciler:
    """Reconciles one Job."""

    def __init__(self, env: Env) -> None:
        self._metrics = env.metrics
        self._uncounted = env.metrics.counter("kedge_workload_uncounted_total", "Ended pods recorded as uncounted")

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        job = ctx.get(key)
        actions = ActionRecorder(ctx, self._metrics, NAME, job, POD_EVENTS)
        now = ctx.now()
        held_off = await self._release_orphans(ctx, actions, key, job, now)
        if job is None or job.metadata.deletion_timestamp is not None:
            return requeue_at(now, *held_off, reason="deleted or being deleted: its pods are garbage")
        view = job.as_view(JobView)
        held = held_until(view, NAME, now)
        if is_over(view):
            return await self._end(ctx, actions, job, view, now) if held is None else requeue_at(now, held)
        pods = ctx.owned(POD, job)
        views = [pod.as_view(PodView) for pod in pods]
        plan = self._plan(ctx, view, views, now, held=held is not None)
        ghosts: tuple[str, ...] = ()
        if plan.create and requires_at_most_one(view.spec.template):
            ghosts = await self._find_ghosts(ctx, view, views)
            plan = self._plan(ctx, view, views, now, held=False, ghosts=ghosts)
        refusal = None
        try:
            await self._carry_out(ctx, actions, job, plan, {pod.uid: pod for pod in pods}, now, ghosts)
        except REFUSALS as error:
            refusal = error
            actions.refused(error)
        before = view.status.uncounted_terminated_pods
        self._uncounted.inc(len(plan.counts.uncounted - {*before.succeeded, *before.failed}))
        listed = listed_uids(
            each.as_view(EndpointSliceView) for each in ctx.list(ENDPOINT_SLICE, namespace=key.namespace)
        )
        status = self._status(view, views, plan, listed, actions, refusal, now, held=held is not None)
        await ctx.write_status(job, status)
        _note_end(ctx, job, view, plan)
        # The status names them now, so the finalizers may go: after a crash here the status still has their uids.
        for pod in plan.unmark:
            found = next(each for each in pods if each.uid == pod.uid)
            await actions.run_on("count", pod.name, ctx.patch(found, without_tracking(found)))
        if refusal is not None:
            raise refusal
        ends = [held_until(pod, NAME, now) for pod in views]
        ends.append(now + timedelta(seconds=ctx.limits.ghost_look_s) if ghosts else None)
        return requeue_at(now, next_hold_end(view, now), plan.requeue_at, *ends, *held_off, at_once=plan.curtailed)

    async def _find_ghosts(self, ctx: Context, view: JobView, pods: Sequence[PodView]) -> tuple[str, ...]:
        """The names of pods of this Job that are gone while their claims are not."""
        indexed = view.spec.completion_mode == "Indexed"

        def is_own(name: str) -> bool:
            return (named_index(view.name, name) if indexed else slot_of(view.name, name)) is not None

        return await find_ghosts(ctx, view.namespace, is_own, pods)

    def _plan(
        self,
        ctx: Context,
        view: JobView,
        pods: Sequence[PodView],
        now: datetime,
        *,
        held: bool,
        ghosts: tuple[str, ...] = (),
    ) -> JobPlan:
        limits = ctx.limits
        if held:
            counts = count_ended(view, pods, 0)
            return JobPlan(counts)
        rules = JobRules(
            limits.pod_burst, limits.job_backoff_s, limits.job_backoff_s_max, limits.job_uncounted_max, ghosts
        )
        held_pods = frozenset(pod.uid for pod in pods if active_hold(pod, NAME, now) is not None)
        return plan_job(view, pods, rules, now, held=held_pods)

    # -- writes ------------------------------------------------------------------------------------

    async def _release_orphans(
        self, ctx: Context, actions: ActionRecorder, key: Key, job: Object | None, now: datetime
    ) -> list[datetime]:
        """Remove the finalizer from pods of a deleted Job: they are not counted any more, and would stay for ever.

        Returns when the holds on the other pods end.
        """
        living = job.uid if job is not None and job.metadata.deletion_timestamp is None else None
        left = [
            pod
            for pod in ctx.by_index(POD, BY_JOB_NAME, key.name)
            if pod.key.namespace == key.namespace
            and JOB_TRACKING_FINALIZER in pod.metadata.finalizers
            and _was_of(pod, key)
            and not _is_of(pod, living)
        ]
        left, ends = split_held(left, NAME, now)
        if not left:
            return ends
        # The cache may not have the Job yet: read it from the API server.
        fresh = await ctx.fresh(key)
        living = fresh.uid if fresh is not None and fresh.metadata.deletion_timestamp is None else None
        for pod in left:
            if not _is_of(pod, living):
                await actions.run_on("untrack", pod.key.name, ctx.patch(pod, without_tracking(pod)))
        return ends

    async def _carry_out(
        self,
        ctx: Context,
        actions: ActionRecorder,
        job: Object,
        plan: JobPlan,
        pods: Mapping[str, Object],
        now: datetime,
        ghosts: Collection[str] = (),
    ) -> None:
        for pod in plan.release:
            found = pods[pod.uid]
            await actions.run_on("release", pod.name, ctx.patch(found, lost_status(found, now), subresource="status"))
        for pod in plan.delete:
            await actions.run_on("delete", pod.name, ctx.delete(pods[pod.uid]))
        template = template_of(job) if plan.create else {}
        chosen = set(ghosts)
        for index in plan.create:
            prefix = job.key.name if index is None else f"{job.key.name}-{index}"

            def is_taken(name: str) -> bool:
                return name in chosen or ctx.get(Key(POD.key_kind, job.key.namespace, name)) is not None

            (slot,) = free_slots(prefix, 1, is_taken)
            chosen.add(slot_name(prefix, slot))
            await actions.run(
                "create", slot_name(prefix, slot), ctx.ensure(POD, job_pod(job, template, prefix, slot, index))
            )

    async def _end(self, ctx: Context, actions: ActionRecorder, job: Object, view: JobView, now: datetime) -> Action:
        """Delete a finished Job at the end of its time to live."""
        since, ttl_s = over_since(view), view.spec.ttl_seconds_after_finished
        if ttl_s is None or since is None:
            return Action.await_change(reason="it is over")
        goes_at = since + timedelta(seconds=ttl_s)
        if goes_at <= now:
            await actions.run("delete", job.key.name, ctx.delete(job, propagation="Background"))
            return Action.await_change(reason="its time to live is over")
        return requeue_at(now, goes_at, reason="it is over")

    # -- status ------------------------------------------------------------------------------------

    def _status(
        self,
        view: JobView,
        pods: Sequence[PodView],
        plan: JobPlan,
        listed: frozenset[str],
        actions: ActionRecorder,
        refusal: OperatingError | None,
        now: datetime,
        *,
        held: bool,
    ) -> dict[str, Any]:
        running = [pod for pod in pods if outcome_of(pod) is None]
        spec, counts = view.spec, plan.counts
        started = view.status.start_time
        if not held:
            started = None if plan.suspended else started or now
        progress = progress_of(
            running,
            desired=spec.parallelism,
            listed=listed,
            generation=view.generation,
            before=view.status.progress,
            last_action=actions.last,
            deadline=None if plan.outcome is not None else deadline_of(view),
        )
        return {
            "active": sum(not pod.terminating for pod in running),
            "ready": sum(is_ready(pod) and not pod.terminating for pod in running),
            "terminating": sum(pod.terminating for pod in running),
            "succeeded": counts.succeeded,
            "failed": counts.failed,
            "uncountedTerminatedPods": {
                "succeeded": list(counts.uncounted_succeeded),
                "failed": list(counts.uncounted_failed),
            },
            "completedIndexes": format_indexes(counts.completed) or None,
            "startTime": None if started is None else format_time(started),
            "completionTime": format_time(now) if plan.over and plan.outcome and plan.outcome.succeeds else None,
            "progress": progress,
            "conditions": [
                *end_conditions(plan),
                *suspension(view, plan, held=held),
                *failure_condition(view, refusal),
                *stage_conditions(progress, desired=plan.want),
                *hold_conditions(view, view.status.conditions, now),
            ],
        }


def _note_end(ctx: Context, job: Object, view: JobView, plan: JobPlan) -> None:
    """Note that the Job is over, or that it was suspended or resumed. The status before this reconcile was neither."""
    outcome = plan.outcome
    was = find_condition(view.status.conditions, SUSPENDED)
    suspended = was is not None and was.status == "True"
    if plan.over and outcome is not None and outcome.succeeds:
        ctx.event(job, "Completed", "Job completed")
    elif plan.over and outcome is not None:
        ctx.event(job, outcome.reason, outcome.message or "Job failed", warning=True)
    elif plan.suspended and not suspended:
        ctx.event(job, "Suspended", "Job suspended")
    elif suspended and not plan.suspended:
        ctx.event(job, "Resumed", "Job resumed")


def _was_of(pod: Object, key: Key) -> bool:
    """Created by a Job of this name, and not adopted by another owner since."""
    owner = controller_of(pod.metadata)
    return owner is None or (owner.kind, owner.name) == (JOB.kind, key.name)


def _is_of(pod: Object, uid: str | None) -> bool:
    owner = controller_of(pod.metadata)
    return owner is not None and owner.uid == uid


def job_pod(job: Object, template: Mapping[str, Any], prefix: str, slot: int, index: int | None) -> dict[str, Any]:
    """A pod of the Job, as JSON. Its finalizer stays until the pod is counted."""
    metadata = template.get("metadata") or {}
    labels = {**(metadata.get("labels") or {}), JOB_NAME_LABEL: job.key.name, JOB_UID_LABEL: job.uid}
    annotations = {**(metadata.get("annotations") or {}), SLOT: str(slot if index is None else index)}
    spec = dict(template["spec"])
    if index is not None:
        annotations[JOB_INDEX] = str(index)
        variable = {"name": "JOB_COMPLETION_INDEX", "value": str(index)}
        for field in ("containers", "initContainers"):
            if field in spec:
                spec[field] = [{**each, "env": [*(each.get("env") or []), variable]} for each in spec[field]]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": slot_name(prefix, slot),
            "namespace": job.key.namespace,
            "labels": labels,
            "annotations": annotations,
            "finalizers": [*(metadata.get("finalizers") or []), JOB_TRACKING_FINALIZER],
            "ownerReferences": [owner_reference(JOB, job.metadata)],
        },
        "spec": spec,
    }


def without_tracking(pod: Object) -> dict[str, Any]:
    kept: Iterable[str] = (each for each in pod.metadata.finalizers if each != JOB_TRACKING_FINALIZER)
    return {"metadata": {"finalizers": list(kept) or None}}


def job_controller(runtime: ControllerRuntime) -> Controller:
    """The controller, ready to run."""
    return Controller(
        ControllerSpec(
            name=NAME,
            kind=JOB,
            writes=(
                *writes("delete", JOB),
                *writes("patch", JOB, "status"),
                *writes("create patch delete", POD),
                *writes("patch", POD, "status"),
            ),
            owns=(WatchSpec(kind=POD, indexes=(BY_JOB_NAME,)),),
            watches=(
                WatchSpec(kind=ENDPOINT_SLICE, keys_of=wake_listed(JOB)),
                WatchSpec(kind=RESOURCE_QUOTA, keys_of=wake_blocked(JOB, condition=REPLICA_FAILURE)),
                PRIORITY_CLASSES,
            ),
            priority_of=template_priority,
        ),
        JobReconciler(runtime.env),
        runtime,
    )
