"""Roles and bindings, indexed by subject: the rules of a user and its groups without a scan. No I/O.

The authorizer keeps it in step with the store. Rules of an aggregating role are computed here, so that they hold from
the moment that a role with matching labels exists; `aggregation` stores them for readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from kedge.api.access import account_user
from kedge.api.objects import Object
from kedge.api.selectors import label_selector
from kedge.api.views import ClusterRoleBindingView, ClusterRoleView, PolicyRule, RoleBindingView, RoleRef, RoleView
from kedge.api.views.rbac import RoleSubject
from kedge.api.wellknown import (
    CLUSTER_ROLE_BINDING_KIND,
    CLUSTER_ROLE_KIND,
    ROLE_BINDING_KIND,
    ROLE_KIND,
    SERVICE_ACCOUNT_KIND,
)
from kedge.keys import Key

INDEXED: Final = (ROLE_KIND, CLUSTER_ROLE_KIND, ROLE_BINDING_KIND, CLUSTER_ROLE_BINDING_KIND)
"""The kinds that decisions depend on."""
_BindingView: TypeAlias = RoleBindingView | ClusterRoleBindingView
_SubjectKey: TypeAlias = tuple[str, str]
"""`User` or `Group`, and its name. A service account is a user."""


class GrantedRules(NamedTuple):
    """Every rule of one user."""

    everywhere: tuple[PolicyRule, ...]
    by_namespace: Mapping[str, tuple[PolicyRule, ...]]

    def within(self, namespace: str) -> tuple[PolicyRule, ...]:
        """The rules that count for requests in a namespace, or at the cluster scope if it is empty."""
        return (*self.everywhere, *self.by_namespace.get(namespace, ())) if namespace else self.everywhere


class RoleIndex:
    """Invariant: `_by_subject` has each binding of `_bindings` under each of its subjects, and no other."""

    def __init__(self) -> None:
        self._roles: dict[Key, RoleView] = {}
        self.cluster_roles: dict[str, ClusterRoleView] = {}
        self._bindings: dict[Key, _BindingView] = {}
        self._by_subject: dict[_SubjectKey, dict[Key, _BindingView]] = {}
        self._aggregated: dict[str, tuple[PolicyRule, ...]] = {}
        """Computed rules of aggregating roles, until any cluster role changes."""

    def put(self, found: Object) -> None:
        """Add an object, or replace its last version."""
        key = found.key
        match key.kind:
            case kind if kind == ROLE_KIND:
                self._roles[key] = found.as_view(RoleView)
            case kind if kind == CLUSTER_ROLE_KIND:
                self.cluster_roles[key.name] = found.as_view(ClusterRoleView)
                self._aggregated.clear()
            case kind if kind == ROLE_BINDING_KIND:
                self._bind(key, found.as_view(RoleBindingView))
            case _:
                self._bind(key, found.as_view(ClusterRoleBindingView))

    def drop(self, key: Key) -> None:
        """Remove an object. One that is not here is no error."""
        self._roles.pop(key, None)
        if key.kind == CLUSTER_ROLE_KIND:
            self.cluster_roles.pop(key.name, None)
            self._aggregated.clear()
        self._unbind(key)

    def keys(self, kind: str) -> list[Key]:
        """The objects of one kind."""
        if kind == CLUSTER_ROLE_KIND:
            return [Key(kind, "", name) for name in self.cluster_roles]
        return [key for key in (*self._roles, *self._bindings) if key.kind == kind]

    def granted(self, user: str, groups: tuple[str, ...]) -> GrantedRules:
        """Every rule of a user in these groups."""
        everywhere: dict[PolicyRule, None] = {}
        by_namespace: dict[str, dict[PolicyRule, None]] = {}
        for subject in (("User", user), *(("Group", group) for group in groups)):
            for key, binding in self._by_subject.get(subject, {}).items():
                target = by_namespace.setdefault(key.namespace, {}) if key.namespace else everywhere
                target.update(dict.fromkeys(self.rules_of(binding.role_ref, key.namespace) or ()))
        return GrantedRules(tuple(everywhere), {name: tuple(rules) for name, rules in by_namespace.items()})

    def rules_of(self, ref: RoleRef, namespace: str) -> tuple[PolicyRule, ...] | None:
        """The rules of the role that a binding names; None if there is no such role."""
        if ref.kind == "ClusterRole":
            role = self.cluster_roles.get(ref.name)
            return None if role is None else self.cluster_rules(role)
        found = self._roles.get(Key(ROLE_KIND, namespace, ref.name))
        return None if found is None else found.rules

    def cluster_rules(self, role: ClusterRoleView) -> tuple[PolicyRule, ...]:
        """The rules of a cluster role; for an aggregating one those of all that it selects, and of theirs."""
        if role.aggregation_rule is None:
            return role.rules
        known = self._aggregated.get(role.name)
        if known is None or self.cluster_roles.get(role.name) is not role:
            known = tuple(self._collect(role))
            if self.cluster_roles.get(role.name) is role:  # not an older version, or a role that is gone
                self._aggregated[role.name] = known
        return known

    def _collect(self, role: ClusterRoleView) -> dict[PolicyRule, None]:
        rules: dict[PolicyRule, None] = {}
        seen, waiting = {role.name}, [role]
        while waiting:
            for each in self._selected(waiting.pop()):
                if each.name in seen:
                    continue  # roles may select each other, and themselves
                seen.add(each.name)
                if each.aggregation_rule is None:
                    rules.update(dict.fromkeys(each.rules))
                else:
                    waiting.append(each)
        return rules

    def _selected(self, role: ClusterRoleView) -> Iterator[ClusterRoleView]:
        assert role.aggregation_rule is not None
        selectors = [label_selector(each) for each in role.aggregation_rule.cluster_role_selectors]
        for _, each in sorted(self.cluster_roles.items()):
            if any(selector.matches(each.labels) for selector in selectors):
                yield each

    def _bind(self, key: Key, binding: _BindingView) -> None:
        self._unbind(key)
        self._bindings[key] = binding
        for subject in binding.subjects:
            self._by_subject.setdefault(_subject_key(subject), {})[key] = binding

    def _unbind(self, key: Key) -> None:
        binding = self._bindings.pop(key, None)
        for subject in binding.subjects if binding is not None else ():
            named = self._by_subject.get(_subject_key(subject))
            if named is not None:  # a binding may name a subject twice
                named.pop(key, None)
                if not named:
                    del self._by_subject[_subject_key(subject)]


def _subject_key(subject: RoleSubject) -> _SubjectKey:
    if subject.kind == SERVICE_ACCOUNT_KIND:
        return "User", account_user(subject.namespace, subject.name)
    return subject.kind, subject.name
