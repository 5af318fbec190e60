"""Nominations: nodes on which room is being made for a pod by preemption, each held by a claim in the snapshot.

`preemption` plans them. A nomination keeps its room from pods of lower priority; pods of higher priority may take it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from kedge.scheduler.state.shapes import PodRequest
from kedge.scheduler.state.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Nomination:
    """Room that is being made for a pod on a node."""

    node: str
    request: PodRequest
    priority: int
    awaited: frozenset[str] = frozenset()
    """The uids of the pods that must leave first."""


def nominated_claim(uid: str) -> str:
    """The uid of the claim that holds the room until the pod is bound."""
    return f"nominated {uid}"


class Nominations:
    """By pod uid."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.places: dict[str, Nomination] = {}
        """By pod uid. Others only read it."""

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, uid: object) -> bool:
        return uid in self.places

    def put(self, uid: str, nomination: Nomination) -> None:
        self.places[uid] = nomination
        self._snapshot.add_claim(nominated_claim(uid), nomination.node, nomination.request)

    def recount(self, uid: str, request: PodRequest) -> None:
        """The nominated pod has another request than before."""
        nomination = self.places.get(uid)
        if nomination is not None and nomination.request != request:
            self.put(uid, replace(nomination, request=request))

    def take(self, uid: str) -> Nomination | None:
        """Remove a nomination without a notification: an attempt for the pod begins, and its end notifies."""
        nomination = self.places.pop(uid, None)
        if nomination is not None:
            self._snapshot.remove_claim(nominated_claim(uid))
        return nomination

    def on(self, node: str) -> list[tuple[str, Nomination]]:
        return [(uid, each) for uid, each in self.places.items() if each.node == node]

    def waits_for_victims(self, nomination: Nomination) -> bool:
        """Whether a pod that must leave is still counted on the node."""
        claims = (self._snapshot.claim(uid) for uid in nomination.awaited)
        return any(claim is not None and claim.node == nomination.node for claim in claims)

    @contextmanager
    def hidden_below(self, priority: int) -> Iterator[None]:
        """Inside it, the room of nominations of lower priority is free."""
        hidden = [(uid, each) for uid, each in self.places.items() if each.priority < priority]
        for uid, _ in hidden:
            self._snapshot.remove_claim(nominated_claim(uid))
        yield
        for uid, each in hidden:
            if self.places.get(uid) is each:
                self._snapshot.add_claim(nominated_claim(uid), each.node, each.request)
