"""The cost of a run: how much components may spend in a virtual minute. The simulator counts it, not the components.

`invariants.Judge` uses this. A loop that harms nothing is still a bug: in production it is the load that other work
waits behind. A breach names the key and the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from kedge.api.requests import List, OpenWatch
from kedge.api.wellknown import (
    EVENT_KIND,
    FENCE_KIND,
    LEASE_KIND,
    NODE_ALLOCATION_KIND,
    OPERATION_KIND,
    RESOURCE_QUOTA_KIND,
    ZONE_QUOTA_KIND,
)
from kedge.keys import Key
from kedge.observe.records import Call, Decision
from kedge.sim.cluster import Cluster, Commit
from kedge.sim.cluster.decision_observers import ObservedDecision
from kedge.sim.judges.facts import Finding

WINDOW_S = 60.0
SIDE_EFFECTS = frozenset(
    {NODE_ALLOCATION_KIND, RESOURCE_QUOTA_KIND, ZONE_QUOTA_KIND, OPERATION_KIND, FENCE_KIND, EVENT_KIND}
)
"""Kinds that a commit changes because of another object: their cost is the cost of that object."""
UPKEEP = frozenset({LEASE_KIND, OPERATION_KIND, EVENT_KIND})
"""Kinds whose changes are no work for a controller."""

RENEWS_EARLY = 0.4
"""The shortest time between two renewals of a lease, as a share of the interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLimits:
    """The most that sound components spend in one virtual minute. Clean seeds need less than half of each.

    The limits of decisions and writes are for a minute in which nothing else happens: each commit of another component
    and each fault, in that minute or the one before, allows one more. The limits of leases, lists and watches grow with
    faults.
    """

    decisions_per_key_max: int = 30
    """Decisions of one controller about one key, or attempts of one scheduler to place one pod."""
    failures_per_key_max: int = 40
    """Decisions of one controller about one key that failed with the same error: a backoff bounds them."""
    refusals_per_key_max: int = 12
    """Requests about one key that were refused for the same reason."""
    writes_per_key_max: int = 15
    """Commits of one component that change one object."""
    terms_per_lease_max: int = 12
    """Changes of the holder of one lease."""
    lists_per_kind_max: int = 24
    """Lists of one kind by one client: each reads all of its objects."""
    watches_per_kind_max: int = 24
    """Watches of one kind that one client opens."""
    decisions_per_change_max: float = 6.0
    """Decisions of the whole cluster, for each commit of that minute or the one before."""
    idle_decisions_max: int = 240
    """The same in a minute without a commit."""
    history_per_change_max: float = 10.0
    """Versions that a minute adds to the history of the store, records included, for each such commit. Renewals of
    leases add none."""
    idle_history_max: int = 400
    """The same in a minute without a commit."""
    operations_per_change_max: float = 3.0
    """Operation records that a minute adds, for each such commit. A commit has at most one, and a term has one too."""
    idle_operations_max: int = 60
    """The same in a minute without a commit."""


