"""The fields that a scheduler reads, by kind. Declared, not noted: its snapshot is columnar, and no view is read twice.

`kedge coupling` uses them as its reads. A test compares them with the fields that attempts touch when they run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kedge.api.wellknown import (
    DISRUPTION_BUDGET_KIND,
    NAMESPACE_KIND,
    NODE_ALLOCATION_KIND,
    NODE_KIND,
    POD_KIND,
    REPLICA_SET_KIND,
    RESERVATION_KIND,
    SCHEDULING_POLICY_KIND,
    ZONE_QUOTA_KIND,
)

READ_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    NODE_KIND: (
        "metadata.labels.*", "spec.taints", "spec.unschedulable", "status.allocatable", "status.conditions",
        "status.images",
    ),
    POD_KIND: (
        "metadata.annotations.*", "metadata.labels.*", "metadata.ownerReferences", "spec.affinity", "spec.containers",
        "spec.hostNetwork", "spec.initContainers", "spec.nodeName", "spec.nodeSelector", "spec.overhead",
        "spec.preemptionPolicy", "spec.priority", "spec.resources", "spec.schedulerName", "spec.schedulingGates",
        "spec.tolerations", "spec.topologySpreadConstraints", "spec.volumes", "status.allocatedResources",
        "status.conditions",
        "status.containerStatuses", "status.initContainerStatuses", "status.nominatedNodeName", "status.phase",
        "status.resources",
    ),
    NODE_ALLOCATION_KIND: ("spec.nodeUID", "status.entries"),
    NAMESPACE_KIND: ("metadata.labels.*",),
    ZONE_QUOTA_KIND: ("spec.zones", "status.zones"),
    SCHEDULING_POLICY_KIND: (
        "spec.active", "spec.canary", "spec.maxZoneSkew", "spec.rank", "spec.schedulerNames", "spec.scope",
        "spec.version", "spec.weights",
    ),
    RESERVATION_KIND: ("spec.gang", "spec.gangSize", "spec.nodeName", "spec.pod", "status.members", "status.phase"),
    REPLICA_SET_KIND: ("metadata.ownerReferences",),
    DISRUPTION_BUDGET_KIND: ("spec.selector", "status.disruptedPods", "status.disruptionsAllowed"),
}  # fmt: skip
