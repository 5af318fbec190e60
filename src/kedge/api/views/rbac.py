"""Views of roles and of the bindings that grant them."""

from __future__ import annotations

from kedge.api.views.base import ApiStruct, LabelSelectorSpec, View


class PolicyRule(ApiStruct, frozen=True):
    """One rule: its verbs on resources, or on paths that are no resource."""

    verbs: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    """`pods`, `pods/log`, `*/scale` or `*`."""
    resource_names: tuple[str, ...] = ()
    """Empty for every object."""
    non_resource_urls: tuple[str, ...] = ()
    """Paths; a `*` at the end stands for any rest."""


class AggregationRule(ApiStruct, frozen=True):
    cluster_role_selectors: tuple[LabelSelectorSpec, ...] = ()


class RoleView(View, frozen=True):
    rules: tuple[PolicyRule, ...] = ()


class ClusterRoleView(View, frozen=True):
    rules: tuple[PolicyRule, ...] = ()
    aggregation_rule: AggregationRule | None = None


class RoleRef(ApiStruct, frozen=True):
    api_group: str = ""
    kind: str = ""
    name: str = ""


class RoleSubject(ApiStruct, frozen=True):
    """A user, a group or a service account that a binding names."""

    kind: str = ""
    api_group: str = ""
    name: str = ""
    namespace: str = ""


class RoleBindingView(View, frozen=True):
    subjects: tuple[RoleSubject, ...] = ()
    role_ref: RoleRef = RoleRef()


class ClusterRoleBindingView(View, frozen=True):
    subjects: tuple[RoleSubject, ...] = ()
    role_ref: RoleRef = RoleRef()
