"""Roles and bindings: their rules, defaults and cells."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.api.checks import DELETE, check, errors_of, kind_of
from tests.unit.api.manifests import manifest

from kedge.api.defaults import apply_defaults
from kedge.api.validation import check_update
from kedge.errors import Invalid
from kedge.server.http.cells import CELLS, SHARED_CELLS

RULES: list[tuple[str, str, Any, str]] = [
    ("Role", "metadata/name", "a/b", "may not contain '/'"),
    ("ClusterRole", "metadata/name", "..", "may not be '..'"),
    ("Role", "rules/0/verbs", [], "rules[0].verbs: Required value: verbs must contain at least one value"),
    ("Role", "rules/0/apiGroups", [], "resource rules must supply at least one api group"),
    ("Role", "rules/0/resources", [], "resource rules must supply at least one resource"),
    ("Role", "rules/0", {"verbs": ["get"], "nonResourceURLs": ["/x"]}, "namespaced rules cannot apply"),
    ("ClusterRole", "rules/0/resources", ["pods"], "cannot apply to both regular resources and non-resource URLs"),
    ("ClusterRole", "aggregationRule/clusterRoleSelectors", [], "at least one clusterRoleSelector required"),
    ("ClusterRole", "aggregationRule/clusterRoleSelectors/0/matchLabels", {"/": "b"}, "prefix part must be non-empty"),
    ("RoleBinding", "roleRef/apiGroup", "apps", 'supported values: "rbac.authorization.k8s.io"'),
    ("RoleBinding", "roleRef/kind", "Pod", 'supported values: "Role", "ClusterRole"'),
    ("ClusterRoleBinding", "roleRef/kind", "Role", 'roleRef.kind: Unsupported value: "Role"'),
    ("RoleBinding", "roleRef/name", "", "roleRef.name: Required value"),
    ("RoleBinding", "roleRef/name", "a%2Fb", "may not contain '%'"),
    ("RoleBinding", "subjects/0/name", "", "subjects[0].name: Required value"),
    ("RoleBinding", "subjects/0/kind", "Robot", 'supported values: "ServiceAccount", "User", "Group"'),
    ("RoleBinding", "subjects/0/apiGroup", "apps", "subjects[0].apiGroup: Unsupported value"),
    ("RoleBinding", "subjects/1/apiGroup", "apps", "subjects[1].apiGroup: Unsupported value"),
    ("RoleBinding", "subjects/1/namespace", DELETE, "subjects[1].namespace: Required value"),
    ("RoleBinding", "subjects/1/namespace", "A", "subjects[1].namespace: Invalid value"),
    ("RoleBinding", "subjects/1/name", "a:b", "subjects[1].name: Invalid value"),
]


@pytest.mark.parametrize(("kind", "path", "value", "expected"), RULES)
def test_a_bad_field_is_named(kind: str, path: str, value: Any, expected: str) -> None:
    assert any(expected in each for each in errors_of(kind, (path, value)))


def test_roles_may_have_colons_in_their_names() -> None:
    role = manifest("ClusterRole")
    role["metadata"]["name"] = "system:controller:Ä b"
    assert check(role).view.name == "system:controller:Ä b"


def test_groups_of_references_have_defaults() -> None:
    binding = manifest("RoleBinding")
    del binding["roleRef"]["apiGroup"], binding["subjects"][0]["apiGroup"]
    assert apply_defaults(kind_of(binding), binding)
    assert binding == manifest("RoleBinding")
    assert not apply_defaults(kind_of(binding), binding)


def test_a_binding_keeps_its_role() -> None:
    before, after = manifest("RoleBinding"), manifest("RoleBinding")
    after["subjects"] = []
    check_update(kind_of(before), before, after)
    after["roleRef"]["name"] = "admin"
    with pytest.raises(Invalid, match="cannot change roleRef"):
        check_update(kind_of(before), before, after)


def test_cells_of_a_binding_show_its_role_and_subjects() -> None:
    binding, now = manifest("RoleBinding"), datetime.now(UTC)
    assert CELLS["RoleBinding", "Role"](binding, now) == "Role/reader"
    shown = [SHARED_CELLS[column](binding, now) for column in ("Users", "Groups", "ServiceAccounts")]
    assert shown == ["ada", "", "team-a/builder"]
