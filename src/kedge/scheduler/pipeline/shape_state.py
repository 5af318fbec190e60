"""What is known of one shape on every row: masks, scores and totals, repaired for the rows that changed.

`decide` takes the best row from `totals`; `explain` asks each filter for its answer. Everything here can be computed
anew from the snapshot at any time, and a test holds that doing so changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from kedge.api.wellknown import REGION_LABEL, ZONE_LABEL
from kedge.placement.reasons import Reason
from kedge.scheduler.pipeline import scores
from kedge.scheduler.pipeline.filters import (
    AffinityFilter,
    AntiAffinityFilter,
    Blocker,
    SpreadFilter,
    fits_all,
    fits_row,
    node_failures,
    selected,
    shortages_all,
    tolerated,
)
from kedge.scheduler.pipeline.selection import INFEASIBLE, BestRows
from kedge.scheduler.policy.settings import NODE_AFFINITY, POD_AFFINITY, TAINT_TOLERATION, TOPOLOGY_SPREAD
from kedge.scheduler.state.columns import ABSENT, EVERY, Bools, Ints, as_rows
from kedge.scheduler.state.shapes import NO_LABELS, PodRequest, PodShape, Spread
from kedge.scheduler.state.snapshot import Snapshot
from kedge.scheduler.state.tallies import (
    AntiAffinityOfOthersRule,
    AttractionRule,
    PodTally,
    PortConflictRule,
    SelectorRule,
    TallyRule,
    TermsRule,
    WorkloadRule,
)

Failures = list[tuple[Blocker, Bools]]
Flips = list[Ints | slice]
"""Rows whose answer is another now; a slice for all of them."""
_WHOLE_PART = 16
"""Where more than one row in so many changes, going over all of them is quicker than picking these."""


class ShapeState:
    """One shape on one snapshot."""

    def __init__(self, snapshot: Snapshot, shape: PodShape) -> None:
        self._snapshot = snapshot
        self.shape = shape
        self.weights = dict(shape.key.settings.weights)
        self._tallies: list[PodTally] = []
        self.ports = self._use(PortConflictRule(shape.wants.ports)) if shape.wants.ports else None
        self.spreads = [(constraint, self._spread_filter(constraint)) for constraint in shape.spread_required]
        self.policy = self._policy_filter()
        self.affinity = self._affinity_filter()
        self.aparts = list(self._apart_filters())
        self.preferences = list(self._preferences())
        self.relational = bool(self.spreads or self.policy or self.affinity or self.aparts) or any(
            preference.about_pods for preference in self.preferences
        )
        """Whether anything but ports and resources changes with claims; then a change of layout is counted anew."""
        self._shifting = any(preference.about_pods for preference in self.preferences)
        """Whether a claim may change the scores of rows that it is not on."""
        self.epoch = snapshot.tallies.epoch
        self.asked: PodRequest | None = None
        """The request that it was last found for, under `settings`."""
        self.settings = shape.key.settings
        self.best = BestRows(snapshot)
        self.blocked: tuple[str, ...] = ()
        self._quota: Bools | None = None
        self._layout = self._claims_at = self._nodes_at = 0
        """How far it has followed the snapshot."""
        self._closed: Bools
        self._fits: Bools
        self._scored = scores.Allocation(shape.wants, self.weights)
        self._allocation: Ints
        self._idle = 0
        """What the preferences in which no nodes differ add to every row."""
        self.feasible: Bools
        self.feasible_count = 0
        self.totals: Ints
        self.rebuild()

    # -- what the shape needs

    def _use(self, rule: TallyRule) -> PodTally:
        tally = self._snapshot.tallies.use(rule)
        self._tallies.append(tally)
        return tally

    def close(self) -> None:
        """Give back the tallies: nobody will ask for this shape any more."""
        for tally in self._tallies:
            self._snapshot.tallies.end(tally)
        self._tallies = []

    def _spread_filter(self, constraint: Spread) -> SpreadFilter:
        return SpreadFilter(
            self._snapshot,
            Blocker(Reason.TOPOLOGY_SPREAD, constraint.topology_key),
            constraint.topology_key,
            self._use(SelectorRule(self.shape.key.namespace, constraint.selector)),
            skew_max=constraint.skew_max,
            domains_min=constraint.domains_min,
            itself=int(constraint.counts_itself),
        )

    def _policy_filter(self) -> SpreadFilter | None:
        key = self.shape.key
        settings = key.settings
        if settings.zone_skew_max is None or not key.workload:
            return None
        return SpreadFilter(
            self._snapshot,
            Blocker(Reason.POLICY, f"{settings.policy} {settings.version} maxZoneSkew"),
            ZONE_LABEL,
            self._use(WorkloadRule(key.namespace, key.workload)),
            skew_max=settings.zone_skew_max,
        )

    def _affinity_filter(self) -> AffinityFilter | None:
        key, terms = self.shape.key, self.shape.terms.affinity
        if not terms:
            return None
        own = self._snapshot.tallies.namespaces.get(key.namespace, NO_LABELS)
        return AffinityFilter(
            self._snapshot,
            tuple(term.topology_key for term in terms),
            self._use(TermsRule(terms)),
            means_itself=all(term.means(key.namespace, key.labels, own) for term in terms),
        )

    def _apart_filters(self) -> Iterator[AntiAffinityFilter]:
        snapshot, key = self._snapshot, self.shape.key
        for term in self.shape.terms.anti_affinity:
            blocker = Blocker(Reason.POD_ANTI_AFFINITY, term.topology_key)
            yield AntiAffinityFilter(snapshot, blocker, term.topology_key, self._use(TermsRule((term,))))
        for topology_key in snapshot.tallies.anti_affinity_keys:
            blocker = Blocker(Reason.ANTI_AFFINITY_OF_OTHERS, topology_key)
            tally = self._use(AntiAffinityOfOthersRule(topology_key, key.namespace, key.labels))
            yield AntiAffinityFilter(snapshot, blocker, topology_key, tally)

    def _preferences(self) -> Iterator[scores.Preference]:
        snapshot, shape = self._snapshot, self.shape
        key, wants, weights = shape.key, shape.wants, self.weights
        if weights[TAINT_TOLERATION]:
            yield scores.TaintPreference(snapshot, wants)
        if wants.preferred and weights[NODE_AFFINITY]:
            yield scores.NodePreference(snapshot, wants)
        topology_keys = {
            **dict.fromkeys(weighted.term.topology_key for weighted in shape.terms.preferred),
            **snapshot.tallies.attraction_keys,
        }
        if topology_keys and weights[POD_AFFINITY]:
            yield scores.PodPreference(
                snapshot,
                {
                    topology_key: self._use(
                        AttractionRule(topology_key, key.namespace, key.labels, shape.terms.preferred)
                    )
                    for topology_key in topology_keys
                },
            )
        if shape.spread_preferred and weights[TOPOLOGY_SPREAD]:
            tallies = [self._use(SelectorRule(key.namespace, c.selector)) for c in shape.spread_preferred]
            yield scores.SpreadPreference(snapshot, shape.spread_preferred, tallies, self._admitted)

    # -- keeping up

    def refresh(self, blocked: tuple[str, ...]) -> None:
        """Make every vector what the snapshot says now. `blocked` are the zones whose quota has no room."""
        snapshot = self._snapshot
        if len(self.totals) != snapshot.capacity or (self.relational and self._layout != snapshot.layout):
            self.blocked = blocked
            self.rebuild()
            return
        claims, nodes = snapshot.claim_log.since(self._claims_at), snapshot.node_log.since(self._nodes_at)
        if claims is None or nodes is None or len(claims) + len(nodes) > snapshot.limits.scheduler_repair_max:
            self.blocked = blocked
            self.rebuild()
            return
        if not nodes and not self.relational and blocked == self.blocked:
            if claims:
                self._follow(claims)
            return
        flips: Flips = []
        if blocked != self.blocked or (nodes and self.blocked):
            flips.append(self._block(blocked))
        if nodes:
            claims = self._repair_nodes(claims, nodes)
        if claims:
            self._claims_at = snapshot.claim_log.end
            self._repair_claims(claims, flips)
        if claims or flips:
            self._retotal(claims, flips, shifted=bool(nodes) or self._shifting)

    def _follow(self, rows: list[int]) -> None:
        """Claims on some rows moved and nothing else, for a shape without rules about pods: each row stands alone."""
        snapshot, wants, totals = self._snapshot, self.shape.wants, self.totals
        self._claims_at = snapshot.claim_log.end
        for row in rows:
            node = snapshot.peek(row)
            if node is None:
                continue  # nobody is there any more, and so it was before
            fits = fits_row(snapshot, wants, node) and (self.ports is None or not self.ports.rows[row])
            self._fits[row] = fits
            allocation = self._allocation[row] = self._scored.row(node)
            was = totals.item(row)
            open_ = fits and not self._closed[row] and (self._quota is None or bool(self._quota[row]))
            if open_ != (was != INFEASIBLE):
                self._repair_claims(rows, [])  # scores are in proportion to the feasible nodes
                self._retotal(rows, [], shifted=True)
                return
            if open_:
                total = allocation + self._idle
                for weight, points in self._added:
                    total += weight * points.item(row)
                totals[row] = total
                self.best.moved(row, was, total)
        snapshot.repairs += len(rows)

    def rebuild(self) -> None:
        """Compute everything anew."""
        snapshot, wants = self._snapshot, self.shape.wants
        self._layout = snapshot.layout
        self._claims_at, self._nodes_at = snapshot.claim_log.end, snapshot.node_log.end
        self._closed = self._closed_rows(EVERY)
        self._fits = fits_all(snapshot, wants)
        if self.ports is not None:
            self._fits &= self.ports.rows == 0
        self._allocation = self._scored.all(snapshot)
        self._block(self.blocked)
        self._rebuild_relations()
        self.feasible = self._feasible(EVERY)
        self.feasible_count = int(np.count_nonzero(self.feasible))
        self._sum_all(self._additions(self.feasible))

    def _rebuild_relations(self) -> None:
        snapshot = self._snapshot
        if self.spreads:
            keyed = snapshot.exists.copy()
            for constraint, _ in self.spreads:
                keyed &= snapshot.column(constraint.topology_key).ids != ABSENT
            for constraint, spread in self.spreads:
                spread.rebuild(keyed & self._admitted(constraint))
        if self.policy is not None:
            governed = self._governed()
            possible = selected(snapshot, self.shape.wants) & tolerated(snapshot, self.shape.wants.tolerations)
            self.policy.rebuild(governed & possible, free=~governed)
        if self.affinity is not None:
            self.affinity.rebuild()
        for apart in self.aparts:
            apart.rebuild()
        for preference in self.preferences:
            preference.rebuild()

    def _admitted(self, constraint: Spread) -> Bools:
        """The rows whose domains and pods count under a constraint's inclusion policies."""
        snapshot, wants = self._snapshot, self.shape.wants
        rows = snapshot.exists.copy()
        if constraint.honor_affinity:
            rows &= selected(snapshot, wants)
        if constraint.honor_taints:
            rows &= tolerated(snapshot, wants.tolerations)
        return rows

    def _governed(self) -> Bools:
        """The rows that the policy's skew rule is about: those in its zones and regions."""
        snapshot, settings = self._snapshot, self.shape.key.settings
        governed: Bools = snapshot.exists & (snapshot.column(ZONE_LABEL).ids != ABSENT)
        for label, places in ((ZONE_LABEL, settings.zones), (REGION_LABEL, settings.regions)):
            if places:
                column = snapshot.column(label)
                governed &= np.isin(column.ids, [column.find(place) for place in sorted(places)])
        return governed

    def _closed_rows(self, rows: slice | Ints) -> Bools:
        """Where a filter on the node alone fails, or there is no node."""
        snapshot = self._snapshot
        closed: Bools = ~snapshot.exists[rows]
        for _, failing in node_failures(snapshot, self.shape.wants, rows):
            closed |= failing
        return closed

    def _block(self, blocked: tuple[str, ...]) -> Ints:
        """Set the zones that are full for the tenant. The rows whose answer may be another now."""
        column = self._snapshot.column(ZONE_LABEL)
        before = self._quota
        self.blocked = blocked
        self._quota = None
        if blocked:
            self._quota = ~np.isin(column.ids, [column.find(zone) for zone in blocked])
        if before is None and self._quota is None:
            return as_rows(())
        was = before if before is not None and len(before) == len(column.ids) else np.ones(len(column.ids), np.bool_)
        now = self._quota if self._quota is not None else np.ones(len(column.ids), np.bool_)
        return np.flatnonzero(was != now)

    def _repair_nodes(self, claims: list[int], nodes: list[int]) -> list[int]:
        """Judge changed nodes by themselves. The rows on which claims are to be judged: theirs too."""
        snapshot, rows = self._snapshot, as_rows(nodes)
        self._nodes_at = snapshot.node_log.end
        self._closed[rows] = self._closed_rows(rows)
        if self._layout != snapshot.layout:  # then nothing here is about pods, and it is soon done
            self._layout = snapshot.layout
            for preference in self.preferences:
                preference.rebuild()
        return sorted({*claims, *nodes})

    def _repair_claims(self, rows: list[int], flips: Flips) -> None:
        """Follow claims on some rows. Whatever other rows answer otherwise now is added to `flips`."""
        snapshot, wants = self._snapshot, self.shape.wants
        for row in rows:
            node = snapshot.peek(row)
            if node is None:
                self._fits[row] = False
                continue
            self._fits[row] = fits_row(snapshot, wants, node) and (self.ports is None or not self.ports.rows[row])
            self._allocation[row] = self._scored.row(node)
        snapshot.repairs += len(rows)
        if not self.relational:
            return
        for relation in self._relations():
            flipped = relation.update(rows)
            if flipped is not None:
                flips.append(flipped)
        for preference in self.preferences:
            preference.update(rows)

    def _retotal(self, rows: list[int], flips: Flips, *, shifted: bool) -> None:
        """Judge the changed rows. Unless that moved a score of other rows too, only their totals change."""
        if any(isinstance(many, slice) or len(many) * _WHOLE_PART > len(self.totals) for many in flips):
            self.feasible = self._feasible(EVERY)
            self.feasible_count = int(np.count_nonzero(self.feasible))
            self._sum_all(self._additions(self.feasible))
            return
        for row in rows:
            now = self._feasible_row(row)
            if now != self.feasible[row]:
                self.feasible[row] = now
                self.feasible_count += 1 if now else -1
                shifted = True  # scores are in proportion to the feasible nodes
        for many in flips:
            self.feasible[many] = self._feasible(many)
        if flips:
            self.feasible_count = int(np.count_nonzero(self.feasible))
            shifted = True
        if shifted and self.preferences:
            before, added = self._added, self._additions(self.feasible)
            if len(before) != len(added) or any(
                old is not new or weight != was for (was, old), (weight, new) in zip(before, added, strict=True)
            ):
                self._sum_all(added)
                return
        for many in flips:
            totals = self._allocation[many] + self._idle
            for weight, points in self._added:
                totals += weight * points[many]
            self.totals[many] = np.where(self.feasible[many], totals, INFEASIBLE)
            self.best.forget()
        for row in rows:
            total = INFEASIBLE
            if self.feasible[row]:
                total = int(self._allocation[row]) + self._idle
                for weight, points in self._added:
                    total += weight * int(points[row])
            self.best.moved(row, int(self.totals[row]), total)
            self.totals[row] = total

    def _sum_all(self, added: list[tuple[int, Ints]]) -> None:
        self._added, self._idle = added, self._idle_points()
        self.totals = self._summed(self.feasible, added)
        self.best.forget()

    def _relations(self) -> Iterator[SpreadFilter | AffinityFilter | AntiAffinityFilter]:
        for _, spread in self.spreads:
            yield spread
        if self.affinity is not None:
            yield self.affinity
        yield from self.aparts
        if self.policy is not None:
            yield self.policy

    def _feasible(self, rows: slice | Ints) -> Bools:
        feasible: Bools = self._fits[rows] & ~self._closed[rows]
        if self._quota is not None:
            feasible &= self._quota[rows]
        for relation in self._relations():
            feasible &= relation.ok[rows]
        return feasible

    def _feasible_row(self, row: int) -> bool:
        if self._closed[row] or not self._fits[row] or (self._quota is not None and not self._quota[row]):
            return False
        return not self.relational or all(relation.ok[row] for relation in self._relations())

    # -- totals

    def _idle_points(self) -> int:
        return sum(
            self.weights[preference.name] * preference.idle_points
            for preference in self.preferences
            if not preference.active
        )

    def totals_among(self, feasible: Bools) -> Ints:
        """The weighted sum of all scores, were `feasible` the nodes to choose from; `INFEASIBLE` for the others."""
        return self._summed(feasible, self._additions(feasible))

    def _additions(self, feasible: Bools) -> list[tuple[int, Ints]]:
        """What is added to allocation on each row: weight and points of every preference that is active."""
        return [
            (self.weights[preference.name], preference.points(feasible))
            for preference in self.preferences
            if preference.active
        ]

    def _summed(self, feasible: Bools, added: list[tuple[int, Ints]]) -> Ints:
        totals: Ints = self._allocation + self._idle
        for weight, points in added:
            totals += weight * points
        totals[~feasible] = INFEASIBLE
        return totals

    def parts_at(self, rows: Ints, feasible: Bools) -> dict[str, Ints]:
        """Each score on some rows, were `feasible` the nodes to choose from. Scores without weight are left out."""
        parts = {name: np.zeros(len(rows), np.int64) for name, weight in self.weights.items() if weight}
        for name, points in scores.allocation_parts(self._snapshot, self.shape.wants, rows).items():
            if name in parts:
                parts[name] = points
        for preference in self.preferences:
            parts[preference.name] = (
                preference.points(feasible)[rows]
                if preference.active
                else np.full(len(rows), preference.idle_points, np.int64)
            )
        return parts

    # -- reasons

    def failures(self, excluded: Collection[str] = ()) -> list[Failures]:
        """Every filter in order, each with what may fail in it and the rows that do."""
        snapshot, wants = self._snapshot, self.shape.wants
        groups: list[Failures] = [[failure] for failure in node_failures(snapshot, wants)]
        if self.ports is not None:
            groups.append([(Blocker(Reason.PORT), self.ports.rows > 0)])
        groups.append(list(shortages_all(snapshot, wants)))
        if self.blocked:
            groups.append(list(self._quota_failures()))
        groups += [[(relation.blocker, ~relation.ok)] for relation in self._relations()]
        if excluded:
            groups.append([(Blocker(Reason.REFUSED_LATELY), rows_named(snapshot, excluded))])
        return groups

    def _quota_failures(self) -> Iterator[tuple[Blocker, Bools]]:
        column, tenant = self._snapshot.column(ZONE_LABEL), self.shape.key.namespace
        for zone in self.blocked:
            yield Blocker(Reason.ZONE_QUOTA, f"{tenant}/{zone}"), column.ids == column.find(zone)


def rows_named(snapshot: Snapshot, names: Collection[str]) -> Bools:
    named = np.zeros(snapshot.capacity, np.bool_)
    for name in names:
        node = snapshot.find(name)
        if node is not None:
            named[node.row] = True
    return named
