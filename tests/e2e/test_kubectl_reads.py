"""The real kubectl reads: resources, explain, every output form, selectors, and describe of every kind."""

from __future__ import annotations

import json
import subprocess

import pytest
from tests.kit.api_server import ServerProcess

from kedge.api.kinds import KINDS

POD = {"containers": [{"name": "main", "image": "x"}]}
TEMPLATE = {"metadata": {"labels": {"app": "shown"}}, "spec": POD}
SELECTOR = {"matchLabels": {"app": "shown"}}
SPECS: dict[str, dict[str, object]] = {
    "Deployment": {"spec": {"replicas": 2, "selector": SELECTOR, "template": TEMPLATE}},
    "ReplicaSet": {"spec": {"replicas": 2, "selector": SELECTOR, "template": TEMPLATE}},
    "Job": {"spec": {"template": {"spec": {**POD, "restartPolicy": "Never"}}}},
    "Pod": {"spec": POD},
    "Service": {"spec": {"selector": {"app": "shown"}, "ports": [{"port": 80}]}},
    "ConfigMap": {"data": {"a": "1"}},
    "Secret": {"stringData": {"a": "1"}},
    "ResourceQuota": {"spec": {"hard": {"configmaps": "100"}}},
    "HorizontalPodAutoscaler": {
        "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "shown"}}
    },
    "PodDisruptionBudget": {"spec": {"minAvailable": 1, "selector": SELECTOR}},
    "PriorityClass": {"value": 10},
    "EndpointSlice": {"addressType": "IPv4", "endpoints": [], "ports": []},
    "Event": {"involvedObject": {"kind": "Pod", "name": "shown", "namespace": "default"}, "reason": "Seen"},
    "Lease": {"spec": {"holderIdentity": "me"}},
    "Namespace": {},
    "Node": {},
    "ZoneQuota": {"spec": {"zones": {"zone-a": {"hard": {"cpu": "1"}}}}},
}
"""Parts of the manifest of one object of each kind that these tests make."""


@pytest.fixture(scope="module", autouse=True)
def objects(server: ServerProcess) -> None:
    """One object of each kind, called `shown`."""
    for kind in KINDS:
        if kind.kind in SPECS:
            body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "shown"}}
            server.kubectl("create", "-f", "-", stdin=json.dumps({**body, **SPECS[kind.kind]}))


def test_every_kind_is_listed_with_its_names(server: ServerProcess) -> None:
    listed = server.kubectl("api-resources", "--no-headers", "-o", "wide")
    for kind in KINDS:
        row = next(line for line in listed.splitlines() if line.split()[0] == kind.plural and kind.api_version in line)
        assert all(name in row for name in (*kind.short_names, kind.kind, str(kind.namespaced).lower()))
    versions = server.kubectl("api-versions").split()
    assert set(versions) >= {kind.api_version for kind in KINDS} | {"events.k8s.io/v1", "metrics.k8s.io/v1beta1"}
    cluster_scoped = server.kubectl("api-resources", "--namespaced=false", "--verbs=list", "-o", "name").split()
    assert "nodes" in cluster_scoped
    assert "pods" not in cluster_scoped


def test_explain_reaches_nested_and_recursive_fields(server: ServerProcess) -> None:
    assert "httpGet" in server.kubectl("explain", "pod.spec.containers.livenessProbe")
    recursive = server.kubectl("explain", "deployment", "--recursive")
    assert "topologyKey" in recursive
    assert "maxSurge" in recursive
    assert "averageUtilization" in server.kubectl("explain", "hpa.spec.metrics.resource.target")
    assert "FIELDS" in server.kubectl("explain", "pod", "--output=plaintext-openapiv2")
    assert "does not exist" in server.kubectl("explain", "pod.spec.nosuch", check=False)


def test_explain_describes_kinds_of_kedges_own(server: ServerProcess) -> None:
    assert "holdSeconds" in server.kubectl("explain", "rollout.spec.stages")
    assert "canary" in server.kubectl("explain", "schedulingpolicy", "--recursive")
    assert "nosuch" in server.kubectl("explain", "nosuch", check=False)


