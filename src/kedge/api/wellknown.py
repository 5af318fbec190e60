"""Well-known names: labels, annotations, taints, finalizers, conditions, namespaces and key kinds, each defined once.

Controllers, scheduler, agent and service do not import each other; a name that one writes and another reads is a
constant here. Nothing here acts.
"""

from __future__ import annotations

from typing import Final

from kedge import keys

# -- domains and API versions ----------------------------------------------------------------------

KUBERNETES_DOMAIN: Final = "kubernetes.io"
KEDGE_API_VERSION: Final = "kedge.dev/v1"
EVENTS_GROUP: Final = "events.k8s.io"
EVENTS_API_VERSION: Final = "events.k8s.io/v1"
ADMISSION_GROUP: Final = "admissionregistration.k8s.io"
EXTENSIONS_GROUP: Final = "apiextensions.k8s.io"
AUTHENTICATION_GROUP: Final = "authentication.k8s.io"
AUTHORIZATION_GROUP: Final = "authorization.k8s.io"
DISCOVERY_GROUP: Final = "apidiscovery.k8s.io"
DISCOVERY_API_VERSION: Final = "apidiscovery.k8s.io/v2"
METRICS_GROUP: Final = "metrics.k8s.io"
META_GROUP: Final = "meta.k8s.io"
META_API_VERSION: Final = "meta.k8s.io/v1"

# -- kinds, as `Key.kind` holds them ---------------------------------------------------------------

NAMESPACE_KIND: Final = "Namespace"
NODE_KIND: Final = "Node"
POD_KIND: Final = "Pod"
EVENT_KIND: Final = "Event"
CONFIG_MAP_KIND: Final = "ConfigMap"
SECRET_KIND: Final = "Secret"
SERVICE_KIND: Final = "Service"
SERVICE_ACCOUNT_KIND: Final = "ServiceAccount"
DEFAULT_ACCOUNT: Final = "default"
"""The ServiceAccount of pods that name none. Every namespace has one."""
ACCOUNT_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""The path at which clients in pods look for token, authority and namespace."""
TOKEN_EXTRA_PREFIX: Final = "authentication.kubernetes.io/"
"""The beginning of the names of further facts about the user of a token."""
RESOURCE_QUOTA_KIND: Final = "ResourceQuota"
LIMIT_RANGE_KIND: Final = "LimitRange"
ENDPOINT_SLICE_KIND: Final = "EndpointSlice.discovery.k8s.io"
DEPLOYMENT_KIND: Final = "Deployment.apps"
REPLICA_SET_KIND: Final = "ReplicaSet.apps"
JOB_KIND: Final = "Job.batch"
AUTOSCALER_KIND: Final = "HorizontalPodAutoscaler.autoscaling"
DISRUPTION_BUDGET_KIND: Final = "PodDisruptionBudget.policy"
PRIORITY_CLASS_KIND: Final = "PriorityClass.scheduling.k8s.io"
SYSTEM_PRIORITIES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""The values of the built-in PriorityClasses."""
LEASE_KIND: Final = "Lease.coordination.k8s.io"
CUSTOM_RESOURCE_DEFINITION_KIND: Final = "CustomResourceDefinition.apiextensions.k8s.io"
RESERVATION_KIND: Final = "Reservation.kedge.dev"
NODE_ALLOCATION_KIND: Final = "NodeAllocation.kedge.dev"
SCHEDULING_POLICY_KIND: Final = "SchedulingPolicy.kedge.dev"
ZONE_QUOTA_KIND: Final = "ZoneQuota.kedge.dev"
ROLLOUT_KIND: Final = "Rollout.kedge.dev"
RECORDING_WINDOW_KIND: Final = "RecordingWindow.kedge.dev"

# Internal records: they have a key and no API. The service writes them in the commit that they belong to.
FENCE_KIND: Final = keys.FENCE
OPERATION_KIND: Final = "Operation.kedge.dev"
"""One operation id that has been used, and its result."""
DISRUPTION_BUDGETS_KIND: Final = "DisruptionBudgets.kedge.dev"
"""The set of budgets of a namespace."""
DEFAULT_PRIORITY_KIND: Final = "DefaultPriority.kedge.dev"
"""Which PriorityClass is the default."""

