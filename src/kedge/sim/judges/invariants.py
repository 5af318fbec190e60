"""The judge of a simulated cluster: checks the invariants at every commit and at every process start.

Commit invariants are in `placement_invariants`, `lifecycle_invariants`, `condition_invariants` and
`account_invariants`, those of process starts in `process_starts`, the bound on requests during an outage in `outages`,
the cost of a minute in `costs`, the age of views in `freshness`, and the state a run must end in in `endings`. All read
committed state, never a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kedge.agent.core import ContainerProcess
from kedge.limits import Limits
from kedge.sim.cluster import Cluster, Commit
from kedge.sim.cluster.agents import SimulatedDriver
from kedge.sim.judges.account_invariants import ACCOUNTS
from kedge.sim.judges.condition_invariants import CONDITIONS
from kedge.sim.judges.costs import CostLimits, Costs
from kedge.sim.judges.explanations import LastDecisions
from kedge.sim.judges.facts import LAG_S, ClusterFacts
from kedge.sim.judges.freshness import FreshnessJudge
from kedge.sim.judges.lifecycle_invariants import LIFECYCLE
from kedge.sim.judges.outages import Outages
from kedge.sim.judges.placement_invariants import PLACEMENT
from kedge.sim.judges.process_starts import PROCESSES
from kedge.sim.judges.registry import CommitInvariant, Rule
from kedge.sim.kernel import Simulation
from kedge.sim.kernel.invariants import name_of

SAFETY = (*PLACEMENT.invariants, *LIFECYCLE.invariants, *CONDITIONS.invariants, *ACCOUNTS.invariants)
"""Every commit invariant, in the order in which they are checked."""
OUTAGES = "requests are bounded during an outage"
"""The invariant that is checked when a request cannot be delivered: see `outages`."""
COSTS = "the cost of a minute is bounded"
"""Checked when a decision ends, at every commit, list and watch: see `costs`."""
FRESHNESS = "decisions are based on fresh views"
"""Checked when a decision ends: see `freshness`."""


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
        costs: CostLimits | None = None,
    ) -> None:
        """`without` leaves out invariants by the name of their function; `also` are others, checked at every commit.

        `lag_s` is how old the state may be that a component acts on, `costs` the most that a minute may cost.
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
            Outages(cluster, self.facts.limits, partial(self._on_finding, OUTAGES))
        self.last_decisions = LastDecisions(cluster)
        self.steps = 0
        cluster.sim.check_always(self)
        if COSTS.replace(" ", "_") not in without and lag_s <= LAG_S:  # the limits are calibrated for this lag
            cluster.sim.check_always(Costs(cluster, costs or CostLimits(), partial(self._on_finding, COSTS)).commit)
        if FRESHNESS.replace(" ", "_") not in without:
            fresh = FreshnessJudge(cluster, self.facts.limits, partial(self._on_finding, FRESHNESS))
            cluster.sim.check_always(fresh.commit)
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

    def _on_finding(self, name: str, cause: str, message: str) -> None:
        self._sim.violate(name, message, cause=cause)

    def _on_start(self, driver: SimulatedDriver, process: ContainerProcess) -> None:
        for rule in self._processes:
            for cause, message in rule(self.facts, driver, process):
                self._sim.violate(rule.__name__.replace("_", " "), message, cause=cause)
                return
