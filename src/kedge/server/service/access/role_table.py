"""The default roles and bindings: the rights of users and components in a new cluster. Data, and nothing else.

Users get `view`, `edit`, `admin` and `cluster-admin`, as in Kubernetes. Each component has a role with the least it
needs: a test runs the control plane under them. Rights of an agent that depend on its node are in `node_access`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kedge.api.access import (
    AUTHENTICATED,
    BOOTSTRAPPERS,
    CONTROLLERS,
    MASTERS,
    METRICS_READERS,
    NODES,
    SCHEDULERS,
    UNAUTHENTICATED,
    joining_group,
)
from kedge.api.views import PolicyRule
from kedge.api.wellknown import (
    AUTHENTICATION_GROUP,
    AUTHORIZATION_GROUP,
    CERTIFICATES_GROUP,
    CONTROLLERS_LEASE,
    EVENTS_GROUP,
    KEDGE_GROUP,
    LEASES_GROUP,
    METRICS_GROUP,
    RBAC_GROUP,
    SLICES_GROUP,
    SYSTEM_NAMESPACE,
)
from kedge.server.service.access.rules import EVERYTHING
from kedge.server.service.credentials.signing_rules import (
    NODE_CLIENT,
    OWN_CLIENT,
    OWN_NODE_CLIENT,
    OWN_NODE_SERVING,
)


class DefaultRole(NamedTuple):
    """One role that every server ensures; with a namespace a Role, else a ClusterRole."""

    name: str
    rules: tuple[PolicyRule, ...] = ()
    labels: tuple[str, ...] = ()
    """Names of the roles that have its rules too: `edit` is the label `aggregate-to-edit`."""
    aggregates: str = ""
    """It has the rules of every role with the label of this name, and none of its own."""
    groups: tuple[str, ...] = ()
    """Groups that it is bound to."""
    users: tuple[str, ...] = ()
    """Users that it is bound to."""
    namespace: str = ""


_READ: Final = ("get", "list", "watch")
_FOLLOW: Final = ("list", "watch")
"""The verbs of a cache."""
_WRITE: Final = ("create", "delete", "deletecollection", "patch", "update")
_APPS, _BATCH, _POLICY = "apps", "batch", "policy"


def rule(verbs: tuple[str, ...] | str, group: str, *resources: str) -> PolicyRule:
    return PolicyRule(verbs=tuple(verbs.split()) if isinstance(verbs, str) else verbs, api_groups=(group,),
                      resources=resources)  # fmt: skip


def paths(*names: str) -> PolicyRule:
    return PolicyRule(verbs=("get",), non_resource_urls=names)


_INCIDENT_SENDER: Final = PolicyRule(verbs=("post",), non_resource_urls=("/kedge/incidents/*",))
"""Every process sends its records of an incident."""
_HEALTH: Final = ("/healthz", "/livez", "/readyz", "/version", "/version/")
_SEEN: Final = (
    rule(
        _READ, "", "configmaps", "events", "limitranges", "namespaces", "namespaces/status", "pods", "pods/log",
        "pods/status", "resourcequotas", "resourcequotas/status", "serviceaccounts", "services", "services/status",
    ),
    rule(_READ, EVENTS_GROUP, "events"),
    rule(
        _READ, _APPS, "deployments", "deployments/scale", "deployments/status", "replicasets", "replicasets/scale",
        "replicasets/status",
    ),
    rule(_READ, _BATCH, "jobs", "jobs/status"),
    rule(_READ, "autoscaling", "horizontalpodautoscalers", "horizontalpodautoscalers/status"),
    rule(_READ, _POLICY, "poddisruptionbudgets", "poddisruptionbudgets/status"),
    rule(_READ, SLICES_GROUP, "endpointslices"),
    rule(_READ, LEASES_GROUP, "leases"),
    rule(_READ, METRICS_GROUP, "pods"),
    rule(
        _READ, KEDGE_GROUP, "reservations", "reservations/status", "rollouts", "rollouts/status", "zonequotas",
        "zonequotas/status",
    ),
)  # fmt: skip
_EDITED: Final = (
    rule((*_READ, *_WRITE), "", "secrets"),
    rule("get create", "", "pods/attach", "pods/exec", "pods/portforward"),
    rule(_WRITE, "", "configmaps", "pods", "pods/resize", "serviceaccounts", "services"),
    rule("create", "", "pods/eviction", "serviceaccounts/token"),
    rule("impersonate", "", "serviceaccounts"),
    rule("create patch update", "", "events"),
    rule("create patch update", EVENTS_GROUP, "events"),
    rule(_WRITE, _APPS, "deployments", "deployments/scale", "replicasets", "replicasets/scale"),
    rule(_WRITE, _BATCH, "jobs"),
    rule(_WRITE, "autoscaling", "horizontalpodautoscalers"),
    rule(_WRITE, _POLICY, "poddisruptionbudgets"),
    rule(_WRITE, LEASES_GROUP, "leases"),
    rule(_WRITE, KEDGE_GROUP, "rollouts"),
)
_ADMINISTERED: Final = (
    rule((*_READ, *_WRITE), RBAC_GROUP, "roles", "rolebindings"),
    rule("create", AUTHORIZATION_GROUP, "localsubjectaccessreviews"),
)

_USERS: Final = (
    DefaultRole("cluster-admin", EVERYTHING, groups=(MASTERS,)),
    DefaultRole("admin", aggregates="admin"),
    DefaultRole("edit", aggregates="edit", labels=("admin",)),
    DefaultRole("view", aggregates="view", labels=("edit",)),
    DefaultRole("system:aggregate-to-admin", _ADMINISTERED, labels=("admin",)),
    DefaultRole("system:aggregate-to-edit", _EDITED, labels=("edit",)),
    DefaultRole("system:aggregate-to-view", _SEEN, labels=("view",)),
    DefaultRole(
        "system:discovery",
        (paths("/api", "/api/*", "/apis", "/apis/*", *_HEALTH, "/openapi", "/openapi/*"),),
        groups=(AUTHENTICATED,),
    ),
    DefaultRole(
        "system:basic-user",
        (
            rule("create", AUTHORIZATION_GROUP, "selfsubjectaccessreviews", "selfsubjectrulesreviews"),
            rule("create", AUTHENTICATION_GROUP, "selfsubjectreviews"),
        ),
        groups=(AUTHENTICATED,),
    ),
    DefaultRole("system:public-info-viewer", (paths(*_HEALTH),), groups=(AUTHENTICATED, UNAUTHENTICATED)),
    DefaultRole(
        "system:auth-delegator",
        (
            rule("create", AUTHENTICATION_GROUP, "tokenreviews"),
            rule("create", AUTHORIZATION_GROUP, "subjectaccessreviews"),
        ),
    ),
    DefaultRole(
        "system:monitoring",
        (paths("/metrics", "/healthz", "/healthz/*", "/livez", "/livez/*", "/readyz", "/readyz/*"),),
        groups=("system:monitoring", METRICS_READERS),
    ),
)

EVENT_WRITER: Final = rule("create patch", "", "events")
EVENT_READER: Final = rule("get", "", "events")
"""Before an Event is counted up, it is read."""
_REQUESTS: Final = "certificatesigningrequests"
_REQUESTER: Final = rule("get create", CERTIFICATES_GROUP, _REQUESTS)


def approved(*rights: str) -> PolicyRule:
    """The right to certificates that are approved by rule: see `credentials.signing_rules`."""
    return rule("create", CERTIFICATES_GROUP, *(f"{_REQUESTS}/{each}" for each in rights))


JOINING: Final = {"agent": NODE_CLIENT, "scheduler": "schedulerclient", "controllers": "controllersclient"}
"""Components that join with a token, and the right that the token gives."""

_JOINING: Final = (
    DefaultRole("system:node-bootstrapper", (_REQUESTER,), groups=(BOOTSTRAPPERS,)),
    *(
        DefaultRole(f"kedge:join-{component}", (approved(right),), groups=(joining_group(component),))
        for component, right in JOINING.items()
    ),
)

_COMPONENTS: Final = (
    DefaultRole(
        "system:node",
        (
            rule(_READ, "", "nodes", "services"),  # the proxy of each node sends to every node
            rule(_READ, SLICES_GROUP, "endpointslices"),
            EVENT_WRITER,
            EVENT_READER,
            rule(_READ, KEDGE_GROUP, "recordingwindows"),
            _INCIDENT_SENDER,
            _REQUESTER,
            approved(OWN_NODE_CLIENT, OWN_NODE_SERVING),
        ),
        groups=(NODES,),
    ),
    DefaultRole(
        "kedge:scheduler",
        (
            rule(_FOLLOW, "", "nodes", "pods", "namespaces"),
            rule(_FOLLOW, _APPS, "deployments", "replicasets"),
            rule(_FOLLOW, _POLICY, "poddisruptionbudgets"),
            rule(
                _FOLLOW, KEDGE_GROUP, "nodeallocations", "recordingwindows", "reservations", "rollouts",
                "schedulingpolicies", "zonequotas",
            ),
            # Objects that it writes are read again if the reply was lost.
            rule("get", "", "pods", "namespaces"),
            rule("get", KEDGE_GROUP, "reservations", "schedulingpolicies"),
            rule("create", "", "pods/binding", "pods/eviction"),
            rule("patch", "", "pods/status"),
            rule("patch", KEDGE_GROUP, "schedulingpolicies/status"),
            rule("create", KEDGE_GROUP, "reservations/gang"),
            rule("delete", KEDGE_GROUP, "reservations"),
            EVENT_WRITER,
            EVENT_READER,
            _INCIDENT_SENDER,
            _REQUESTER,
            approved(OWN_CLIENT),
        ),
        groups=(SCHEDULERS,),
    ),
    DefaultRole(
        "kedge:controllers",
        (
            # The process reads for its controllers, which share caches; garbage collection is about every kind. Each
            # controller writes with a role of its own.
            rule(_READ, "*", "*"),
            rule("create", "", "namespaces"),
            _INCIDENT_SENDER,
            _REQUESTER,
            approved(OWN_CLIENT),
        ),
        groups=(CONTROLLERS,),
    ),
    DefaultRole(
        # A scheduler chooses its name, and so that of its lease. `write_checks` keeps it from the lease of controllers.
        "kedge:leases",
        (rule("get create update", LEASES_GROUP, "leases"),),
        groups=(SCHEDULERS,),
        namespace=SYSTEM_NAMESPACE,
    ),
    DefaultRole(
        "kedge:controllers-lease",
        (
            rule("create", LEASES_GROUP, "leases"),  # the name of a new object is not known before its body is read
            PolicyRule(verbs=("get", "update"), api_groups=(LEASES_GROUP,), resources=("leases",),
                       resource_names=(CONTROLLERS_LEASE,)),
        ),
        groups=(CONTROLLERS,),
        namespace=SYSTEM_NAMESPACE,
    ),
)  # fmt: skip

DEFAULT_ROLES: Final = (*_USERS, *_JOINING, *_COMPONENTS)
