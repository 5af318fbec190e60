"""Annotations, conditions and places by which parts that never meet tell each other what they did or ask for.

Controllers, scheduler and agent are blind to each other: what one writes on an object and another reads has its name
here, once. Nothing here acts.
"""

from __future__ import annotations

from typing import Final

SLOT: Final = "kedge.dev/slot"
"""On a pod: the slot of its owner that it fills; its name ends in it."""
REPLACES: Final = "kedge.dev/replaces"
"""On a pod: the uid of the ended pod that it was made in place of."""
DRAINING: Final = "kedge.dev/draining"
"""On a pod: since when it is to get no new work. Endpoints leave it out; its owner deletes it when it is drained."""
AT_MOST_ONE: Final = "kedge.dev/at-most-one"
"""On a pod, `"true"`: rather none than two. Its agent stops it, when cut off, before its node may be called lost."""
DRAIN_NODE: Final = "kedge.dev/drain"
"""On a node, with the reason as its text: it is to be cordoned and emptied, as its pods' budgets allow."""
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Taint of a node: a person's word that nothing runs there any more. The only one that frees claims without proof."""
REMOVE_FINALIZERS: Final = "override.kedge.dev/remove-finalizers"
"""On an object that cannot go: a person's word, with an end, that its finalizers may be dropped. See `overrides`."""
UPDATED_MAX: Final = "kedge.dev/updated-max"
"""On a Deployment: how many replicas may be of its current template. A rollout in stages sets it, and takes it away."""
UPDATED_IN: Final = "kedge.dev/updated-in"
"""On a Deployment: in which zones or regions those replicas are to be. A rollout sets it, and takes it away."""
PODS_IN: Final = "kedge.dev/pods-in"
"""On a ReplicaSet: where the pods that it makes may go. Its Deployment says so; see `controllers.places`."""
GIVE_UP_IN: Final = "kedge.dev/give-up-in"
"""On a ReplicaSet that is scaled down: where its pods make way first. Likewise."""
USAGE: Final = "kedge.dev/usage"
"""On a node's lease: what each pod of the node uses, as its agent measured it. See `api.usage`."""
HOLD_PREFIX: Final = "hold.kedge.dev/"
"""On any object, followed by a controller's name or `all`: hands off until a time. See `api.holds`."""

DISRUPTION_TARGET: Final = "DisruptionTarget"
"""Pod condition: it is to go. With the reason `NODE_LOST` its owner is asked to record its end and replace it."""
NODE_LOST: Final = "NodeLost"
OBEYED_PREFIX: Final = "obeyed-by.kedge.dev/"
"""SchedulingPolicy condition, followed by a scheduler's name: the generation of the policy that it goes by."""
DRAINED: Final = "Drained"
"""Pod condition: whatever it was still doing when it began to drain is done."""
SYSTEM_NAMESPACE: Final = "kube-system"
"""Where the leases of controllers and schedulers are, as in Kubernetes."""
NODE_LEASE_NAMESPACE: Final = "kube-node-lease"
"""Where nodes renew their leases, likewise."""
SYSTEM_NAMESPACES: Final = (SYSTEM_NAMESPACE, NODE_LEASE_NAMESPACE)
"""The namespaces that a control plane cannot begin without."""
