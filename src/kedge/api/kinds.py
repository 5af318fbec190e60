"""The registry of kinds: names, scope, subresources, printer columns and the view of each.

Every layer looks up kinds here. The registry is immutable: custom kinds make a new one with `Registry.extended`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kedge.api import views
from kedge.errors import BadRequest, NotFound, check


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """One column that `kubectl get` prints."""

    name: str
    type: str = "string"
    path: str = ""
    """The JSON path of the value; empty for a computed cell."""
    priority: int = 0
    """Above zero it is shown only by `-o wide`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of object, in one version of its group."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    namespaced: bool = True
    subresources: frozenset[str] = frozenset()
    columns: tuple[PrinterColumn, ...] = ()
    view: type[views.View] | None = None
    """The typed view, for kinds that kedge acts on."""
    latest_only: bool = False
    """Old versions need not be kept: leases and heartbeats."""
    has_generation: bool = False
    """`metadata.generation` counts the changes of its spec."""
    selectable: frozenset[str] = frozenset()
    """Fields that a field selector may name, besides `metadata.name` and `metadata.namespace`."""

    key_kind: str = field(init=False)
    """The value of `Key.kind`: `Pod`, `Deployment.apps`."""
    api_version: str = field(init=False)
    """As in a manifest: `v1`, `apps/v1`."""
    resource: str = field(init=False)
    """Plural and group, as errors and commands name it: `pods`, `deployments.apps`."""

    def __post_init__(self) -> None:
        group = f".{self.group}" if self.group else ""
        object.__setattr__(self, "key_kind", f"{self.kind}{group}")
        object.__setattr__(self, "resource", f"{self.plural}{group}")
        object.__setattr__(self, "api_version", f"{self.group}/{self.version}" if self.group else self.version)

    @property
    def list_kind(self) -> str:
        return f"{self.kind}List"

    def has(self, subresource: str) -> bool:
        return subresource in self.subresources


