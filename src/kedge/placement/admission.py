"""Whether a node admits a pod that was created with its name: the checks of a kubelet, its reasons and its messages.

Such a pod was placed past cordon, taints and the scheduler, so nothing was proved when it was created. Its claim counts
against binds at once, and is unadmitted until the node's agent and the service, by these checks, admit it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kedge.api.views import NodeView, PodView
from kedge.placement.ledger import Claim, ClaimState, Ledger
from kedge.placement.predicates import (
    affinity_is_met,
    demand_of,
    execution_is_tolerated,
    node_is_selected,
    ports_are_free,
)
from kedge.placement.resources import PODS, add, node_allocatable, shortages

_FIRST = (PODS, "cpu", "memory", "ephemeral-storage")
"""The order in which a kubelet compares resources; the first that is short is the reason."""


class Rejection(NamedTuple):
    """Why a node does not admit a pod, in the words of a kubelet: `status.reason` and `status.message`."""

    reason: str
    message: str


def admitted(node: NodeView, claims: Iterable[tuple[str, Claim]], *, but: str) -> Ledger:
    """The claims that were proved on a node, without that of the pod `but`."""
    proved = {uid: each for uid, each in claims if uid != but and each.state is not ClaimState.UNADMITTED}
    return Ledger(node.name, node.uid, add(*(each.proved for each in proved.values())), proved)


def first_rejection(pod: PodView, node: NodeView, proved: Ledger) -> Rejection | None:
    """The first check that fails, beside the claims that were proved; None if the node admits the pod."""
    requested, available = demand_of(pod).requests, node_allocatable(node)
    short = shortages(requested, proved.allocated, available)
    if short:
        name = next((each for each in _FIRST if each in short), short[0])
        return _rejection(
            f"OutOf{name}",
            f"Node didn't have enough resource: {name}, requested: {requested[name]},"
            f" used: {proved.allocated.get(name, 0)}, capacity: {available.get(name, 0)}",
        )
    if node_is_selected(pod, node, proved) or affinity_is_met(pod, node, proved):
        return _failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if ports_are_free(pod, node, proved):
        return _failed("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    if execution_is_tolerated(pod, node, proved):
        return _failed("TaintToleration", "node(s) had taints that the pod didn't tolerate")
    return None


def _failed(name: str, why: str) -> Rejection:
    return _rejection(name, f"Predicate {name} failed: {why}")


def _rejection(reason: str, message: str) -> Rejection:
    return Rejection(reason, f"Pod was rejected: {message}")
