"""A model of pods that carries out the plans of a ReplicaSet. No service, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tests.kit.pod_views import NOW, a_pod

from kedge.api.views import PodView
from kedge.controllers.replicaset.plan import ReplicaPlan, ReplicaRules, plan_replicas
from kedge.controllers.shared.slots import free_slots, slot_name


@dataclass(slots=True)
class ModelPod:
    """The true state of one pod; `view` is what a controller reads."""

    name: str
    uid: str
    born: datetime
    replaces: str = ""
    node: str = ""
    phase: str = "Pending"
    ready_at: datetime | None = None
    draining_at: datetime | None = None
    terminating: bool = False
    lost: bool = False

    @property
    def runs(self) -> bool:
        return self.phase not in ("Succeeded", "Failed")

    def view(self) -> PodView:
        return a_pod(
            self.name,
            uid=self.uid,
            node=self.node,
            phase=self.phase,
            age_s=(NOW - self.born).total_seconds(),
            ready_s=None if self.ready_at is None else (NOW - self.ready_at).total_seconds(),
            draining_s=None if self.draining_at is None else (NOW - self.draining_at).total_seconds(),
            terminating=self.terminating,
            lost=self.lost,
            replaces=self.replaces,
        )


@dataclass(slots=True)
class PodModel:
    """Pods by name, as in the API: a name exists once."""

    owner: str = "web"
    now: datetime = NOW
    pods: dict[str, ModelPod] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    born: int = 0

    def views(self) -> list[PodView]:
        return [self.pods[name].view() for name in sorted(self.pods)]

    def running(self) -> list[ModelPod]:
        return [pod for pod in self.pods.values() if pod.runs]

    def active(self) -> list[ModelPod]:
        return [pod for pod in self.running() if not pod.terminating and pod.draining_at is None]

    def ready(self) -> list[ModelPod]:
        return [pod for pod in self.active() if pod.ready_at is not None]

    def plan(self, rules: ReplicaRules) -> ReplicaPlan:
        return plan_replicas(rules, self.views(), now=self.now, listed=self.listed)

    def slots(self, plan: ReplicaPlan) -> list[tuple[str, str]]:
        """The names of the pods to create, with the uid that each replaces."""
        slots = free_slots(self.owner, len(plan.create), self.pods.__contains__)
        return [(slot_name(self.owner, slot), uid) for slot, uid in zip(slots, plan.create, strict=True)]

    def apply(self, plan: ReplicaPlan, names: list[tuple[str, str]]) -> None:
        """Carry a plan out as the API would: by uid; a name that is taken is not created again."""
        for pod in plan.release:
            if found := self._same(pod):
                found.phase, found.ready_at = "Failed", None
        for pod in plan.resume:
            if found := self._same(pod):
                found.draining_at = None
        for pod in plan.drain:
            if found := self._same(pod):
                found.draining_at = found.draining_at or self.now
        for pod in (*plan.delete, *plan.sweep):
            if found := self._same(pod):
                if found.node and found.runs:
                    found.terminating = True
                else:
                    del self.pods[found.name]
        for name, replaces in names:
            if name not in self.pods:
                self.born += 1
                self.pods[name] = ModelPod(name, f"uid-{self.born}", self.now, replaces=replaces)

    def step(self, rules: ReplicaRules) -> ReplicaPlan:
        plan = self.plan(rules)
        self.apply(plan, self.slots(plan))
        return plan

    def heal(self) -> None:
        """Complete everything in progress: nodes, starts, stops, endpoints, time."""
        self.now += timedelta(seconds=60)
        for pod in list(self.pods.values()):
            if pod.terminating and not pod.lost:
                if pod.runs:
                    del self.pods[pod.name]
            elif pod.runs and not pod.lost:
                pod.node = pod.node or "node-a"
                pod.phase = "Running"
                pod.ready_at = pod.ready_at or self.now
        self.listed = {pod.uid for pod in self.ready()}

    def settle(self, rules: ReplicaRules, *, rounds: int = 60) -> int:
        """Plan and heal until the plan is silent. Returns the number of rounds."""
        for done in range(rounds):
            if self.step(rules).silent and len(self.ready()) == len(self.pods):
                return done
            self.heal()
        raise AssertionError(f"no rest after {rounds} rounds: {self.views()}")

    def _same(self, pod: PodView) -> ModelPod | None:
        found = self.pods.get(pod.name)
        return found if found is not None and found.uid == pod.uid else None
