"""Scheduling policies from the caches: the settings that they give a pod, and the workload that it counts for.

`settings` is the pure part. Without policies the workload is not looked up: nothing reads it.
"""

from __future__ import annotations

from collections.abc import Callable

from kedge.api.objects import Object
from kedge.api.owners import controller_of
from kedge.api.scopes import Workload
from kedge.api.views import PodView, SchedulingPolicyView
from kedge.api.wellknown import REPLICA_SET_KIND
from kedge.env import Env
from kedge.keys import Key
from kedge.scheduler.policy.settings import DEFAULT_SETTINGS, Settings, settings_for
from kedge.scheduler.state.shapes import PodRequest, RequestMemo


class Policies:
    """The policies that one scheduler knows."""

    def __init__(self, env: Env, cached: Callable[[Key], Object | None]) -> None:
        self._env = env
        self._cached = cached
        self.objects: dict[str, Object] = {}
        """By name."""
        self._settings: dict[tuple[str, str, str, object], Settings] = {}
        """Cleared when it has `Limits.scheduler_shapes_max` entries."""
        self._last_request = RequestMemo()

    def put(self, name: str, policy: Object | None) -> None:
        """Set the latest version of a policy; None if it was deleted."""
        if policy is None:
            self.objects.pop(name, None)
        else:
            self.objects[name] = policy
        self._settings.clear()

    def forget_settings(self) -> None:
        """The workload of some pods has become known."""
        self._settings.clear()

    def settings_of(self, pod: PodView) -> Settings:
        """The settings that the policies give a pod."""
        if not self.objects:
            return DEFAULT_SETTINGS
        workload = self.workload_of(pod)
        known = (pod.namespace, workload.uid or pod.uid, workload.name, pod.labels)
        found = self._settings.get(known)
        if found is None:
            views = [each.as_view(SchedulingPolicyView) for each in self.objects.values()]
            revisions = {each.key.name: each.revision for each in self.objects.values()}
            found = settings_for(views, pod, workload, revisions=revisions)
            if len(self._settings) >= self._env.limits.scheduler_shapes_max:
                self._settings.clear()
            self._settings[known] = found
        return found

    def workload_of(self, pod: PodView) -> Workload:
        """The pod's controller, or the controller of that."""
        owner = controller_of(pod.metadata)
        if owner is None:
            return Workload()
        if owner.kind == "ReplicaSet":
            found = self._cached(Key(REPLICA_SET_KIND, pod.namespace, owner.name))
            above = controller_of(found.metadata) if found is not None and found.uid == owner.uid else None
            if above is not None:
                return Workload(above.uid, above.name)
        return Workload(owner.uid, owner.name)

    def workload_counted(self, pod: PodView) -> str | None:
        """The uid of the workload that a pod counts for; None for its controller's."""
        return self.workload_of(pod).uid if self.objects else None

    def request_of(self, pod: PodView) -> PodRequest:
        return self._last_request.request_of(pod, self.workload_counted(pod))
