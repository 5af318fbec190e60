"""The vectors of one shape of pods: which rows pass the filters, and their total scores, repaired as rows change.

`decide` takes the best row from `totals`; `explain` reads `failures`. Everything here can be computed from the snapshot
at any time, and a test holds that this changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kedge.scheduler.pipeline import plugins
from kedge.scheduler.pipeline.plugin import (
    NO_INPUTS,
    AttemptFilter,
    AttemptInputs,
    Blocker,
    ClaimFilter,
    NodeFilter,
    PodFilter,
    RelativeScore,
    RowScore,
    ShapeContext,
)
from kedge.scheduler.pipeline.selection import INFEASIBLE, BestRows
from kedge.scheduler.state.columns import EVERY, Bools, Ints, as_rows
from kedge.scheduler.state.node_row import NodeRow
from kedge.scheduler.state.shapes import PodRequest, PodShape
from kedge.scheduler.state.snapshot import Snapshot
from kedge.scheduler.state.tallies import PodTally, TallyRule

Flips = list[Ints | slice]
"""Rows that changed between feasible and not; a slice for all rows."""
_WHOLE_PART = 16
"""If more than one row in this many changes, computing all rows is faster than picking those."""


class ShapeState:
    """One shape on one snapshot."""

    def __init__(self, snapshot: Snapshot, shape: PodShape) -> None:
        self._snapshot = snapshot
        self._tallies: list[PodTally] = []
        context = ShapeContext(snapshot, shape, self._use_tally)
        pipeline = plugins.PIPELINE
        self.filters = [each for kind in pipeline.filters for each in kind.for_shape(context)]
        self._node_filters = [each for each in self.filters if isinstance(each, NodeFilter)]
        self._claim_filters = [each for each in self.filters if isinstance(each, ClaimFilter)]
        self._pod_filters = [each for each in self.filters if isinstance(each, PodFilter)]
        self._attempt_filters = [each for each in self.filters if isinstance(each, AttemptFilter)]
        self.weights = plugins.weights_under(shape.key.settings)
        weighed = [(kind, {name: self.weights[name] for name in kind.weights}) for kind in pipeline.scores]
        made = [kind.for_shape(context, weights) for kind, weights in weighed if any(weights.values())]
        self._scores = [each for each in made if each is not None]
        self._row_scores = [each for each in self._scores if isinstance(each, RowScore)]
        self._relative_scores = [each for each in self._scores if isinstance(each, RelativeScore)]
        self._shifting = any(score.about_pods for score in self._relative_scores)
        """Whether a claim may change the scores of rows that it is not on."""
        self._relational = bool(self._pod_filters) or self._shifting
        """Whether pods on other nodes matter. If so, a change of layout causes a rebuild."""
        self.by_requests = not self._pod_filters and all(each.by_requests for each in self._claim_filters)
        """Whether preemption can try evictions from the resources and ports of claims alone."""
        self.epoch = snapshot.tallies.epoch
        self.asked: PodRequest | None = None
        """The request that it was last found for, under `settings`."""
        self.settings = shape.key.settings
        self.best = BestRows(snapshot)
        self._inputs = NO_INPUTS
        self._allowed: Bools | None = None
        """The rows that the attempt filters pass; None if all do."""
        self._layout = self._claims_at = self._nodes_at = 0
        """How far it has followed the snapshot."""
        self._open: Bools
        """The rows with a node that every node filter passes."""
        self._fits: Bools
        """The rows that every claim filter passes."""
        self._row_points: Ints
        self._idle = 0
        """Added to every row by the scores in which nodes do not differ."""
        self._added: list[tuple[int, Ints]] = []
        """Weight and points of each relative score in which nodes differ."""
        self.feasible: Bools
        self.feasible_count = 0
        self.totals: Ints
        self.rebuild()

    def _use_tally(self, rule: TallyRule) -> PodTally:
        tally = self._snapshot.tallies.use(rule)
        self._tallies.append(tally)
        return tally

    def close(self) -> None:
        """Release the tallies. The state is not used again."""
        for tally in self._tallies:
            self._snapshot.tallies.end(tally)
        self._tallies = []

    # -- following the snapshot

    def refresh(self, inputs: AttemptInputs) -> None:
        """Bring every vector up to date, for an attempt with these inputs."""
        snapshot = self._snapshot
        if len(self.totals) != snapshot.capacity or (self._relational and self._layout != snapshot.layout):
            self._inputs = inputs
            self.rebuild()
            return
        claims, nodes = snapshot.claim_log.since(self._claims_at), snapshot.node_log.since(self._nodes_at)
        if claims is None or nodes is None or len(claims) + len(nodes) > snapshot.limits.scheduler_repair_max:
            self._inputs = inputs
            self.rebuild()
            return
        if not nodes and not self._relational and inputs == self._inputs:
            if claims:
                self._follow(claims)
            return
        flips: Flips = []
        if inputs != self._inputs or (nodes and inputs != NO_INPUTS):
            flips.append(self._begin(inputs))
        if nodes:
            claims = self._repair_nodes(claims, nodes)
        if claims:
            self._claims_at = snapshot.claim_log.end
            self._repair_claims(claims, flips)
        if claims or flips:
            self._retotal(claims, flips, shifted=bool(nodes) or self._shifting)

    def _follow(self, rows: list[int]) -> None:
        """The fast path: only claims changed, and no filter or score looks at pods on other nodes."""
        snapshot, totals = self._snapshot, self.totals
        self._claims_at = snapshot.claim_log.end
        for row in rows:
            node = snapshot.peek(row)
            if node is None:
                continue  # the row was free before, too
            fits = self._fits[row] = self._passes(node)
            row_points = self._row_points[row] = self._points_of(node)
            was = totals.item(row)
            feasible = fits and bool(self._open[row]) and (self._allowed is None or bool(self._allowed[row]))
            if feasible != (was != INFEASIBLE):
                self._repair_claims(rows, [])  # relative scores depend on the set of feasible nodes
                self._retotal(rows, [], shifted=True)
                return
            if feasible:
                total = row_points + self._idle
                for weight, points in self._added:
                    total += weight * points.item(row)
                totals[row] = total
                self.best.moved(row, was, total)
        snapshot.repairs += len(rows)

    def _passes(self, node: NodeRow) -> bool:
        for each in self._claim_filters:  # noqa: SIM110  a generator would cost more than the filters
            if not each.passes(node):
                return False
        return True

    def _points_of(self, node: NodeRow) -> int:
        points = 0
        for score in self._row_scores:
            points += score.row(node)
        return points

    def rebuild(self) -> None:
        """Compute everything from the snapshot."""
        snapshot = self._snapshot
        self._layout = snapshot.layout
        self._claims_at, self._nodes_at = snapshot.claim_log.end, snapshot.node_log.end
        self._open = self._open_rows(EVERY)
        self._fits = np.ones(snapshot.capacity, np.bool_)
        for claim_filter in self._claim_filters:
            self._fits &= claim_filter.mask(EVERY)
        self._row_points = np.zeros(snapshot.capacity, np.int64)
        for row_score in self._row_scores:
            self._row_points += row_score.all()
        self._begin(self._inputs)
        for pod_filter in self._pod_filters:
            pod_filter.rebuild()
        for score in self._relative_scores:
            score.rebuild()
        self._compute_feasible()

    def _compute_feasible(self) -> None:
        self.feasible = self._feasible(EVERY)
        self.feasible_count = int(np.count_nonzero(self.feasible))
        self._sum_all(self._additions(self.feasible))

    def _open_rows(self, rows: slice | Ints) -> Bools:
        open_: Bools = self._snapshot.exists[rows].copy()
        for each in self._node_filters:
            open_ &= each.mask(rows)
        return open_

    def _begin(self, inputs: AttemptInputs) -> Ints:
        """Use the inputs of an attempt. Returns the rows on which the attempt filters changed."""
        before, capacity = self._allowed, self._snapshot.capacity
        self._inputs, self._allowed = inputs, None
        for each in self._attempt_filters:
            each.begin(inputs)
        if inputs != NO_INPUTS:
            self._allowed = np.ones(capacity, np.bool_)
            for each in self._attempt_filters:
                self._allowed &= each.mask(EVERY)
        if before is None and self._allowed is None:
            return as_rows(())
        was = before if before is not None and len(before) == capacity else np.ones(capacity, np.bool_)
        now = self._allowed if self._allowed is not None else np.ones(capacity, np.bool_)
        return np.flatnonzero(was != now)

    def _repair_nodes(self, claims: list[int], nodes: list[int]) -> list[int]:
        """Follow changed nodes. Returns the rows on which claim filters are to be checked, theirs included."""
        snapshot, rows = self._snapshot, as_rows(nodes)
        self._nodes_at = snapshot.node_log.end
        self._open[rows] = self._open_rows(rows)
        if self._layout != snapshot.layout:  # no score here is about pods, so this is quick
            self._layout = snapshot.layout
            for score in self._relative_scores:
                score.rebuild()
        return sorted({*claims, *nodes})

    def _repair_claims(self, rows: list[int], flips: Flips) -> None:
        """Follow claims on some rows. Other rows that change as a result are added to `flips`."""
        snapshot = self._snapshot
        for row in rows:
            node = snapshot.peek(row)
            if node is None:
                self._fits[row] = False
                continue
            self._fits[row] = self._passes(node)
            self._row_points[row] = self._points_of(node)
        snapshot.repairs += len(rows)
        if not self._relational:
            return
        for pod_filter in self._pod_filters:
            flipped = pod_filter.update(rows)
            if flipped is not None:
                flips.append(flipped)
        for score in self._relative_scores:
            score.update(rows)

    def _retotal(self, rows: list[int], flips: Flips, *, shifted: bool) -> None:
        """Compute totals of the changed rows; of all rows if a relative score changed on other rows too."""
        if any(isinstance(many, slice) or len(many) * _WHOLE_PART > len(self.totals) for many in flips):
            self._compute_feasible()
            return
        for row in rows:
            now = self._feasible_row(row)
            if now != self.feasible[row]:
                self.feasible[row] = now
                self.feasible_count += 1 if now else -1
                shifted = True  # relative scores depend on the set of feasible nodes
        for many in flips:
            self.feasible[many] = self._feasible(many)
        if flips:
            self.feasible_count = int(np.count_nonzero(self.feasible))
            shifted = True
        if shifted and self._relative_scores:
            before, added = self._added, self._additions(self.feasible)
            if len(before) != len(added) or any(
                old is not new or weight != was for (was, old), (weight, new) in zip(before, added, strict=True)
            ):
                self._sum_all(added)
                return
        for many in flips:
            totals = self._row_points[many] + self._idle
            for weight, points in self._added:
                totals += weight * points[many]
            self.totals[many] = np.where(self.feasible[many], totals, INFEASIBLE)
            self.best.forget()
        for row in rows:
            total = INFEASIBLE
            if self.feasible[row]:
                total = int(self._row_points[row]) + self._idle
                for weight, points in self._added:
                    total += weight * int(points[row])
            self.best.moved(row, int(self.totals[row]), total)
            self.totals[row] = total

    def _sum_all(self, added: list[tuple[int, Ints]]) -> None:
        self._added, self._idle = added, self._idle_points()
        self.totals = self._summed(self.feasible, added)
        self.best.forget()

    def _feasible(self, rows: slice | Ints) -> Bools:
        feasible: Bools = self._fits[rows] & self._open[rows]
        if self._allowed is not None:
            feasible &= self._allowed[rows]
        for each in self._pod_filters:
            feasible &= each.ok[rows]
        return feasible

    def _feasible_row(self, row: int) -> bool:
        if not self._open[row] or not self._fits[row] or (self._allowed is not None and not self._allowed[row]):
            return False
        return all(each.ok[row] for each in self._pod_filters)

    # -- totals

    def _idle_points(self) -> int:
        return sum(score.weight * score.idle_points for score in self._relative_scores if not score.active)

    def totals_among(self, feasible: Bools) -> Ints:
        """The weighted sum of all scores, were `feasible` the feasible nodes; `INFEASIBLE` for the others."""
        return self._summed(feasible, self._additions(feasible))

    def _additions(self, feasible: Bools) -> list[tuple[int, Ints]]:
        return [(score.weight, score.points(feasible)) for score in self._relative_scores if score.active]

    def _summed(self, feasible: Bools, added: list[tuple[int, Ints]]) -> Ints:
        totals: Ints = self._row_points + self._idle
        for weight, points in added:
            totals += weight * points
        totals[~feasible] = INFEASIBLE
        return totals

    # -- explanations and preemption

    def parts_at(self, rows: Ints) -> dict[str, Ints]:
        """The points of each score on some rows. Scores without weight are left out."""
        parts = {name: np.zeros(len(rows), np.int64) for name, weight in self.weights.items() if weight}
        for score in self._scores:
            parts |= {name: points for name, points in score.parts(rows, self.feasible).items() if name in parts}
        return parts

    def failures(self) -> list[Iterable[tuple[Blocker, Bools]]]:
        """For each filter, in order: its causes, with the rows that each blocks."""
        return [each.failures() for each in self.filters]

    def failures_if_empty(self) -> list[Iterable[tuple[Blocker, Bools]]]:
        """The same if no pod were on any node."""
        return [each.failures_if_empty() for each in self.filters]

    def open_rows(self) -> Bools:
        """The rows that no eviction is needed for: node and attempt filters pass."""
        return self._open if self._allowed is None else self._open & self._allowed
