"""Queueing hints: which pending pods an event may unblock.

A hint is called when the event happens, or later for pods that were in flight. It reads the snapshot of that moment.
"""

from __future__ import annotations

from kedge.api.views import NodeView, PodView
from kedge.placement.resources import Units
from kedge.scheduler.policy.policies import Policies
from kedge.scheduler.queue.scheduling_queue import QueuedPod, QueueingHint
from kedge.scheduler.state.nominations import Nominations
from kedge.scheduler.state.snapshot import Snapshot


class QueueingHints:
    """Makes hints that read one scheduler's snapshot."""

    def __init__(self, snapshot: Snapshot, policies: Policies, nominated: Nominations) -> None:
        self._snapshot = snapshot
        self._policies = policies
        self._nominated = nominated

    def room_on(self, node: str) -> QueueingHint:
        """Whether a node has enough free resources for a pod, those nominated for lower priorities included."""

        def hint(queued: QueuedPod) -> bool:
            row = self._snapshot.find(node)
            if row is None:
                return False
            offered = row.offered or {}
            kept = [
                each.request.requirements.requests
                for _, each in (self._nominated.on(node) if self._nominated else ())
                if each.priority < queued.priority
            ]
            return all(
                amount <= 0
                or amount <= offered.get(r, 0) - row.claimed.get(r, 0) + sum(each.get(r, 0) for each in kept)
                for r, amount in self._asked(queued).items()
            )

        return hint

    def could_fit_on(self, node: NodeView) -> QueueingHint:
        """Whether a node is schedulable and, if empty, has enough resources for a pod."""
        if node.spec.unschedulable or node.terminating:
            return lambda _: False
        name = node.name

        def hint(queued: QueuedPod) -> bool:
            row = self._snapshot.find(name)
            if row is None:
                return False
            offered = row.offered or {}
            return all(amount <= offered.get(r, 0) for r, amount in self._asked(queued).items())

        return hint

    def _asked(self, queued: QueuedPod) -> Units:
        return self._policies.request_of(queued.pod.as_view(PodView)).requirements.requests


def of_tenant(tenant: str) -> QueueingHint:
    """Whether a pod belongs to a tenant."""
    return lambda queued: queued.key.namespace == tenant
