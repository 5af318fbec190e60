"""The evidence for one condition: the committed state of a span of time, which its writer may have acted on.

Claims are functions of it (`workload_claims`, `object_claims`); `condition_invariants` chooses the span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from kedge.api.objects import Object
from kedge.api.views import Condition
from kedge.api.wellknown import DEPLOYMENT_KIND, REPLICA_SET_KIND
from kedge.sim.judges.condition_histories import ConditionFlip
from kedge.sim.judges.facts import ClusterFacts
from kedge.sim.judges.replica_tallies import ReplicaTally, TallyRange
from kedge.sim.judges.workload_specs import is_of_template


@dataclass(frozen=True, slots=True)
class ConditionEvidence:
    """A condition, and the state from `since_s` until `until_s`."""

    facts: ClusterFacts
    of: Object
    condition: Condition
    since_s: float
    until_s: float
    by: str = ""
    """The controller that wrote it; empty for an agent."""
    earlier: ConditionFlip | None = None
    """The change of status before this one, if there was one."""

    @property
    def is_current(self) -> bool:
        """Whether the condition is about the object's newest generation."""
        return self.condition.observed_generation == self.of.metadata.generation

    @property
    def least_wanted(self) -> int:
        return self.facts.least_wanted(self.of.uid, self.facts.now_s() - self.facts.lag_s)

    @property
    def most_wanted(self) -> int:
        return self.facts.most_requested(self.of.uid, self.facts.now_s() - self.facts.lag_s)

    def sets(self) -> list[TallyRange]:
        """The counts of each ReplicaSet of a Deployment, or of the workload itself.

        The controller of a Deployment reads what each ReplicaSet has counted, each at a time of its own.
        """
        tallies = self.facts.tallies
        return [tallies.between(each, self.since_s, self.until_s) for each in tallies.sets_of(self.of.uid)]

    def current(self) -> TallyRange | None:
        """The counts of the pods of the current template; None if a Deployment has no ReplicaSet for it."""
        uid = self.of.uid
        if self.of.key.kind == DEPLOYMENT_KIND:
            found = self._current_set()
            if found is None:
                return None
            uid = found.uid
        return self.facts.tallies.between(uid, self.since_s, self.until_s)

    def _current_set(self) -> Object | None:
        """The ReplicaSet of the current template of a Deployment."""
        facts = self.facts
        sets = (facts.objects.get(key) for key in facts.children.get(self.of.uid, ()) if key.kind == REPLICA_SET_KIND)
        return next((each for each in reversed([*sets]) if each is not None and is_of_template(each, self.of)), None)

    @property
    def is_current_set_deleted(self) -> bool:
        """Whether the ReplicaSet of the current template is terminating: a person has deleted it."""
        found = self._current_set() if self.of.key.kind == DEPLOYMENT_KIND else None
        return found is not None and found.metadata.deletion_timestamp is not None

    def most(self) -> ReplicaTally:
        return _sum(each.most for each in self.sets())

    def least(self) -> ReplicaTally:
        return _sum(each.least for each in self.sets())

    def earliest(self, claim: Claim) -> float | None:
        """The oldest state in the span by which a claim holds; None if none does."""
        if claim(self):
            return None
        moments = sorted({self.since_s, self.until_s, *self.facts.tallies.moments(self.of.uid, self.since_s)})
        low, high = 0, len(moments) - 1
        while low < high:
            middle = (low + high) // 2
            if claim(replace(self, until_s=moments[middle])):
                low = middle + 1
            else:
                high = middle
        return moments[low]


def _sum(tallies: Iterable[ReplicaTally]) -> ReplicaTally:
    found = list(tallies)
    return found[0] if len(found) == 1 else ReplicaTally(*map(sum, zip(*found, strict=True)))


Claim = Callable[[ConditionEvidence], str]
"""Returns why a condition has not this status in that state; empty if it has, or if the state does not show it."""


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a condition, one for each of its statuses. A status without one cannot be judged."""

    true: Claim | None = None
    false: Claim | None = None
    unknown: Claim | None = None
    back: Claim | None = None
    """Why a status that returns has no explanation, in addition."""
    moves: bool = False
    """Its subject is the replicas: it is judged again when they have changed."""
    own: bool = False
    """Its subject is the object itself: it is judged at every commit of the object."""

    def of(self, status: str) -> Claim | None:
        return self.true if status == "True" else self.false if status == "False" else self.unknown
