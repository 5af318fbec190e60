"""The signals of a cluster's pods: how many are at each stage, how long stages take, and the objectives for them.

It follows one cache of pods and writes nothing. Times are between the moments at which this process saw the changes,
on its own clock; `progress` defines the stages.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from functools import partial

from kedge.api.views import PodView
from kedge.controllers.shared.progress import ReplicaStage, stage_of
from kedge.env import Env
from kedge.metrics import LONG_BOUNDS_S
from kedge.runtime.cache import Cache, CacheChange
from kedge.slo import TIME_TO_BOUND, TIME_TO_READY, SloEvents

_STAGES = tuple(stage for stage in ReplicaStage if stage is not ReplicaStage.SERVING)
"""Ready pods that serve are counted as ready: EndpointSlices are not followed here."""
_BOUND = (ReplicaStage.BOUND, ReplicaStage.STARTING, ReplicaStage.READY, ReplicaStage.UNKNOWN)
_RESOLUTION_S = 2.0
"""Creation times are whole seconds: a pod that seems no older than this is taken as new."""


@dataclass(slots=True)
class _FollowedPod:
    stage: ReplicaStage | None
    entered_s: float
    queued_s: float | None = None
    """When it could be scheduled: objectives count from then, not while a scheduling gate holds it."""
    waits_for: tuple[str, ...] = (TIME_TO_BOUND, TIME_TO_READY)
    """The objectives that have not counted it yet."""


class PodSignals:
    """Follows the pods of a process. One is enough for a cluster; each process with controllers has one."""

    def __init__(self, env: Env, pods: Cache) -> None:
        limits = env.limits
        self._env = env
        self._pods: dict[str, _FollowedPod] = {}
        """By uid."""
        self._stages: Counter[ReplicaStage] = Counter()
        self._within_s = {TIME_TO_BOUND: limits.slo_time_to_bound_s, TIME_TO_READY: limits.slo_time_to_ready_s}
        self._slos = {slo: SloEvents(env, slo, limits.slo_pods_good_share) for slo in self._within_s}
        self._deadlines: list[tuple[float, str, str]] = []
        """A heap of times, objectives and uids; pods that were counted in time are removed lazily."""
        self._took = env.metrics.histogram(
            "kedge_pod_stage_seconds",
            "Time that a pod spent at a stage before it reached another",
            ("stage",),
            bounds=LONG_BOUNDS_S,
        )
        gauge = env.metrics.gauge("kedge_pods", "Pods that have not ended, by stage", ("stage",))
        for stage in _STAGES:
            gauge.labels(str(stage)).set_function(partial(self._at_stage, stage))
        pods.subscribe(self._changed, name="pod signals")

    def past_alert(self) -> list[str]:
        """The objectives whose budget burns past the bounds of their alert."""
        self.count_overdue()
        return [slo for slo, events in self._slos.items() if events.is_past_alert()]

    def _at_stage(self, stage: ReplicaStage) -> int:
        self.count_overdue()
        return self._stages[stage]

    def count_overdue(self) -> None:
        """Count the pods whose time is up: one that never gets a node is bad too. Each scrape begins with this."""
        now_s = self._env.monotonic()
        while self._deadlines and self._deadlines[0][0] < now_s:
            _, slo, uid = heapq.heappop(self._deadlines)
            pod = self._pods.get(uid)
            if pod is not None and slo in pod.waits_for:
                self._count(pod, slo, good=False)

    def _changed(self, change: CacheChange) -> None:
        old, new = change.old, change.new
        if old is not None and (new is None or new.uid != old.uid):  # a list may show only its successor
            self._version_seen(old.uid, None, "")
        if new is not None:
            self._version_seen(new.uid, new.as_view(PodView), new.origin.decision)
        self.count_overdue()  # a process that is never scraped must not keep the deadlines of all pods

    def _version_seen(self, uid: str, view: PodView | None, decision: str) -> None:
        """`view` is the newest version of a pod; None if it is gone."""
        now_s = self._env.monotonic()
        pod = self._pods.get(uid)
        stage = stage_of(view, ()) if view is not None else None
        if pod is None:
            if view is None or stage is None:
                return
            pod = self._pods[uid] = self._first_seen(view, stage, now_s)
        elif stage is not pod.stage:
            self._move(pod, stage, now_s, decision)
        if stage not in (None, ReplicaStage.ADMITTED) and pod.queued_s is None:
            pod.queued_s = now_s
            for slo in pod.waits_for:
                heapq.heappush(self._deadlines, (now_s + self._within_s[slo], slo, uid))
        self._judge(pod, view, now_s, decision)
        if view is None or stage is None:
            del self._pods[uid]

    def _first_seen(self, view: PodView, stage: ReplicaStage, now_s: float) -> _FollowedPod:
        self._stages[stage] += 1
        created = view.metadata.creation_timestamp
        age_s = max(0.0, (self._env.now() - created).total_seconds()) if created is not None else 0.0
        if age_s <= _RESOLUTION_S:
            return _FollowedPod(stage, now_s)
        # From before this process, or from a list: another process has counted the stages that it has behind it.
        pod = _FollowedPod(stage, now_s, queued_s=None if stage is ReplicaStage.ADMITTED else now_s - age_s)
        pod.waits_for = tuple(slo for slo in pod.waits_for if not _has_reached(slo, stage))
        if pod.queued_s is not None:
            for slo in pod.waits_for:
                heapq.heappush(self._deadlines, (pod.queued_s + self._within_s[slo], slo, view.uid))
        return pod

    def _move(self, pod: _FollowedPod, stage: ReplicaStage | None, now_s: float, decision: str) -> None:
        if pod.stage is not None:
            self._stages[pod.stage] -= 1
            self._took.labels(str(pod.stage)).observe(now_s - pod.entered_s, decision)
        if stage is not None:
            self._stages[stage] += 1
        pod.stage, pod.entered_s = stage, now_s

    def _judge(self, pod: _FollowedPod, view: PodView | None, now_s: float, decision: str) -> None:
        """Count the objectives that this change decides."""
        for slo in pod.waits_for:
            late = pod.queued_s is not None and now_s > pod.queued_s + self._within_s[slo]
            ended = view is not None and view.finished
            if pod.stage is not None and _has_reached(slo, pod.stage):
                self._count(pod, slo, good=not late, decision=decision)
            elif ended and view is not None:
                self._count(pod, slo, good=not late and view.status.phase == "Succeeded", decision=decision)
            elif late:
                self._count(pod, slo, good=False, decision=decision)

    def _count(self, pod: _FollowedPod, slo: str, *, good: bool, decision: str = "") -> None:
        pod.waits_for = tuple(each for each in pod.waits_for if each != slo)
        self._slos[slo].count(self._env.monotonic(), good=good, decision=decision)


def _has_reached(slo: str, stage: ReplicaStage) -> bool:
    return stage in (_BOUND if slo == TIME_TO_BOUND else (ReplicaStage.READY,))
