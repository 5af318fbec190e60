"""Writes that could give rights away, proved where the object is known: inside the attempt of the write.

A role or binding must not grant rights that its writer lacks; a token must not be for a user that its writer may not
impersonate; an agent writes its own node, its lease and its pods; a scheduler does not write the controllers' lease.
Administrators and the server itself are exempt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kedge.api.access import (
    AUTHENTICATED,
    CONTROLLERS,
    MASTERS,
    SCHEDULERS,
    Attributes,
    Caller,
    account_of_user,
    node_of,
)
from kedge.api.objects import Object
from kedge.api.requests import RequestOptions
from kedge.api.tokens import parse_token_secret
from kedge.api.views import ClusterRoleView, PodView, PolicyRule, RoleBindingView
from kedge.api.wellknown import (
    BOOTSTRAP_TOKEN_TYPE,
    CLUSTER_ROLE_BINDING_KIND,
    CLUSTER_ROLE_KIND,
    CONTROLLERS_LEASE,
    LEASE_KIND,
    NODE_KIND,
    NODE_LEASE_NAMESPACE,
    POD_KIND,
    RBAC_GROUP,
    ROLE_BINDING_KIND,
    ROLE_KIND,
    SECRET_KIND,
    SYSTEM_NAMESPACE,
    TOKEN_TYPE,
)
from kedge.errors import Forbidden, NotFound
from kedge.server.service.access.rules import EVERYTHING, rule_text

if TYPE_CHECKING:
    from kedge.server.service.access.authorizer import Authorizer
    from kedge.server.service.core import Core

_SHOWN_MAX: Final = 20
"""Missing rules that a refusal names."""


def check_write(core: Core, options: RequestOptions, old: Object | None, new: Object) -> None:
    """Check a create or an update.

    Raises:
        Forbidden: it would give rights away, or an agent writes an object that is not of its node.
        NotFound: a binding names a role that does not exist.
    """
    rule = _CHECKS.get(new.key.kind)
    if rule is not None and core.access.started and options.caller and MASTERS not in options.origin.groups:
        rule(core.access, _caller(options), old, new)


def check_delete(core: Core, options: RequestOptions, old: Object) -> None:
    """Check a deletion. Raises `Forbidden` for one by an agent of another object than a pod of its node."""
    if old.key.kind == POD_KIND and core.access.started:
        _check_pod(core.access, _caller(options), old, old)


def check_token_request(core: Core, options: RequestOptions, account: str, pod: PodView | None) -> None:
    """Check a token that is about to be signed. Raises `Forbidden` if an agent wants it for no pod of its node."""
    node = node_of(options.caller, options.origin.groups)
    if core.access.started and node and (pod is None or pod.spec.node_name != node):
        raise Forbidden(
            f'serviceaccounts "{account}" is forbidden: the agent of node {node} gets tokens for pods on this node'
            " alone: bind the token to such a pod"
        )


def _caller(options: RequestOptions) -> Caller:
    return Caller(options.caller, (*options.origin.groups, AUTHENTICATED))


# -- roles and bindings ------------------------------------------------------------------------------


def _check_role(access: Authorizer, caller: Caller, old: Object | None, new: Object) -> None:
    view: Any = new.view
    before: Any = None if old is None else old.view
    if before is not None and before.rules == view.rules and _aggregation(before) == _aggregation(view):
        return
    kind, key = new.kind, new.key
    wanted = Attributes("escalate", RBAC_GROUP, kind.plural, "", key.namespace, key.name)
    if access.allows_nowait(caller, wanted):
        return
    rules = view.rules
    if _aggregation(view) is not None and (before is None or _aggregation(before) != _aggregation(view)):
        rules = EVERYTHING  # the roles that it will select are not known
    _check_held(access, caller, new, rules, "escalate")


def _check_binding(access: Authorizer, caller: Caller, old: Object | None, new: Object) -> None:
    view: RoleBindingView = new.view
    if old is not None and old.view.subjects == view.subjects and old.view.role_ref == view.role_ref:
        return
    ref, namespace = view.role_ref, new.key.namespace
    plural = "clusterroles" if ref.kind == "ClusterRole" else "roles"
    if access.allows_nowait(caller, Attributes("bind", RBAC_GROUP, plural, "", namespace, ref.name)):
        return
    rules = access.index.rules_of(ref, namespace)
    if rules is None:
        raise NotFound(f'{plural}.{RBAC_GROUP} "{ref.name}" not found: create it before a binding names it')
    _check_held(access, caller, new, rules, "bind")


def _check_held(access: Authorizer, caller: Caller, new: Object, rules: Sequence[PolicyRule], verb: str) -> None:
    missing = access.lacking(caller, new.key.namespace, rules)
    if missing:
        shown = "\n".join(rule_text(rule) for rule in missing[:_SHOWN_MAX])
        more = f"\nand {len(missing) - _SHOWN_MAX} more" if len(missing) > _SHOWN_MAX else ""
        groups = ", ".join(f'"{group}"' for group in caller.groups)
        raise Forbidden(
            f'{new.kind.resource} "{new.key.name}" is forbidden: user "{caller.user}" (groups=[{groups}]) is attempting'
            f" to grant RBAC permissions not currently held:\n{shown}{more}\n"
            f'an administrator can grant it, or can allow you the verb "{verb}" on the role',
            key=new.key,
        )


def _aggregation(view: Any) -> Any:
    return view.aggregation_rule if isinstance(view, ClusterRoleView) else None


# -- tokens ------------------------------------------------------------------------------------------


def _check_token(access: Authorizer, caller: Caller, old: Object | None, new: Object) -> None:
    """The writer of a token's Secret chooses its user and groups."""
    if new.key.namespace != SYSTEM_NAMESPACE:
        return
    document = new.edit()
    if document.get("type") not in (TOKEN_TYPE, BOOTSTRAP_TOKEN_TYPE) or (
        old is not None and old.edit().get("data") == document.get("data")
    ):
        return
    token = parse_token_secret(document)
    wanted = [impersonation("users", ""), impersonation("groups", "")]  # damaged: its user is not known
    if token is not None:
        wanted = [impersonation_of_user(token.user), *(impersonation("groups", group) for group in token.groups)]
    for each in wanted:
        if not access.allows_nowait(caller, each):
            raise Forbidden(
                f'secrets "{new.key.name}" is forbidden: a token makes its bearer a user, and User "{caller.user}"'
                f' cannot impersonate {each.resource} "{each.name}": an administrator can make the token',
                key=new.key,
            )


