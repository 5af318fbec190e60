"""Recording windows of a process: opened by objects (`kedge record`) and by rules (rollouts, policies, error budgets).

Every process that records follows the same objects, so all of them keep the same decisions; burn rates are those of
the process. `observe.recording.rules` has the windows themselves. Nothing is written here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final

from kedge.api.objects import Object
from kedge.api.views import DeploymentView, RecordingWindowView, RolloutView, SchedulingPolicyView
from kedge.api.wellknown import (
    ADMISSION_GROUP,
    DEPLOYMENT_KIND,
    RECORDING_WINDOW_KIND,
    ROLLOUT_KIND,
    SCHEDULING_POLICY_KIND,
)
from kedge.env import Env
from kedge.errors import TooManyRequests
from kedge.keys import Key
from kedge.observe.recording.recorder import Recorder
from kedge.runtime.cache import Cache, CacheChange

_log = logging.getLogger("kedge.runtime")
RULED_KINDS: Final = (DEPLOYMENT_KIND, ROLLOUT_KIND, SCHEDULING_POLICY_KIND)
"""Kinds whose changes open windows by rule, in every process that decides about pods and workloads."""
ADMISSION_KINDS: Final = tuple(
    f"{policy}{part}.{ADMISSION_GROUP}"
    for policy in ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy")
    for part in ("", "Binding")
)
"""The same, in servers and in processes with controllers, which have the right to read them."""
_OVER: Final = frozenset({"", "Pending", "Complete", "RolledBack"})
"""Phases in which a Rollout changes nothing."""


class RecordingWindows:
    """Opens and closes the windows of one recorder as its caches change."""

    def __init__(self, recorder: Recorder, env: Env) -> None:
        self._recorder = recorder
        self._env = env
        self._generations: dict[Key, int] = {}
        """Each policy as it was last seen."""
        self._open: set[str] = set()
        """Names of the rollouts that were in progress when they were last seen."""
        self._handlers = {
            RECORDING_WINDOW_KIND: self._window_changed,
            DEPLOYMENT_KIND: self._deployment_changed,
            ROLLOUT_KIND: self._rollout_changed,
            SCHEDULING_POLICY_KIND: self._policy_changed,
            **dict.fromkeys(ADMISSION_KINDS, self._admission_changed),
        }
        self._burning: dict[str, tuple[float, float]] = {}
        """Each objective that was past the bounds of its alert lately: since when, and when it was last."""
        self._refused = env.metrics.counter(
            "kedge_decisions_windows_refused_total", "Windows that were not opened, because too many were open"
        )

    def follow(self, caches: Iterable[Cache]) -> None:
        """Open windows for the objects in these caches, and for every change."""
        for cache in caches:
            cache.subscribe(self._handlers[cache.kind.key_kind], name="recording windows")

    # -- by hand, and by an alert ------------------------------------------------------------------

    def _window_changed(self, change: CacheChange) -> None:
        name = f"{change.key.name}"
        if change.new is None:
            self._recorder.close_window(name)
            return
        spec = change.new.as_view(RecordingWindowView).spec
        left_s = (spec.until - self._env.now()).total_seconds() if spec.until is not None else 0.0
        if left_s <= 0 or spec.stopped:
            self._recorder.close_window(name)
            return
        objects = [Key(each.kind, each.namespace, each.name) for each in spec.objects]
        self._try_to_open(name, left_s, tenants=spec.tenants, workloads=objects)

    # -- by rule -----------------------------------------------------------------------------------

    def _deployment_changed(self, change: CacheChange) -> None:
        found = change.new
        self._rollout(f"rollout {change.key}", found is not None and _is_rolling(found), [change.key])

    def _rollout_changed(self, change: CacheChange) -> None:
        view = None if change.new is None else change.new.as_view(RolloutView)
        workloads = [change.key]
        if view is not None and view.spec.target.kind == "Deployment":
            workloads.append(Key(DEPLOYMENT_KIND, change.key.namespace, view.spec.target.name))
        self._rollout(f"rollout {change.key}", view is not None and view.status.phase not in _OVER, workloads)

    def _rollout(self, name: str, in_progress: bool, workloads: list[Key]) -> None:
        """A window is open while a rollout is in progress, and for a while after it."""
        if in_progress:
            self._open.add(name)
            self._try_to_open(name, self._env.limits.decision_window_s_max, workloads=workloads)
        elif name in self._open:
            self._open.discard(name)
            self._try_to_open(name, self._env.limits.decision_window_after_s, workloads=workloads)

    def _policy_changed(self, change: CacheChange) -> None:
        """A change of a policy may move any pod of its scope."""
        if self._is_new_generation(change):
            spec, after_s = change.object.as_view(SchedulingPolicyView).spec, self._env.limits.decision_window_after_s
            self._try_to_open(f"policy {change.key.name}", after_s, tenants=spec.scope.tenants)

    def _admission_changed(self, change: CacheChange) -> None:
        """A change of an admission policy may admit or refuse any write."""
        if self._is_new_generation(change):
            name = f"admission {change.key.kind.partition('.')[0]} {change.key.name}"
            self._try_to_open(name, self._env.limits.decision_window_after_s)

    def _is_new_generation(self, change: CacheChange) -> bool:
        """Whether a policy was created, deleted or changed. A write of its status is no change of it."""
        found, after_s = change.new, self._env.limits.decision_window_after_s
        known = self._generations.pop(change.key, None)
        if found is None:
            return True
        generation = self._generations[change.key] = found.metadata.generation
        if known is not None:
            return known != generation
        created = found.metadata.creation_timestamp
        return created is not None and self._env.now() - created < timedelta(seconds=after_s)

    # -- by the burn of an error budget ------------------------------------------------------------

    async def run_burns(self, past_alert: Callable[[], Iterable[str]]) -> None:
        """Open windows for the objectives that are past the bounds of their alert, until cancelled."""
        while True:
            self.check_burns(past_alert())
            await asyncio.sleep(self._env.limits.decision_burn_check_s)

    def check_burns(self, past_alert: Iterable[str]) -> None:
        """Everything is kept while an objective burns too fast and a while longer, for a bounded time in all.

        The window opens when the bounds are passed, which is before the alert is raised: the first decisions have the
        causes. A rate that moves around its bound is one burn until it was below for as long as a window may be open.
        """
        limits, now_s = self._env.limits, self._env.monotonic()
        most_s = limits.decision_burn_window_s_max
        self._burning = {slo: burn for slo, burn in self._burning.items() if now_s - burn[1] < most_s}
        for slo in sorted(set(past_alert)):
            since_s = self._burning.get(slo, (now_s, now_s))[0]
            self._burning[slo] = (since_s, now_s)
            left_s = since_s + most_s - now_s
            if left_s > 0:
                self._try_to_open(f"burn {slo}", min(limits.decision_window_after_s, left_s))

    def _try_to_open(
        self, name: str, for_s: float, *, tenants: Iterable[str] = (), workloads: Iterable[Key] = ()
    ) -> None:
        until_s = self._env.monotonic() + min(for_s, self._env.limits.decision_window_s_max)
        try:
            self._recorder.open_window(name, until_s=until_s, tenants=tenants, workloads=workloads)
        except TooManyRequests as error:
            self._refused.inc()
            _log.warning("%s", error)


def _is_rolling(found: Object) -> bool:
    """Whether pods of an older template are left, or new ones are missing."""
    view = found.as_view(DeploymentView)
    status, wanted = view.status, view.spec.replicas
    return (
        status.observed_generation < view.metadata.generation
        or status.updated_replicas < wanted
        or status.replicas > status.updated_replicas
    )
