"""Policy status: writes the generation of each SchedulingPolicy that this scheduler applies. Lost writes are repeated.

A rollout waits for it: healthy pods prove nothing about a change that no scheduler applies yet. Each scheduler name has
its own condition; `observedGeneration` is the oldest of them, and the versions are those that all schedulers apply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from kedge.api.conditions import condition
from kedge.api.objects import Object
from kedge.api.views import SchedulingPolicyView
from kedge.api.wellknown import OBEYED_PREFIX
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.keys import Fence, Key
from kedge.runtime.status import plan_status
from kedge.scheduler.report.report_records import ReportRecords
from kedge.tasks import gather_ended


def plan_policy_status(policy: SchedulingPolicyView, scheduler: str) -> Mapping[str, Any] | None:
    """The status after `scheduler` applies the policy; None if the policy is for other schedulers. Pure."""
    spec, generation = policy.spec, policy.generation
    if spec.scheduler_names and scheduler not in spec.scheduler_names:
        return None
    others = [
        each.observed_generation
        for each in policy.status.conditions
        if each.type.startswith(OBEYED_PREFIX) and each.type != f"{OBEYED_PREFIX}{scheduler}"
    ]
    oldest = min([generation, *others])
    reason = "InForce" if spec.active else "Inactive"
    written = condition(f"{OBEYED_PREFIX}{scheduler}", status=spec.active, reason=reason)
    status: dict[str, Any] = {"observedGeneration": oldest, "conditions": [written]}
    if oldest == generation:
        canary = spec.canary.version if spec.canary is not None and spec.active else ""
        status |= {"activeVersion": spec.version if spec.active else "", "canaryVersion": canary}
    return status


class PolicyStatusWriter:
    """Writes policy status for one scheduler. A failed write is repeated on the next change or sweep."""

    def __init__(self, env: Env, reports: ReportRecords, *, scheduler: str) -> None:
        self._env = env
        self._reports = reports
        self._scheduler = scheduler
        self._writing: dict[Key, asyncio.Task[Any]] = {}
        self._writes = env.metrics.counter("kedge_scheduler_reports_total", "Conditions and Events written", ("what",))

    def write(self, policies: Iterable[Object], fence: Fence) -> None:
        """Write the status of each policy where it differs. A policy with a write in flight is skipped."""
        for found in policies:
            if found.key in self._writing:
                continue
            status = plan_policy_status(found.as_view(SchedulingPolicyView), self._scheduler)
            patch = None if status is None else plan_status(found, status, self._env.now())
            if patch is not None:
                task = self._env.spawn(self._write(found, patch, fence), name=f"policy status of {found.key.name}")
                self._writing[found.key] = task

    async def stop(self) -> None:
        for task in tuple(self._writing.values()):
            task.cancel()
        await gather_ended(*self._writing.values())

    async def _write(self, policy: Object, patch: Mapping[str, Any], fence: Fence) -> None:
        try:
            with suppress(OperatingError):  # a conflict, or the call failed: a change or a sweep repeats it
                async with self._reports.begin(policy, "", fence) as report:
                    await report.patch(policy.key, patch, "status")
                self._writes.labels("policy").inc()
        finally:
            self._writing.pop(policy.key, None)
