"""One node of the snapshot, beside its columns: exact amounts and the claims on it.

`snapshot` is its only writer; filters and scores of single rows read it.
"""

from __future__ import annotations

from collections.abc import Mapping

from kedge.api.views import ContainerImage, Taint
from kedge.scheduler.state.shapes import NO_LABELS


class NodeRow:
    """One node, beside its columns. It stays while claims name it, even if the node is deleted."""

    __slots__ = (
        "claimed",
        "claims",
        "images",
        "labels",
        "name",
        "offered",
        "revision",
        "row",
        "scored",
        "taints",
        "uid",
    )

    def __init__(self, name: str, row: int) -> None:
        self.name = name
        self.row = row
        self.uid = ""
        self.revision = 0
        self.labels: Mapping[str, str] = NO_LABELS
        self.taints: tuple[Taint, ...] = ()
        self.offered: Mapping[str, int] | None = None
        """None while the node does not exist and only claims name it."""
        self.claimed: dict[str, int] = {}
        """Exact sums by resource, none of them 0: the columns hold those on offer, cut at `AMOUNT_MAX`."""
        self.scored = [0, 0]
        self.claims: dict[str, None] = {}
        self.images: tuple[ContainerImage, ...] = ()
