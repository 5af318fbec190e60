"""kubectl and roles: create, bind, act as, ask, and be refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kit.api_server import ServerProcess, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("access") / "state") as server:
        yield server


def test_a_role_and_its_binding_let_a_user_in(server: ServerProcess) -> None:
    refused = server.kubectl("get", "pods", "--as=ada", check=False)
    assert 'User "ada" cannot list resource "pods" in API group "" in the namespace "default"' in refused
    server.kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods,deployments.apps,pods/log")
    server.kubectl("create", "rolebinding", "readers", "--role=reader", "--user=ada", "--group=people")
    assert "No resources found" in server.kubectl("get", "pods,deploy", "--as=ada", check=False)
    assert server.kubectl("auth", "can-i", "list", "pods", "--as=eve", "--as-group=people").strip() == "yes"
    listed = server.kubectl("auth", "can-i", "--list", "--as=ada")
    assert "deployments.apps" in listed
    assert "[get list]" in listed
    assert server.kubectl("get", "rolebinding", "readers", "-o", "wide").split()[-2:] == ["ada", "people"]
    assert "Role/reader" in server.kubectl("get", "rolebinding", "readers")
    described = server.kubectl("describe", "role", "reader")
    assert "pods/log" in described
    assert "verbs" in server.kubectl("explain", "role.rules")
    server.kubectl("delete", "rolebinding", "readers")
    assert "Forbidden" in server.kubectl("get", "pods", "--as=ada", check=False)


def test_an_account_acts_with_its_token(server: ServerProcess) -> None:
    server.kubectl("create", "serviceaccount", "robot")
    server.kubectl("create", "rolebinding", "robots", "--clusterrole=view", "--serviceaccount=default:robot")
    token = server.kubectl("create", "token", "robot", "--duration=20m").strip()
    acts = ("--token", token, "--kubeconfig", str(tokens_kubeconfig(server)))
    assert "system:serviceaccount:default:robot" in server.kubectl("auth", "whoami", *acts)
    assert "default" in server.kubectl("get", "serviceaccounts", *acts)
    assert "Forbidden" in server.kubectl("get", "secrets", *acts, check=False)
    assert "Forbidden" in server.kubectl("get", "pods", "-n", "kube-system", *acts, check=False)
    assert "view" in server.kubectl("get", "rolebinding", "robots", "-o", "wide")


def tokens_kubeconfig(server: ServerProcess) -> object:
    """A kubeconfig of the server without a client certificate, which would count before a token."""
    path = server.state / "bare.kubeconfig"
    authority = server.state / "ca.crt"
    base = ("--kubeconfig", str(path))
    server.kubectl(
        "config", "set-cluster", "c", f"--server={server.url}", f"--certificate-authority={authority}", *base
    )
    server.kubectl("config", "set-context", "c", "--cluster=c", *base)
    server.kubectl("config", "use-context", "c", *base)
    return path


def test_an_administrator_of_a_namespace_grants_no_more_than_it_has(server: ServerProcess) -> None:
    server.kubectl("create", "namespace", "team")
    server.kubectl("create", "rolebinding", "admins", "--clusterrole=admin", "--user=bob", "-n", "team")
    bob = ("--as=bob", "-n", "team")
    server.kubectl("create", "rolebinding", "viewers", "--clusterrole=view", "--user=eve", *bob)
    server.kubectl("create", "role", "pods", "--verb=*", "--resource=pods", *bob, check=False)
    refused = server.kubectl(
        "create", "rolebinding", "more", "--clusterrole=cluster-admin", "--user=bob", *bob, check=False
    )
    assert "is attempting to grant RBAC permissions not currently held" in refused
    refused = server.kubectl(
        "create", "role", "quotas", "--verb=update", "--resource=resourcequotas", *bob, check=False
    )
    assert '{APIGroups:[""], Resources:["resourcequotas"], Verbs:["update"]}' in refused
    assert server.kubectl("auth", "can-i", "list", "pods", "--as=eve", "-n", "team").strip() == "yes"
    assert "is forbidden" in server.kubectl(
        "create", "clusterrolebinding", "x", "--clusterrole=view", "--user=bob", "--as=bob", check=False
    )


def test_default_roles_are_there_and_aggregated_ones_show_their_rules(server: ServerProcess) -> None:
    names = server.kubectl("get", "clusterroles", "-o", "name")
    for name in ("cluster-admin", "admin", "edit", "view", "system:discovery", "system:node", "kedge:scheduler"):
        assert f"clusterrole.rbac.authorization.k8s.io/{name}\n" in names
    assert "deployments.apps" in server.kubectl("describe", "clusterrole", "admin")
    head = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: "
    rules = 'rules: [{verbs: [get], apiGroups: [""], resources: [configmaps]}]'
    selector = "aggregationRule: {clusterRoleSelectors: [{matchLabels: {to: wide}}]}"
    server.kubectl("apply", "-f", "-", stdin=f"{head}{{name: maps, labels: {{to: wide}}}}\n{rules}")
    server.kubectl("apply", "-f", "-", stdin=f"{head}{{name: wide}}\n{selector}")
    server.kubectl("wait", "clusterrole/wide", "--for=jsonpath={.rules[0].resources[0]}=configmaps", "--timeout=30s")


def test_roles_are_reconciled_by_kubectl(server: ServerProcess) -> None:
    role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: made, namespace: default}\n"
    rules = 'rules: [{verbs: [get], apiGroups: [""], resources: [configmaps]}]'
    assert "reconciled" in server.kubectl("auth", "reconcile", "-f", "-", stdin=f"{role}{rules}")
    assert "configmaps" in server.kubectl("get", "role", "made", "-o", "yaml")
