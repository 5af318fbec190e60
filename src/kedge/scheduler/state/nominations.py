"""Places that are being made for pods while those in their way leave, each kept by a claim of its own.

`preemption` plans them. They are kept from pods of lower priority; to those of higher priority they are free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from kedge.scheduler.cycle.preemption import Nomination, nominated_claim
from kedge.scheduler.state.shapes import PodRequest
from kedge.scheduler.state.snapshot import Snapshot


class Nominations:
    """By pod uid: the places kept on one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._places: dict[str, Nomination] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, uid: object) -> bool:
        return uid in self._places

    @property
    def places(self) -> Mapping[str, Nomination]:
        return self._places

    def put(self, uid: str, nomination: Nomination) -> None:
        """Keep a place for a pod while those in its way leave."""
        self._places[uid] = nomination
        self._snapshot.add_claim(nominated_claim(uid), nomination.node, nomination.request)

    def recount(self, uid: str, request: PodRequest) -> None:
        """The pod that a place is kept for counts as another than before."""
        nomination = self._places.get(uid)
        if nomination is not None and nomination.request != request:
            self.put(uid, replace(nomination, request=request))

    def take(self, uid: str) -> Nomination | None:
        """It is kept no more. For the attempt of the very pod: others learn of it when that has ended."""
        nomination = self._places.pop(uid, None)
        if nomination is not None:
            self._snapshot.remove_claim(nominated_claim(uid))
        return nomination

    def on(self, node: str) -> list[tuple[str, Nomination]]:
        return [(uid, each) for uid, each in self._places.items() if each.node == node]

    def is_being_made(self, nomination: Nomination) -> bool:
        """Whether somebody who has to leave the node is still counted on it."""
        claims = (self._snapshot.claim(uid) for uid in nomination.awaited)
        return any(claim is not None and claim.node == nomination.node for claim in claims)

    @contextmanager
    def hidden_below(self, priority: int) -> Iterator[None]:
        """Within this, places that are kept for pods of lower priority are free."""
        hidden = [(uid, each) for uid, each in self._places.items() if each.priority < priority]
        for uid, _ in hidden:
            self._snapshot.remove_claim(nominated_claim(uid))
        yield
        for uid, each in hidden:
            if self._places.get(uid) is each:
                self._snapshot.add_claim(nominated_claim(uid), each.node, each.request)
