"""The decision: the best node for a pod on a snapshot. Pure, and a function of content alone.

No I/O, clock or randomness: the caller's draw breaks ties. Nothing is claimed here; the caller adds the claim to the
snapshot when it acts on the decision. `explain` gives the reasons, while the snapshot does not change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from kedge.api.views import PodView
from kedge.placement.resources import Units
from kedge.scheduler.pipeline.plugin import NO_INPUTS, AttemptInputs
from kedge.scheduler.pipeline.shape_state import ShapeState
from kedge.scheduler.policy.settings import DEFAULT_SETTINGS, Settings
from kedge.scheduler.state.shapes import PodRequest, compile_shape, request_of, shape_key
from kedge.scheduler.state.snapshot import Snapshot

ZoneRoom = Mapping[str, Units]
"""By zone with a quota: what the pod's tenant may still claim."""


class NodeDecision(msgspec.Struct, frozen=True, gc=False):
    """The node for a pod, and the inputs of the decision."""

    node: str | None
    """None if no node is feasible."""
    node_uid: str
    node_revision: int
    """The version of the node object that was used."""
    score: int
    feasible: int
    """The number of feasible nodes, of `nodes`."""
    nodes: int
    request: PodRequest
    """For `Snapshot.add_claim`."""
    settings: Settings
    inputs: AttemptInputs
    """Zones without quota, and nodes that refused the pod."""
    draw: int
    snapshot_version: int


def decide(
    snapshot: Snapshot,
    pod: PodView | PodRequest,
    draw: int,
    *,
    settings: Settings = DEFAULT_SETTINGS,
    room: ZoneRoom | None = None,
    excluded: Collection[str] = (),
) -> NodeDecision:
    """Choose the feasible node with the highest score.

    `draw` breaks ties, as `selection` defines. `excluded` are nodes that refused this pod lately; `room` is what its
    tenant's zone quotas leave.
    """
    request = pod if isinstance(pod, PodRequest) else request_of(pod)
    blocked = blocked_zones(request.requirements.requests, room) if room else ()
    inputs = AttemptInputs(blocked, frozenset(excluded)) if blocked or excluded else NO_INPUTS
    state = state_of(snapshot, request, settings, inputs)
    row, score = state.best.take(state.totals, draw), state.best.total
    nodes, version = snapshot.node_count, snapshot.version
    if row < 0:
        return NodeDecision(None, "", 0, 0, 0, nodes, request, settings, inputs, draw, version)
    node = snapshot.at(row)
    return NodeDecision(
        node.name, node.uid, node.revision, score, state.feasible_count,
        nodes, request, settings, inputs, draw, version,
    )  # fmt: skip


def blocked_zones(requests: Units, room: ZoneRoom) -> tuple[str, ...]:
    """The zones in which the tenant has too little room left for the pod, by name."""
    return tuple(
        sorted(
            zone
            for zone, left in room.items()
            if any(0 < requests.get(resource, 0) > amount for resource, amount in left.items())
        )
    )


def state_of(snapshot: Snapshot, request: PodRequest, settings: Settings, inputs: AttemptInputs) -> ShapeState:
    """The state of the pod's shape, up to date with the snapshot."""
    last: ShapeState | None = snapshot.last_state
    if (
        last is not None
        and last.asked is request
        and last.settings is settings
        and last.epoch == snapshot.tallies.epoch
    ):
        last.refresh(inputs)
        return last
    key = shape_key(request, settings, snapshot.tallies.mentioned)
    states = snapshot.states
    state: ShapeState | None = states.get(key)
    if state is not None and state.epoch != snapshot.tallies.epoch:
        del states[key]
        state.close()
        state = None
    if state is None:
        if snapshot.label_keys_crowded:
            _forget_label_keys(snapshot)
            key = shape_key(request, settings, snapshot.tallies.mentioned)
        state = states[key] = ShapeState(snapshot, compile_shape(key))
        if len(states) > snapshot.limits.scheduler_shapes_max:
            _, oldest = states.popitem(last=False)
            oldest.close()
    else:
        states.move_to_end(key)
    state.asked, state.settings = request, settings
    snapshot.last_state = state
    state.refresh(inputs)
    return state


def _forget_label_keys(snapshot: Snapshot) -> None:
    """Forget the label keys that pods have named, and with them every shape."""
    for each in snapshot.states.values():
        each.close()
    snapshot.states.clear()
    snapshot.last_state = None
    snapshot.forget_label_keys()