@pytest.mark.parametrize("kind", [kind.resource for kind in KINDS if kind.kind in SPECS])
def test_describe_and_every_output_form_of(server: ServerProcess, kind: str) -> None:
    described = server.kubectl("describe", kind, "shown")
    assert described.startswith("Name:")
    assert "shown" in described
    table = server.kubectl("get", kind, "-o", "wide", "--show-labels")
    assert table.splitlines()[0].endswith("LABELS")
    assert "shown" in table
    assert server.kubectl("get", kind, "shown", "-o", "name").strip().endswith("/shown")
    assert "name: shown" in server.kubectl("get", kind, "shown", "-o", "yaml")
    assert json.loads(server.kubectl("get", kind, "shown", "-o", "json"))["metadata"]["name"] == "shown"


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("jsonpath={.items[*].metadata.name}", "shown"),
        ("jsonpath-as-json={.items[0].spec.replicas}", "[\n    2\n]\n"),
        ("go-template={{range .items}}{{.metadata.name}}={{.spec.replicas}};{{end}}", "shown=2;"),
        ("custom-columns=NAME:.metadata.name,REPLICAS:.spec.replicas", "NAME    REPLICAS\nshown   2\n"),
        ("custom-columns-file=COLUMNS", "WHO\nshown\n"),
    ],
)
def test_templates_and_columns_of_the_callers_own(server: ServerProcess, form: str, expected: str) -> None:
    columns = server.state.parent / "columns"
    columns.write_text("WHO\n.metadata.name\n")
    assert server.kubectl("get", "deploy", "-o", form.replace("COLUMNS", str(columns))) == expected


def test_selectors_sorting_and_paging(server: ServerProcess) -> None:
    for number, color in ((3, "red"), (1, "blue"), (2, "red")):
        server.kubectl("create", "configmap", f"sorted-{number}", f"--from-literal=n={number}")
        server.kubectl("label", "cm", f"sorted-{number}", f"color={color}", f"number={number}")
    names = ("-o", "jsonpath={.items[*].metadata.name}")
    for selector, expected in (
        ("color=red", "sorted-2 sorted-3"),
        ("color in (blue,green)", "sorted-1"),
        ("color,color notin (red)", "sorted-1"),
        ("color!=red,number", "sorted-1"),
        ("color=red,number=3", "sorted-3"),
    ):
        assert server.kubectl("get", "cm", "-l", selector, *names) == expected
    assert "!color" not in server.kubectl("get", "cm", "-l", "!color", *names)
    by_number = server.kubectl("get", "cm", "-l", "color", "--sort-by=.data.n", "--no-headers")
    assert [line.split()[0] for line in by_number.splitlines()] == ["sorted-1", "sorted-2", "sorted-3"]
    one_by_one = server.kubectl("get", "cm", "-l", "color", "--chunk-size=1", "--no-headers", "-L", "color")
    assert [line.split()[-1] for line in one_by_one.splitlines()] == ["blue", "red", "red"]
    assert "sorted-1" in server.kubectl("get", "cm", "-A", "--field-selector", "metadata.name=sorted-1")
    assert "shown" in server.kubectl("get", "pods", "--field-selector=status.phase=Pending,spec.nodeName=")
    assert "not a known field selector" in server.kubectl("get", "pods", "--field-selector=spec.foo=1", check=False)
    assert "parse label selector" in server.kubectl("get", "cm", "-l", "a in", check=False)
    assert (
        server.kubectl("get", "ns", "-l", "kubernetes.io/metadata.name=default", "-o", "name") == "namespace/default\n"
    )


def test_several_kinds_at_once_and_objects_that_are_missing(server: ServerProcess) -> None:
    assert server.kubectl("get", "deploy/shown", "svc/shown", "-o", "name").split() == [
        "deployment.apps/shown",
        "service/shown",
    ]
    every = server.kubectl("get", "all", "-o", "name")
    assert "deployment.apps/shown" in every
    assert "job.batch/shown" in every
    assert server.kubectl("get", "cm", "missing", "--ignore-not-found") == ""
    assert 'configmaps "missing" not found' in server.kubectl("get", "cm", "missing", check=False)
    assert "doesn't have a resource type" in server.kubectl("get", "nosuch", check=False)
    assert "No resources found" in server.kubectl("get", "pods", "-n", "kube-system", check=False)


def test_config_and_cluster_information_come_from_the_kubeconfig(server: ServerProcess) -> None:
    assert server.kubectl("config", "current-context").strip() == "kedge"
    assert server.url in server.kubectl("config", "view", "--minify")
    assert server.url in server.kubectl("cluster-info")
    assert json.loads(server.kubectl("get", "--raw", "/version"))["major"] == "1"
    assert server.kubectl("get", "--raw", "/readyz") == "ok"
    assert "[+]store ok" in server.kubectl("get", "--raw", "/readyz?verbose")
    copy = server.state.parent / "copy.kubeconfig"
    copy.write_text(server.kubeconfig.read_text())
    subprocess.run(
        ["kubectl", "--kubeconfig", str(copy), "config", "set-context", "kedge", "--namespace=kube-node-lease"],
        check=True,
    )
    assert server.kubectl("--kubeconfig", str(copy), "get", "cm", check=False).startswith(
        "No resources found in kube-n"
    )
