"""Pods that are created with `spec.nodeName`: stored past every check of the node, as in Kubernetes.

The create charges the ledger of that name in its own commit, even before the node exists, with a claim that is
unadmitted: it counts against binds, and its node's agent starts nothing for it. The agent fails a pod that does not
fit. For one that fits it writes a start time, and that commit proves the fit and makes the claim a bound one.
"""

from __future__ import annotations

from kedge.api.objects import Object
from kedge.api.views import NodeView, PodView
from kedge.api.wellknown import BIND_ANNOTATION, ZONE_LABEL
from kedge.errors import Refused, TooManyRequests
from kedge.placement.admission import admitted, first_rejection
from kedge.placement.ledger import Claim, ClaimState
from kedge.placement.predicates import demand_of
from kedge.server.service import claims
from kedge.server.service.core import Core, Proof
from kedge.server.service.namespaces import namespace_key
from kedge.server.service.zones import charge_zone, may_be_limited


async def assign(core: Core, proof: Proof, pod: Object) -> None:
    """Stage the unadmitted claim of a new pod on the node that it names, which need not exist.

    A new incarnation of the node takes such claims over, so none is lost between the pod's create and the node's.
    """
    view = pod.as_view(PodView)
    name = view.spec.node_name
    node, _ = await proof.objects(claims.node_key(name), claims.allocation_key(name))
    ledger = await claims.stored_ledger_of(core, proof, name)
    if ledger is None:
        ledger = claims.blank_ledger(core, name, node.uid if node is not None else "")
    waiting = len(ledger.unadmitted())
    core.unadmitted.set(waiting + 1)
    if waiting >= core.env.limits.unadmitted_pods_max:
        raise TooManyRequests(
            f"{pod.key} cannot be created: node {name} has {waiting} pods that it has not admitted yet; wait for its"
            " agent, or leave out spec.nodeName",
            key=pod.key,
            retry_after_s=core.env.limits.agent_audit_s,
        )
    demand = demand_of(view)
    claim = Claim(pod.key.namespace, pod.key.name, ClaimState.UNADMITTED, demand.requests, demand.ports)
    claims.write_ledger(core, proof, name, ledger.charge(view.uid, claim))


def reports_start(before: PodView, after: PodView) -> bool:
    """Whether a write is an agent's report that it is about to start a pod that no bind placed."""
    return (
        before.status.start_time != after.status.start_time
        and after.status.start_time is not None
        and BIND_ANNOTATION not in after.metadata.annotations
    )


async def admit(core: Core, proof: Proof, pod: Object) -> None:
    """Make an unadmitted claim a bound one, if the pod fits beside the claims that were proved.

    Otherwise the claim stays as it is, and the write goes on: the agent reads the ledger before it starts anything.
    """
    view = pod.as_view(PodView)
    name = view.spec.node_name
    node, _ = await proof.objects(claims.node_key(name), claims.allocation_key(name))
    ledger = await claims.stored_ledger_of(core, proof, name)
    held = ledger.claim(view.uid) if ledger is not None else None
    if ledger is None or held is None or held.state is not ClaimState.UNADMITTED:
        return
    if node is None or node.uid != ledger.node_uid or node.metadata.deletion_timestamp is not None:
        return
    node_view = node.as_view(NodeView)
    if first_rejection(view, node_view, admitted(node_view, ledger.claims(), but=view.uid)) is not None:
        return
    zone = node_view.metadata.labels.get(ZONE_LABEL, "")
    staged = dict(proof.writes)
    try:
        if zone:
            await proof.entries(namespace_key(pod.key.namespace))
        if may_be_limited(proof, pod.key.namespace, zone):
            await charge_zone(core, proof, pod.key, zone, held.requests)
    except Refused:
        proof.writes = staged  # one quota had room, the next has not
        return
    bound = Claim(held.namespace, held.name, ClaimState.BOUND, held.requests, held.ports, zone)
    claims.write_ledger(core, proof, name, ledger.charge(view.uid, bound))


async def release_unadmitted(core: Core, proof: Proof, pod: PodView) -> None:
    """Stage the release of a removed pod's claim if it is unadmitted: no agent has started anything for it."""
    ledger = await claims.stored_ledger_of(core, proof, pod.spec.node_name)
    held = ledger.claim(pod.uid) if ledger is not None else None
    if held is not None and held.state is ClaimState.UNADMITTED:
        await claims.release(core, proof, pod.spec.node_name, pod.uid)