# -- labels and annotations of Kubernetes ----------------------------------------------------------

HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
NAMESPACE_NAME_LABEL: Final = "kubernetes.io/metadata.name"
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
REGION_LABEL: Final = "topology.kubernetes.io/region"
NODE_ROLE_LABEL: Final = "kubernetes.io/role"
NODE_ROLE_LABEL_PREFIX: Final = "node-role.kubernetes.io/"
"""A label that begins so names a role of a node."""
SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
SLICE_MANAGER_LABEL: Final = "endpointslice.kubernetes.io/managed-by"
SLICE_MANAGER: Final = "endpoints.kedge.dev"
"""The value of that label on slices that kedge writes."""
JOB_NAME_LABEL: Final = "batch.kubernetes.io/job-name"
JOB_UID_LABEL: Final = "batch.kubernetes.io/controller-uid"
JOB_INDEX: Final = "batch.kubernetes.io/job-completion-index"
"""Label and annotation of a pod of an indexed Job."""
JOB_TRACKING_FINALIZER: Final = "batch.kubernetes.io/job-tracking"
POD_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
DEPLOYMENT_REVISION: Final = "deployment.kubernetes.io/revision"
DEPLOYMENT_REVISION_HISTORY: Final = "deployment.kubernetes.io/revision-history"
DESIRED_REPLICAS: Final = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS: Final = "deployment.kubernetes.io/max-replicas"
INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
"""Annotation of the bookmark after the initial events of a watch."""
MIRROR_POD: Final = "kubernetes.io/config.mirror"
"""On a pod that a kubelet runs from a file of its own."""
CHANGE_CAUSE: Final = "kubernetes.io/change-cause"
RESTARTED_AT: Final = "kubectl.kubernetes.io/restartedAt"
DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

# -- taints ----------------------------------------------------------------------------------------

UNREACHABLE_TAINT: Final = "node.kubernetes.io/unreachable"
NOT_READY_TAINT: Final = "node.kubernetes.io/not-ready"
UNSCHEDULABLE_TAINT: Final = "node.kubernetes.io/unschedulable"
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Taint of a node: an operator's statement that nothing runs there any more. The only taint that frees claims without
proof."""

# -- labels and annotations of kedge ---------------------------------------------------------------

GANG_LABEL: Final = "kedge.dev/gang"
"""On a pod: the gang that it belongs to."""
GANG_SIZE: Final = "kedge.dev/gang-size"
"""On a pod of a gang: how many members the gang has."""
LIMIT_RANGER_ANNOTATION: Final = "kubernetes.io/limit-ranger"
"""Names the amounts in a pod that a limit range has set."""
BIND_ANNOTATION: Final = "kedge.dev/bind"
"""On a bound pod: the operation, and the revisions that the bind checked."""
DECISION_ANNOTATION: Final = "kedge.dev/decision"
"""On an Event: the id of the decision that it is about; of the last one, if it has occurred several times."""
MUTATIONS_ANNOTATION: Final = "kedge.dev/mutations"
"""On an object: the admission policies that changed it."""
TEMPLATE_DIGEST: Final = "kedge.dev/template-digest"
"""On a ReplicaSet: the digest of the pod template that it was made from."""
SLOT: Final = "kedge.dev/slot"
"""On a pod: the slot of its owner that it fills; the pod's name ends in it."""
REPLACES: Final = "kedge.dev/replaces"
"""On a pod: the uid of the ended pod that it replaces."""
DRAINING: Final = "kedge.dev/draining"
"""On a pod: since when it gets no new work. Endpoints leave it out; its owner deletes it once it is drained."""
AT_MOST_ONE: Final = "kedge.dev/at-most-one"
"""On a pod, `"true"`: never two running copies. A partitioned agent stops it before its node can be declared lost."""
DRAIN_NODE: Final = "kedge.dev/drain"
"""On a node, with the reason as its value: cordon the node and evict its pods as their budgets allow."""
REMOVE_FINALIZERS: Final = "override.kedge.dev/remove-finalizers"
"""On a stuck object: an operator's permission, with an expiry, to drop its finalizers. See `controllers` overrides."""
AVAILABILITY_FLOOR: Final = "kedge.dev/availability-floor"
"""`off` on a Deployment: a rollback may remove its last available replica, as far as its strategy allows that."""
UPDATED_MAX: Final = "kedge.dev/updated-max"
"""On a Deployment: how many replicas may be of its current template. A staged rollout sets and removes it."""
UPDATED_IN: Final = "kedge.dev/updated-in"
"""On a Deployment: the zones or regions of those replicas. A staged rollout sets and removes it."""
PODS_IN: Final = "kedge.dev/pods-in"
"""On a ReplicaSet: the zones or regions for its new pods. Its Deployment sets it."""
GIVE_UP_IN: Final = "kedge.dev/give-up-in"
"""On a ReplicaSet that scales down: the zones or regions whose pods are deleted first. Its Deployment sets it."""
USAGE: Final = "kedge.dev/usage"
"""On a node's lease: the resource usage of each pod of the node, as its agent measured it. See `api.usage`."""
AGENT_CERTIFICATE: Final = "kedge.dev/agent-certificate"
"""On a node: the SHA-256 of its agent's certificate, by which API servers recognise the agent's endpoint."""
API_SERVERS_GROUP: Final = "kedge:api-servers"
"""The organization in an API server's client certificate, by which agents recognise it."""
EXEC_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""Subprotocols of the WebSocket of exec and attach, the preferred one first."""
HOLD_PREFIX: Final = "hold.kedge.dev/"
"""On any object, followed by a controller's name or `all`: no automatic change until a time. See `api.holds`."""

