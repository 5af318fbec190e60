"""Recording windows of a process: opened by objects (`kedge record`, an alert) and by rules (rollouts, policies).

Every process that records follows the same objects, so all of them keep the same decisions. `observe.recording.rules`
has the windows themselves. Nothing is written here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from kedge.api.objects import Object
from kedge.api.views import DeploymentView, RecordingWindowView, RolloutView, SchedulingPolicyView
from kedge.api.wellknown import (
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
"""Kinds whose changes open windows by rule."""
_OVER: Final = frozenset({"", "Pending", "Complete", "RolledBack"})
"""Phases in which a Rollout changes nothing."""


class RecordingWindows:
    """Opens and closes the windows of one recorder as its caches change."""

    def __init__(self, recorder: Recorder, env: Env) -> None:
        self._recorder = recorder
        self._env = env
        self._generations: dict[Key, int] = {}
        """Each SchedulingPolicy as it was last seen."""
        self._open: set[str] = set()
        """Names of the rollouts that were in progress when they were last seen."""
        self._handlers = {
            RECORDING_WINDOW_KIND: self._window_changed,
            DEPLOYMENT_KIND: self._deployment_changed,
            ROLLOUT_KIND: self._rollout_changed,
            SCHEDULING_POLICY_KIND: self._policy_changed,
        }
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
        """A change of a policy may move any pod of its scope. A write of its status changes nothing."""
        found, after_s = change.new, self._env.limits.decision_window_after_s
        known = self._generations.pop(change.key, None)
        if found is not None:
            generation = self._generations[change.key] = found.metadata.generation
            created = found.metadata.creation_timestamp
            is_new = known is None and created is not None and self._env.now() - created < timedelta(seconds=after_s)
            if not is_new and (known is None or known == generation):
                return
        spec = change.object.as_view(SchedulingPolicyView).spec
        self._try_to_open(f"policy {change.key.name}", after_s, tenants=spec.scope.tenants)

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