class Costs:
    """The expenses of the current minute, by component and key."""

    def __init__(self, cluster: Cluster, limits: CostLimits, found: Callable[[str, str], None]) -> None:
        self._sim = cluster.sim
        self._limits = limits
        self._found = found
        self._until_s = WINDOW_S
        self._spent: dict[tuple[Hashable, ...], int] = {}
        self._decisions = 0
        self._versions = 0
        """Versions that this minute has added to the history..."""
        self._operations = 0
        """...and the operation records among them."""
        self._commits: dict[str, int] = {}
        """Commits of this minute by writer; those of people and machines have none."""
        self._commits_before: dict[str, int] = {}
        self._faults_before = 0
        """Faults until the minute before this one began..."""
        self._faults_begin = 0
        """...and until this one began."""
        cluster.observe_decisions(self._decided)
        cluster.observe_follows(self._followed)

    def commit(self, commit: Commit) -> None:
        """Count the writes of one commit."""
        self._begin_minute()
        writer = commit.origin.decision.partition(":")[0]
        if any(key.kind not in UPKEEP for key in commit.keys):
            self._commits[writer] = self._commits.get(writer, 0) + 1
        for key in commit.keys:
            if key.kind != LEASE_KIND:  # a renewal replaces the version before it, which is in no history
                self._versions += 1
                self._spend("version", writer, key.kind)
            if key.kind == OPERATION_KIND and commit.store.newest(key) is not None:
                self._operations += 1
            if key.kind == FENCE_KIND:
                if self._spend("term", key) > self._limits.terms_per_lease_max + self._faults():
                    self._breach("term", f"the lease of {key.name} got another holder", "term", key)
            elif writer and key.kind not in SIDE_EFFECTS:
                count = self._spend("write", writer, key)
                if count > self._limits.writes_per_key_max and count > self._allowed(
                    self._limits.writes_per_key_max, writer
                ):
                    self._breach(f"write {writer} {key.kind}", f"{writer} wrote {key}", "write", writer, key)

    def _decided(self, ended: ObservedDecision) -> None:
        self._begin_minute()
        limits, record, controller, key = self._limits, ended.record, ended.controller, ended.key
        self._decisions += 1
        most = limits.decisions_per_key_max
        count = self._spend("decision", controller, key)
        if count > most and count > self._allowed(most, controller):
            text = f"{controller} decided about {key}{_woken_by(record)}"
            self._breach(f"decision {controller} {key.kind}", text, "decision", controller, key)
        if record is None or not record.error:
            return
        error = record.error.partition(":")[0]
        if self._spend("failure", controller, key, error) > limits.failures_per_key_max:
            text = f"{controller} failed at {key} with {record.error}"
            self._breach(f"failure {controller} {error}", text, "failure", controller, key, error)
        for refused in _refusals(record):
            if self._spend("refusal", key, refused) > limits.refusals_per_key_max:
                text = f"{controller} was refused {key} because of {refused}"
                self._breach(f"refusal {controller} {refused}", text, "refusal", key, refused)

    def _followed(self, host: str, request: List | OpenWatch) -> None:
        self._begin_minute()
        kind = request.kind.key_kind
        if isinstance(request, List):
            if request.options.continue_token or request.options.limit == 1:
                return  # another page, or a probe of the revision
            verb, most = "listed", self._limits.lists_per_kind_max
        else:
            verb, most = "watched", self._limits.watches_per_kind_max
        if self._spend(verb, host, kind) > most + self._faults():
            self._breach(f"{verb} {kind}", f"{host} {verb} {kind}", verb, host, kind)

    # -- minutes -----------------------------------------------------------------------------------

    def _spend(self, *what: Hashable) -> int:
        count = self._spent[what] = self._spent.get(what, 0) + 1
        return count

    def _allowed(self, most: int, writer: str) -> int:
        """`most`, and one for each commit of others and each fault of this minute and the one before."""
        commits = sum(self._commits.values()) + sum(self._commits_before.values())
        own = self._commits.get(writer, 0) + self._commits_before.get(writer, 0)
        return most + commits - own + self._faults()

    def _faults(self) -> int:
        return len(self._sim.faults.struck) - self._faults_before

    def _begin_minute(self) -> None:
        now_s = self._sim.now_s
        if now_s < self._until_s:
            return
        self._end_minute()
        if now_s >= self._until_s + WINDOW_S:  # a minute without anything came between
            self._commits_before, self._faults_before = {}, self._faults_begin
        self._until_s = (now_s // WINDOW_S + 1) * WINDOW_S

    def _end_minute(self) -> None:
        commits = sum(self._commits.values()) + sum(self._commits_before.values())
        self._check_decisions(commits)
        self._check_history(commits)
        self._spent.clear()
        self._decisions = self._versions = self._operations = 0
        self._commits_before, self._commits = self._commits, {}
        self._faults_before, self._faults_begin = self._faults_begin, len(self._sim.faults.struck)

    def _check_decisions(self, commits: int) -> None:
        limits = self._limits
        if self._decisions > limits.idle_decisions_max + limits.decisions_per_change_max * commits:
            (_, controller, key), count = self._busiest("decision")
            self._found(
                f"amplification {controller}",
                f"{self._decisions} decisions in a minute, with {commits} commits in that minute and the one before;"
                f" {count} of them by {controller} about {key}",
            )

    def _check_history(self, commits: int) -> None:
        """The history and the records of operations cost memory until they are compacted or expire."""
        limits, text = self._limits, f"in a minute, with {commits} commits in that minute and the one before"
        if self._versions > limits.idle_history_max + limits.history_per_change_max * commits:
            (_, writer, kind), count = self._busiest("version")
            by = f"{count} of kind {kind} by {writer or 'people and machines'}"
            self._found(f"history {writer} {kind}", f"{self._versions} versions {text}; {by}")
        if self._operations > limits.idle_operations_max + limits.operations_per_change_max * commits:
            counts = {
                each[1]: n for each, n in self._spent.items() if each[0] == "version" and each[2] == OPERATION_KIND
            }
            writer = max(counts, key=lambda each: counts[each])
            by = f"{counts[writer]} of them by {writer or 'people and machines'}"
            self._found(f"operations {writer}", f"{self._operations} operation records {text}; {by}")

    def _busiest(self, what: str) -> tuple[tuple[Hashable, ...], int]:
        counts = {spent: count for spent, count in self._spent.items() if spent[0] == what}
        busiest = max(counts, key=lambda each: counts[each])
        return busiest, counts[busiest]

    def _breach(self, cause: str, text: str, *what: Hashable) -> None:
        spent_s = self._sim.now_s - self._until_s + WINDOW_S
        self._found(cause, f"{text}: {self._spent[what]} times within {spent_s:.0f} s")


def _refusals(record: Decision) -> Iterator[str]:
    for step in record.steps:
        if isinstance(step, Call) and step.outcome == "Refused" and step.error is not None:
            causes = step.error.get("details", {}).get("causes", ())
            yield next((each["message"] for each in causes if each["reason"].endswith("Refused")), "Refused")


def _woken_by(record: Decision | None) -> str:
    """The other half of the loop: the change that woke the key, and its writer."""
    if record is None or not record.wakes:
        return ""
    what, writer = record.wakes[-1]
    return f", woken by {what}" + (f", which {writer} wrote" if writer else "")


class UpkeepCommits:
    """Commits of a settled cluster to objects that are no work: leases, their fences, operation records, Events."""

    __name__ = "upkeep of a settled cluster"

    def __init__(self, cluster: Cluster) -> None:
        self._limits = cluster.limits
        self._counts: dict[Key, int] = {}
        self._writer: dict[Key, str] = {}
        cluster.sim.check_always(self)

    def __call__(self, commit: Commit) -> None:
        of_lease = any(key.kind == LEASE_KIND for key in commit.keys)
        for key in commit.keys:
            if key.kind == OPERATION_KIND and of_lease:
                continue  # the record of a lease that changed its holder
            if key.kind in (OPERATION_KIND, EVENT_KIND) and commit.store.newest(key) is None:
                continue  # it has expired
            if key.kind in UPKEEP or key.kind == FENCE_KIND:
                self._counts[key] = self._counts.get(key, 0) + 1
                self._writer[key] = commit.origin.decision

    def too_many(self, for_s: float) -> Iterator[Finding]:
        """Objects that were written more often than renewals, and one more change of the leader, explain."""
        limits = self._limits
        renew_s = min(limits.lease_retry_s, limits.node_renew_s) * RENEWS_EARLY
        for key, count in self._counts.items():
            most = {LEASE_KIND: 2 + for_s / renew_s, FENCE_KIND: 1}.get(key.kind, 0)
            if count > most:
                writer = f" by {self._writer[key]}" if self._writer[key] else ""
                yield key.kind, f"written {count} times in {for_s:.0f} s after everything was done: {key}{writer}"
