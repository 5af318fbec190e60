"""The judge of a simulated cluster: checks the invariants at every commit and at every process start.

Commit invariants are in `placement_invariants`, `lifecycle_invariants` and `condition_invariants`, those of process
starts in `process_starts`, the bound on requests during an outage in `outages`, and the state a run must end in in
`endings`. All read committed state, never a cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from kedge.agent.core import ContainerProcess
from kedge.limits import Limits
from kedge.sim.cluster import Cluster, Commit
from kedge.sim.cluster.agents import SimulatedDriver
from kedge.sim.judges.condition_invariants import CONDITIONS
from kedge.sim.judges.facts import LAG_S, ClusterFacts
from kedge.sim.judges.lifecycle_invariants import LIFECYCLE
from kedge.sim.judges.outages import Outages
from kedge.sim.judges.placement_invariants import PLACEMENT
from kedge.sim.judges.process_starts import PROCESSES
from kedge.sim.judges.registry import CommitInvariant, Rule
from kedge.sim.kernel import Simulation
from kedge.sim.kernel.invariants import name_of

SAFETY = (*PLACEMENT.invariants, *LIFECYCLE.invariants, *CONDITIONS.invariants)
"""Every commit invariant, in the order in which they are checked."""
OUTAGES = "requests are bounded during an outage"
"""The invariant that is checked when a request cannot be delivered: see `outages`."""


class Judge:
    """Checks the invariants of a cluster. Create it before the first commit that it must see."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        without: tuple[str, ...] = (),
        limits: Limits | None = None,
        also: Sequence[Rule] = (),
        lag_s: float = LAG_S,
    ) -> None:
        """`without` leaves out invariants by the name of their function; `also` are others, checked at every commit.

        `lag_s` is how old the state may be that a component acts on.
        """
        self._sim: Simulation = cluster.sim
        self.cluster = cluster
        self.facts = ClusterFacts(
            cluster.store, lambda: cluster.sim.now_s, limits or cluster.limits, cluster.drivers, lag_s=lag_s
        )
        self._every = [each for each in SAFETY if not each.kinds and each.rule.__name__ not in without]
        self._every += [CommitInvariant(each, frozenset(), name_of(each)) for each in also]
        self._by_kind: dict[str, list[CommitInvariant]] = {}
        for each in SAFETY:
            if each.rule.__name__ not in without:
                for kind in sorted(each.kinds):
                    self._by_kind.setdefault(kind, []).append(each)
        self._processes = [each for each in PROCESSES if each.__name__ not in without]
        if OUTAGES.replace(" ", "_") not in without:
            Outages(cluster, self.facts.limits, self._on_request_storm)
        self.steps = 0
        cluster.sim.check_always(self)
        cluster.observe_starts(self._on_start)

    __name__ = "the judge"

    def __call__(self, commit: Commit) -> None:
        step = self.facts.step(commit)
        self.steps += 1
        due = list(self._every)
        for kind in dict.fromkeys(each.key.kind for each in step.changes):
            due.extend(each for each in self._by_kind.get(kind, ()) if each not in due)
        for each in due:
            for cause, message in each.rule(step) or ():
                self._sim.violate(each.name, f"{message} (revision {step.revision})", cause=cause)
                return

    def _on_request_storm(self, cause: str, message: str) -> None:
        self._sim.violate(OUTAGES, message, cause=cause)

    def _on_start(self, driver: SimulatedDriver, process: ContainerProcess) -> None:
        for rule in self._processes:
            for cause, message in rule(self.facts, driver, process):
                self._sim.violate(rule.__name__.replace("_", " "), message, cause=cause)
                return