def impersonation_of_user(user: str) -> Attributes:
    """The request to act as a user, as authorization sees it."""
    account = account_of_user(user)
    if account is not None:
        return impersonation("serviceaccounts", account[1], namespace=account[0])
    return impersonation("users", user)


def impersonation(
    resource: str, name: str, *, group: str = "", subresource: str = "", namespace: str = ""
) -> Attributes:
    return Attributes("impersonate", group, resource, subresource, namespace, name)


# -- agents ------------------------------------------------------------------------------------------


def _check_pod(access: Authorizer, caller: Caller, old: Object | None, new: Object) -> None:
    del access
    node = node_of(caller.user, caller.groups)
    if node and (old is None or old.as_view(PodView).spec.node_name != node):
        raise Forbidden(
            f'pods "{new.key.name}" is forbidden: the agent of node {node} may write pods that are bound to this node'
            " alone",
            key=new.key,
        )


def _check_node(access: Authorizer, caller: Caller, old: Object | None, new: Object) -> None:
    del access, old
    node = node_of(caller.user, caller.groups)
    if node and new.key.name != node:
        raise Forbidden(
            f'nodes "{new.key.name}" is forbidden: the agent of node {node} may write this node alone: start the agent'
            " with the name that its certificate has",
            key=new.key,
        )


def _check_lease(access: Authorizer, caller: Caller, old: Object | None, new: Object) -> None:
    del access, old
    node = node_of(caller.user, caller.groups)
    if node and new.key[1:] != (NODE_LEASE_NAMESPACE, node):
        raise Forbidden(
            f'leases "{new.key.name}" is forbidden: the agent of node {node} may write the lease of this node alone',
            key=new.key,
        )
    # Roles cannot exclude a name. A process with both groups runs both parts.
    shared = new.key[1:] == (SYSTEM_NAMESPACE, CONTROLLERS_LEASE)
    if shared and SCHEDULERS in caller.groups and CONTROLLERS not in caller.groups:
        raise Forbidden(
            f'leases "{new.key.name}" is forbidden: it is that of the controllers: start the scheduler with another'
            " --name",
            key=new.key,
        )


_CHECKS: Final[dict[str, Callable[[Authorizer, Caller, Object | None, Object], None]]] = {
    ROLE_KIND: _check_role,
    CLUSTER_ROLE_KIND: _check_role,
    ROLE_BINDING_KIND: _check_binding,
    CLUSTER_ROLE_BINDING_KIND: _check_binding,
    SECRET_KIND: _check_token,
    POD_KIND: _check_pod,
    NODE_KIND: _check_node,
    LEASE_KIND: _check_lease,
}