TOKEN_TYPE: Final = "kedge.dev/token"
"""Type of a Secret that holds the hash of a bearer token. See `api.tokens`."""

# -- labels that only the simulator reads ----------------------------------------------------------

SIM_RUN_S_LABEL: Final = "sim.kedge.dev/run-s"
"""On a pod: its containers exit by themselves after so many seconds, as those of a Job do."""
SIM_EXIT_CODE_LABEL: Final = "sim.kedge.dev/exit-code"
"""On a pod: the exit code of those containers."""
SIM_IGNORES_SIGTERM_LABEL: Final = "sim.kedge.dev/ignores-sigterm"
"""On a pod, with the value `true`: only SIGKILL ends its containers."""
SIM_TOUCHED: Final = "sim.kedge.dev/touched"
"""The annotation that a bystander writes."""

# -- conditions ------------------------------------------------------------------------------------

DISRUPTION_TARGET: Final = "DisruptionTarget"
"""Pod condition: the pod is to be removed. With reason `NODE_LOST`, its owner records its end and replaces it."""
NODE_LOST: Final = "NodeLost"
OBEYED_PREFIX: Final = "obeyed-by.kedge.dev/"
"""SchedulingPolicy condition, followed by a scheduler's name: the generation of the policy that the scheduler uses."""
DISRUPTION_ALLOWED: Final = "DisruptionAllowed"
"""PodDisruptionBudget condition: at least one pod may be evicted now."""
DRAINED: Final = "Drained"
"""Pod condition: the work that was in flight when the pod began to drain is done."""
RESIZE_PENDING: Final = "PodResizePending"
"""Pod condition: its node has not allocated the resources in its spec. The reason is one of the next two."""
DEFERRED: Final = "Deferred"
INFEASIBLE: Final = "Infeasible"
RESIZE_IN_PROGRESS: Final = "PodResizeInProgress"
"""Pod condition: its node has allocated the resources in its spec, and applies them."""

# -- namespaces ------------------------------------------------------------------------------------

SYSTEM_NAMESPACE: Final = "kube-system"
"""Leases of controllers and schedulers, as in Kubernetes."""
NODE_LEASE_NAMESPACE: Final = "kube-node-lease"
"""Leases of nodes, as in Kubernetes."""
SYSTEM_NAMESPACES: Final = (SYSTEM_NAMESPACE, NODE_LEASE_NAMESPACE)
"""The namespaces that a control plane needs before it starts."""
