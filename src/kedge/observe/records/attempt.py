"""The part of a decision record that only a scheduling attempt has: its inputs beside the caches, and every node.

`scheduler` fills it in while an attempt runs, and decides again from it in a recheck. Names of nodes and blockers are
text, so that a record is read without the scheduler.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kedge.keys import NO_REVISION, Key, Revision


class WakeCause(NamedTuple):
    """The change that woke a pending pod: the object, its revision, and the controller or user that wrote it."""

    key: Key
    revision: Revision
    writer: str
    """Empty for a deletion, which leaves no version that could name it."""


class AssumedBind(NamedTuple):
    """A pod that counted as bound although no cache showed it."""

    node: str
    revision: Revision
    """The revision of the bind; 0 while it was under way."""
    workload: str
    zone: str
    """The zone whose quota it was counted against. The node may have moved to another since."""


class UnreleasedClaim(NamedTuple):
    """A claim in a node's ledger whose pod no cache showed there."""

    node: str
    namespace: str
    requests: dict[str, int]
    ports: tuple[tuple[str, str, int], ...]
    """Protocol, address and port."""


class LocalState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The inputs of an attempt that no cache holds, by pod uid."""

    assumed: dict[str, AssumedBind] = {}
    nominated: dict[str, str] = {}
    """Nodes nominated for other pods of at least this priority."""
    unreleased: dict[str, UnreleasedClaim] = {}


class ScoredNode(NamedTuple):
    node: str
    total: int
    parts: dict[str, int]
    """The contribution of each score, before its weight."""


class NearestNode(NamedTuple):
    """The best node if one filter had passed it."""

    node: str
    blocker: str
    total: int


class AttemptChoice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of the filters and scores. A recheck computes it again, and every field must be equal."""

    node: str | None
    """None if no node was feasible."""
    score: int
    feasible: int
    nodes: int
    policy: str
    policy_version: str
    canary: bool
    blocked_zones: tuple[str, ...]


class EmptyNodes(NamedTuple):
    """The same pod if no pod were on any node: whether it has to wait, or never fits."""

    fits: int
    """Nodes that would take it."""
    counts: dict[str, int]
    """The first blocker of the others."""
    reasons: tuple[str, ...]
    """The reason code of each of these blockers."""


class NodeAccount(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Every node by the first filter that failed it."""

    first_failing: bytes
    """One byte a node, in the order of the names: 0 for feasible, else the place in `legend`, from 1."""
    legend: tuple[str, ...]
    counts: dict[str, int]
    """How many nodes each blocker was the first to fail; the most first."""
    top: tuple[ScoredNode, ...]
    near_miss: NearestNode | None
    reasons: tuple[str, ...] = ()
    """The reason code of each blocker in `legend`; empty in records of before."""
    empty: EmptyNodes | None = None
    """None for a pod that was placed, and in records of before."""

    def reason_of(self, blocker: str) -> str:
        """The reason code of a blocker; empty if the record does not have it."""
        return dict(zip(self.legend, self.reasons, strict=False)).get(blocker, "")


class SchedulingAttempt(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """One attempt to find a node for one pod."""

    pod_revision: Revision = NO_REVISION
    """The version of the pod that was decided on."""
    local: LocalState = LocalState()
    draw: int | None = None
    """Breaks ties. None if nothing was decided: the pod had a reserved node."""
    excluded: tuple[str, ...] = ()
    """Nodes that had just refused this pod."""
    choice: AttemptChoice | None = None
    """None if nothing was decided."""
    account: NodeAccount | None = None
    """None where the record was kept only because its bind failed."""
    reserved_node: str = ""
    """The node on which a reservation held room for the pod."""
    nominated_node: str = ""
    """The node on which pods are preempted for it."""
    victims: tuple[str, ...] = ()
    unblocked_by: tuple[str, ...] = ()
    """The kinds of events that may make it schedulable."""
    cause: WakeCause | None = None
    """The change behind the wake-up; None if none is known, as after a pause or a bind of this scheduler."""
    local_lost: bool = False
    """`local` is missing: its record was made after too many other attempts. It cannot be run again."""

    @property
    def node(self) -> str:
        """The node that it chose, or that was reserved; empty if there was none."""
        return self.reserved_node or (self.choice.node or "" if self.choice is not None else "")
