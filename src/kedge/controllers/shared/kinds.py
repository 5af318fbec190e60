"""The kinds that controllers read and write."""

from __future__ import annotations

from kedge.api import wellknown
from kedge.api.kinds import KINDS

AUTOSCALER = KINDS.of_key_kind(wellknown.AUTOSCALER_KIND)
BUDGET = KINDS.of_key_kind(wellknown.DISRUPTION_BUDGET_KIND)
DEPLOYMENT = KINDS.of_key_kind(wellknown.DEPLOYMENT_KIND)
ENDPOINT_SLICE = KINDS.of_key_kind(wellknown.ENDPOINT_SLICE_KIND)
JOB = KINDS.of_key_kind(wellknown.JOB_KIND)
LEASE = KINDS.of_key_kind(wellknown.LEASE_KIND)
NAMESPACE = KINDS.of_key_kind(wellknown.NAMESPACE_KIND)
NODE = KINDS.of_key_kind(wellknown.NODE_KIND)
NODE_ALLOCATION = KINDS.of_key_kind(wellknown.NODE_ALLOCATION_KIND)
POD = KINDS.of_key_kind(wellknown.POD_KIND)
POLICY = KINDS.of_key_kind(wellknown.SCHEDULING_POLICY_KIND)
PRIORITY_CLASS = KINDS.of_key_kind(wellknown.PRIORITY_CLASS_KIND)
REPLICA_SET = KINDS.of_key_kind(wellknown.REPLICA_SET_KIND)
RESERVATION = KINDS.of_key_kind(wellknown.RESERVATION_KIND)
RESOURCE_QUOTA = KINDS.of_key_kind(wellknown.RESOURCE_QUOTA_KIND)
ROLLOUT = KINDS.of_key_kind(wellknown.ROLLOUT_KIND)
SERVICE = KINDS.of_key_kind(wellknown.SERVICE_KIND)
ZONE_QUOTA = KINDS.of_key_kind(wellknown.ZONE_QUOTA_KIND)
