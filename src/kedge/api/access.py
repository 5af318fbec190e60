"""Callers and their requests as authorization sees them, and the well-known users and groups. Pure data.

`server.http` authenticates callers; `server.service.access` decides what they may do.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kedge.keys import NODE_USER_PREFIX

MASTERS: Final = "system:masters"
"""Members may do everything, with or without a role: an administrator cannot lock itself out."""
AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"
ANONYMOUS: Final = "system:anonymous"
NODES: Final = "system:nodes"
"""Agents. The user of one is `system:node:NAME`."""
SCHEDULERS: Final = "kedge:schedulers"
CONTROLLERS: Final = "kedge:controllers"
METRICS_READERS: Final = "kedge:metrics"
"""Monitoring systems: they read paths such as `/metrics`, and no objects."""
BOOTSTRAPPERS: Final = "system:bootstrappers"
"""Bearers of bootstrap tokens. Groups that begin with it and a colon are for one component each."""
BOOTSTRAP_USER_PREFIX: Final = "system:bootstrap:"
SCHEDULER_USER: Final = "system:kube-scheduler"
CONTROLLERS_USER: Final = "system:kube-controller-manager"
ACCOUNTS: Final = "system:serviceaccounts"
ACCOUNT_USER_PREFIX: Final = "system:serviceaccount:"


class Caller(NamedTuple):
    """An authenticated user."""

    user: str
    groups: tuple[str, ...]
    uid: str = ""
    extra: tuple[tuple[str, str], ...] = ()
    """More about the user, each a name with one value; a name may stand several times."""

    @property
    def recorded_groups(self) -> tuple[str, ...]:
        """The groups to store beside a version: every authenticated user is in one more."""
        return tuple([each for each in self.groups if each != AUTHENTICATED])


class Attributes(NamedTuple):
    """One request about a resource, as authorization sees it."""

    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    field_selector: str = ""

    @property
    def full_resource(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def account_user(namespace: str, name: str) -> str:
    """The user of a ServiceAccount."""
    return f"{ACCOUNT_USER_PREFIX}{namespace}:{name}"


def account_groups(namespace: str) -> tuple[str, ...]:
    """The groups of each ServiceAccount in a namespace."""
    return (ACCOUNTS, f"{ACCOUNTS}:{namespace}")


def account_of_user(user: str) -> tuple[str, str] | None:
    """Namespace and name of the ServiceAccount behind a user; None for other users."""
    if not user.startswith(ACCOUNT_USER_PREFIX):
        return None
    namespace, colon, name = user.removeprefix(ACCOUNT_USER_PREFIX).partition(":")
    return (namespace, name) if colon and namespace and name and ":" not in name else None


def joining_group(component: str) -> str:
    """The group of bootstrap tokens for a component: agent, scheduler or controllers."""
    return f"{BOOTSTRAPPERS}:kedge:{component}"


def node_of(user: str, groups: tuple[str, ...]) -> str:
    """The node whose agent a user is; empty for other users."""
    return user.removeprefix(NODE_USER_PREFIX) if NODES in groups and user.startswith(NODE_USER_PREFIX) else ""


def refusal(caller: Caller, wanted: Attributes) -> str:
    """The sentence that users of Kubernetes know, and the next step."""
    resource = wanted.full_resource
    where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
    named = f'{resource} "{wanted.name}"' if wanted.name else resource
    if wanted.group:
        full = f"{wanted.resource}.{wanted.group}" + (f"/{wanted.subresource}" if wanted.subresource else "")
        named = f'{full} "{wanted.name}"' if wanted.name else full
    binding = "RoleBinding" if wanted.namespace else "ClusterRoleBinding"
    return (
        f'{named} is forbidden: User "{caller.user}" cannot {wanted.verb} resource "{resource}" in API group'
        f' "{wanted.group}" {where}: an administrator can allow it with a {binding}'
    )


def path_refusal(caller: Caller, verb: str, path: str) -> str:
    return (
        f'forbidden: User "{caller.user}" cannot {verb} path "{path}": an administrator can allow it with a'
        " ClusterRoleBinding"
    )