class Registry:
    """Kinds by each of their names. Iterates in the order of registration."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._kinds = tuple(kinds)
        self._by_key_kind: dict[str, Kind] = {}
        self._by_api: dict[tuple[str, str], Kind] = {}
        self._by_plural: dict[tuple[str, str, str], Kind] = {}
        self._by_word: dict[str, Kind] = {}
        for kind in self._kinds:
            check(kind.key_kind not in self._by_key_kind, f"{kind.key_kind} is registered twice")
            self._by_key_kind[kind.key_kind] = kind
            self._by_api[kind.api_version, kind.kind] = kind
            self._by_plural[kind.group, kind.version, kind.plural] = kind
            for word in (kind.plural, kind.singular, kind.kind.lower(), *kind.short_names):
                self._by_word.setdefault(word, kind)  # the first registered wins, as with kubectl
                if kind.group:
                    self._by_word.setdefault(f"{word}.{kind.group}", kind)
                    self._by_word.setdefault(f"{word}.{kind.version}.{kind.group}", kind)

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def of_key_kind(self, key_kind: str) -> Kind:
        """The kind behind `Key.kind`.

        Raises:
            NotFound: no such kind is registered.
        """
        kind = self._by_key_kind.get(key_kind)
        if kind is None:
            raise NotFound(f"there is no kind {key_kind!r}: use one that the server has")
        return kind

    def of_api(self, api_version: str, kind: str) -> Kind:
        """The kind that a manifest's `apiVersion` and `kind` name.

        Raises:
            BadRequest: no such kind; the message names versions that have it.
        """
        found = self._by_api.get((api_version, kind))
        if found is not None:
            return found
        others = sorted(other.api_version for other in self._kinds if other.kind == kind)
        hint = f"; {kind} is in {', '.join(others)}" if others else ""
        raise BadRequest(f'no matches for kind "{kind}" in version "{api_version}"{hint}')

    def of_plural(self, group: str, version: str, plural: str) -> Kind:
        """The kind that a URL's path names.

        Raises:
            NotFound: the server has no such resource.
        """
        found = self._by_plural.get((group, version, plural))
        if found is None:
            raise NotFound(
                f"the server could not find the requested resource {plural!r} in {group or 'core'}/{version}"
            )
        return found

    def resolve(self, word: str) -> Kind:
        """The kind of an argument: `po`, `pods`, `Pod`, `deploy`, `deployments.apps`, `deployments.v1.apps`.

        Raises:
            NotFound: no kind has this name.
        """
        found = self._by_word.get(word.lower())
        if found is None:
            raise NotFound(f'the server doesn\'t have a resource type "{word}"')
        return found

    def extended(self, kinds: Iterable[Kind]) -> Registry:
        """A new registry with more kinds; this one is not changed."""
        return Registry((*self._kinds, *kinds))


# -- the built-in kinds ----------------------------------------------------------------------------

_Column = PrinterColumn  # the table below is dense
_AGE = _Column("Age", "date", ".metadata.creationTimestamp")
_STATUS = frozenset({"status"})
_STATUS_AND_SCALE = frozenset({"status", "scale"})
_BINDING_COLUMNS = (
    _Column("Role"), _AGE, _Column("Users", priority=1), _Column("Groups", priority=1),
    _Column("ServiceAccounts", priority=1),
)  # fmt: skip

_CORE = (
    Kind(
        group="", version="v1", kind="Namespace", plural="namespaces", singular="namespace", short_names=("ns",),
        namespaced=False, subresources=frozenset({"status", "finalize"}), view=views.NamespaceView,
        columns=(_Column("Status", path=".status.phase"), _AGE),
        selectable=frozenset({"status.phase"}),
    ),
    Kind(
        group="", version="v1", kind="Node", plural="nodes", singular="node", short_names=("no",),
        namespaced=False, subresources=_STATUS, view=views.NodeView,
        columns=(
            _Column("Status"), _Column("Roles"), _AGE, _Column("Version", path=".status.nodeInfo.kubeletVersion"),
            _Column("Internal-IP", path='.status.addresses[?(@.type=="InternalIP")].address', priority=1),
            _Column("External-IP", path='.status.addresses[?(@.type=="ExternalIP")].address', priority=1),
            _Column("OS-Image", path=".status.nodeInfo.osImage", priority=1),
            _Column("Kernel-Version", path=".status.nodeInfo.kernelVersion", priority=1),
            _Column("Container-Runtime", path=".status.nodeInfo.containerRuntimeVersion", priority=1),
        ),
        selectable=frozenset({"spec.unschedulable"}),
    ),
    Kind(
        group="", version="v1", kind="Pod", plural="pods", singular="pod", short_names=("po",), categories=("all",),
        subresources=frozenset({"status", "binding", "eviction", "log", "exec", "attach", "resize"}),
        view=views.PodView, has_generation=True,
        columns=(
            _Column("Ready"), _Column("Status"), _Column("Restarts"), _AGE,
            _Column("IP", path=".status.podIP", priority=1), _Column("Node", path=".spec.nodeName", priority=1),
            _Column("Nominated Node", path=".status.nominatedNodeName", priority=1),
            _Column("Readiness Gates", priority=1),
        ),
        selectable=frozenset({
            "spec.nodeName", "spec.host", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
            "spec.hostNetwork", "status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName",
        }),
    ),
    Kind(
        group="", version="v1", kind="Event", plural="events", singular="event", short_names=("ev",),
        columns=(
            _Column("Last Seen"), _Column("Type", path=".type"), _Column("Reason", path=".reason"), _Column("Object"),
            _Column("Subobject", path=".involvedObject.fieldPath", priority=1), _Column("Source", priority=1),
            _Column("Message", path=".message"), _Column("First Seen", priority=1),
            _Column("Count", path=".count", priority=1), _Column("Name", path=".metadata.name", priority=1),
        ),
        selectable=frozenset({
            "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
            "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
            "reason", "reportingComponent", "source", "type",
        }),
    ),
    Kind(
        group="", version="v1", kind="ConfigMap", plural="configmaps", singular="configmap", short_names=("cm",),
        columns=(_Column("Data"), _AGE),
    ),
    Kind(
        group="", version="v1", kind="Secret", plural="secrets", singular="secret",
        columns=(_Column("Type", path=".type"), _Column("Data"), _AGE),
        selectable=frozenset({"type"}),
    ),
    Kind(
        group="", version="v1", kind="Service", plural="services", singular="service", short_names=("svc",),
        categories=("all",), subresources=_STATUS, view=views.ServiceView,
        columns=(
            _Column("Type", path=".spec.type"), _Column("Cluster-IP", path=".spec.clusterIP"),
            _Column("External-IP"), _Column("Port(s)"), _AGE, _Column("Selector", priority=1),
        ),
        selectable=frozenset({"spec.clusterIP", "spec.type"}),
    ),
    Kind(
        group="", version="v1", kind="ServiceAccount", plural="serviceaccounts", singular="serviceaccount",
        short_names=("sa",), subresources=frozenset({"token"}), view=views.ServiceAccountView, columns=(_AGE,),
    ),
    Kind(
        group="", version="v1", kind="ResourceQuota", plural="resourcequotas", singular="resourcequota",
        short_names=("quota",), subresources=_STATUS, view=views.ResourceQuotaView,
        columns=(_Column("Request"), _Column("Limit"), _AGE),
    ),
    Kind(
        group="", version="v1", kind="LimitRange", plural="limitranges", singular="limitrange",
        short_names=("limits",), view=views.LimitRangeView,
        columns=(_Column("Created At", path=".metadata.creationTimestamp"),),
    ),
)  # fmt: skip

_GROUPS = (
    Kind(
        group="discovery.k8s.io", version="v1", kind="EndpointSlice", plural="endpointslices",
        singular="endpointslice", view=views.EndpointSliceView, has_generation=True,
        columns=(_Column("AddressType", path=".addressType"), _Column("Ports"), _Column("Endpoints"), _AGE),
    ),
    Kind(
        group="apps", version="v1", kind="Deployment", plural="deployments", singular="deployment",
        short_names=("deploy",), categories=("all",), subresources=_STATUS_AND_SCALE, view=views.DeploymentView,
        has_generation=True,
        columns=(
            _Column("Ready"), _Column("Up-to-date", "integer", ".status.updatedReplicas"),
            _Column("Available", "integer", ".status.availableReplicas"), _AGE, _Column("Containers", priority=1),
            _Column("Images", priority=1), _Column("Selector", priority=1),
        ),
    ),
    Kind(
        group="apps", version="v1", kind="ReplicaSet", plural="replicasets", singular="replicaset",
        short_names=("rs",), categories=("all",), subresources=_STATUS_AND_SCALE, view=views.ReplicaSetView,
        has_generation=True,
        columns=(
            _Column("Desired", "integer", ".spec.replicas"), _Column("Current", "integer", ".status.replicas"),
            _Column("Ready", "integer", ".status.readyReplicas"), _AGE, _Column("Containers", priority=1),
            _Column("Images", priority=1), _Column("Selector", priority=1),
        ),
        selectable=frozenset({"status.replicas"}),
    ),
    Kind(
        group="batch", version="v1", kind="Job", plural="jobs", singular="job", categories=("all",),
        subresources=_STATUS, view=views.JobView, has_generation=True,
        columns=(
            _Column("Status"), _Column("Completions"), _Column("Duration"), _AGE, _Column("Containers", priority=1),
            _Column("Images", priority=1), _Column("Selector", priority=1),
        ),
        selectable=frozenset({"status.successful"}),
    ),
    Kind(
        group="autoscaling", version="v2", kind="HorizontalPodAutoscaler", plural="horizontalpodautoscalers",
        singular="horizontalpodautoscaler", short_names=("hpa",), categories=("all",), subresources=_STATUS,
        view=views.HorizontalPodAutoscalerView, has_generation=True,
        columns=(
            _Column("Reference"), _Column("Targets"), _Column("MinPods", "integer", ".spec.minReplicas"),
            _Column("MaxPods", "integer", ".spec.maxReplicas"),
            _Column("Replicas", "integer", ".status.currentReplicas"), _AGE,
        ),
    ),
    Kind(
        group="policy", version="v1", kind="PodDisruptionBudget", plural="poddisruptionbudgets",
        singular="poddisruptionbudget", short_names=("pdb",), subresources=_STATUS,
        view=views.PodDisruptionBudgetView, has_generation=True,
        columns=(
            _Column("Min Available", path=".spec.minAvailable"),
            _Column("Max Unavailable", path=".spec.maxUnavailable"),
            _Column("Allowed Disruptions", "integer", ".status.disruptionsAllowed"), _AGE,
        ),
    ),
    Kind(
        group="rbac.authorization.k8s.io", version="v1", kind="ClusterRoleBinding", plural="clusterrolebindings",
        singular="clusterrolebinding", namespaced=False, view=views.ClusterRoleBindingView, columns=_BINDING_COLUMNS,
    ),
    Kind(
        group="rbac.authorization.k8s.io", version="v1", kind="ClusterRole", plural="clusterroles",
        singular="clusterrole", namespaced=False, view=views.ClusterRoleView,
        columns=(_Column("Created At", "date", ".metadata.creationTimestamp"),),
    ),
    Kind(
        group="rbac.authorization.k8s.io", version="v1", kind="RoleBinding", plural="rolebindings",
        singular="rolebinding", view=views.RoleBindingView, columns=_BINDING_COLUMNS,
    ),
    Kind(
        group="rbac.authorization.k8s.io", version="v1", kind="Role", plural="roles", singular="role",
        view=views.RoleView, columns=(_Column("Created At", "date", ".metadata.creationTimestamp"),),
    ),
    Kind(
        group="certificates.k8s.io", version="v1", kind="CertificateSigningRequest",
        plural="certificatesigningrequests", singular="certificatesigningrequest", short_names=("csr",),
        namespaced=False, subresources=frozenset({"approval", "status"}), view=views.CertificateSigningRequestView,
        columns=(
            _AGE, _Column("SignerName", path=".spec.signerName"), _Column("Requestor", path=".spec.username"),
            _Column("RequestedDuration"), _Column("Condition"),
        ),
        selectable=frozenset({"spec.signerName"}),
    ),
    Kind(
        group="scheduling.k8s.io", version="v1", kind="PriorityClass", plural="priorityclasses",
        singular="priorityclass", short_names=("pc",), namespaced=False, view=views.PriorityClassView,
        has_generation=True,
        columns=(
            _Column("Value", "integer", ".value"), _Column("Global-Default", "boolean", ".globalDefault"), _AGE,
            _Column("PreemptionPolicy", path=".preemptionPolicy"),
        ),
    ),
    Kind(
        group="coordination.k8s.io", version="v1", kind="Lease", plural="leases", singular="lease",
        view=views.LeaseView, latest_only=True,
        columns=(_Column("Holder", path=".spec.holderIdentity"), _AGE),
    ),
    Kind(
        group="admissionregistration.k8s.io", version="v1", kind="ValidatingAdmissionPolicy",
        plural="validatingadmissionpolicies", singular="validatingadmissionpolicy", namespaced=False,
        categories=("api-extensions",), subresources=_STATUS, has_generation=True,
        columns=(_Column("Validations"), _Column("ParamKind"), _AGE),
    ),
    Kind(
        group="admissionregistration.k8s.io", version="v1", kind="ValidatingAdmissionPolicyBinding",
        plural="validatingadmissionpolicybindings", singular="validatingadmissionpolicybinding", namespaced=False,
        categories=("api-extensions",), has_generation=True,
        columns=(_Column("PolicyName", path=".spec.policyName"), _Column("ParamRef"), _AGE),
    ),
    Kind(
        group="admissionregistration.k8s.io", version="v1", kind="MutatingAdmissionPolicy",
        plural="mutatingadmissionpolicies", singular="mutatingadmissionpolicy", namespaced=False,
        categories=("api-extensions",), has_generation=True,
        columns=(_Column("Mutations"), _Column("ParamKind"), _AGE),
    ),
    Kind(
        group="admissionregistration.k8s.io", version="v1", kind="MutatingAdmissionPolicyBinding",
        plural="mutatingadmissionpolicybindings", singular="mutatingadmissionpolicybinding", namespaced=False,
        categories=("api-extensions",), has_generation=True,
        columns=(_Column("PolicyName", path=".spec.policyName"), _Column("ParamRef"), _AGE),
    ),
    Kind(
        group="apiextensions.k8s.io", version="v1", kind="CustomResourceDefinition",
        plural="customresourcedefinitions", singular="customresourcedefinition", short_names=("crd", "crds"),
        categories=("api-extensions",), namespaced=False, subresources=_STATUS, has_generation=True,
        columns=(_Column("Created At", "date", ".metadata.creationTimestamp"),),
    ),
)  # fmt: skip

_OWN = (
    Kind(
        group="kedge.dev", version="v1", kind="Reservation", plural="reservations", singular="reservation",
        short_names=("resv",), categories=("kedge",), subresources=_STATUS, view=views.ReservationView,
        has_generation=True,
        columns=(
            _Column("Pod", path=".spec.pod.name"), _Column("Node", path=".spec.nodeName"),
            _Column("Phase", path=".status.phase"), _Column("Gang", path=".spec.gang"),
            _Column("Deadline", "date", ".spec.deadline"), _AGE,
        ),
        selectable=frozenset({"spec.nodeName", "spec.gang", "spec.workloadUID", "status.phase"}),
    ),
    Kind(
        group="kedge.dev", version="v1", kind="NodeAllocation", plural="nodeallocations",
        singular="nodeallocation", short_names=("nalloc",), categories=("kedge",), namespaced=False,
        subresources=_STATUS, view=views.NodeAllocationView, has_generation=True,
        columns=(
            _Column("CPU", path=".status.allocated.cpu"), _Column("Memory", path=".status.allocated.memory"),
            _Column("Pods", path=".status.allocated.pods"), _AGE,
        ),
    ),
    Kind(
        group="kedge.dev", version="v1", kind="SchedulingPolicy", plural="schedulingpolicies",
        singular="schedulingpolicy", short_names=("schedpol",), categories=("kedge",), namespaced=False,
        subresources=_STATUS, view=views.SchedulingPolicyView, has_generation=True,
        columns=(
            _Column("Version", path=".spec.version"), _Column("Active", "boolean", ".spec.active"),
            _Column("Canary", path=".spec.canary.version"), _Column("Zone-Skew", "integer", ".spec.maxZoneSkew"), _AGE,
        ),
    ),
    Kind(
        group="kedge.dev", version="v1", kind="ZoneQuota", plural="zonequotas", singular="zonequota",
        short_names=("zq",), categories=("kedge",), subresources=_STATUS, view=views.ZoneQuotaView,
        has_generation=True, columns=(_Column("Zones"), _AGE),
    ),
    Kind(
        group="kedge.dev", version="v1", kind="Rollout", plural="rollouts", singular="rollout",
        categories=("kedge",), subresources=_STATUS, view=views.RolloutView, has_generation=True,
        columns=(
            _Column("Target", path=".spec.target.name"), _Column("Phase", path=".status.phase"),
            _Column("Stage", "integer", ".status.stage"), _AGE, _Column("Reason", path=".status.reason", priority=1),
        ),
    ),
    Kind(
        group="kedge.dev", version="v1", kind="RecordingWindow", plural="recordingwindows",
        singular="recordingwindow", short_names=("recwin",), categories=("kedge",), namespaced=False,
        view=views.RecordingWindowView,
        columns=(_Column("Until", path=".spec.until"), _Column("Reason", path=".spec.reason"), _AGE),
    ),
)  # fmt: skip

KINDS = Registry((*_CORE, *_GROUPS, *_OWN))
