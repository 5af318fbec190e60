"""The real kubectl writes: generators, apply with prune, set, label, taint, delete in every way, and its refusals."""

from __future__ import annotations

import json

import pytest
from tests.kit.api_server import ServerProcess

CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: NAME, labels: {set: 'LABEL'}}\ndata: {a: VALUE}\n"


def manifest(name: str, value: str = "'1'", label: str = "x") -> str:
    return CONFIG_MAP.replace("NAME", name).replace("VALUE", value).replace("LABEL", label)


def value_of(server: ServerProcess, name: str, path: str, kind: str = "cm") -> str:
    return server.kubectl("get", kind, name, "-o", f"jsonpath={{{path}}}")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("deployment", "g", "--image=nginx", "--replicas=2", "--port=80"), "deployment.apps/g"),
        (("job", "g", "--image=x", "--", "true"), "job.batch/g"),
        (("configmap", "g", "--from-literal=a=1"), "configmap/g"),
        (("secret", "generic", "g", "--from-literal=a=1"), "secret/g"),
        (("secret", "docker-registry", "r", "--docker-server=x", "--docker-username=u", "--docker-password=p"), "r"),
        (("service", "clusterip", "g", "--tcp=80:8080"), "service/g"),
        (("service", "nodeport", "n", "--tcp=80:8080"), "service/n"),
        (("service", "loadbalancer", "l", "--tcp=80"), "service/l"),
        (("service", "externalname", "e", "--external-name=example.com"), "service/e"),
        (("quota", "g", "--hard=configmaps=100"), "resourcequota/g"),
        (("priorityclass", "g", "--value=10", "--description=d"), "priorityclass.scheduling.k8s.io/g"),
        (("poddisruptionbudget", "g", "--selector=a=b", "--max-unavailable=1"), "poddisruptionbudget.policy/g"),
        (("namespace", "g"), "namespace/g"),
        (("role", "g", "--verb=get", "--resource=pods"), "role.rbac.authorization.k8s.io/g"),
        (("clusterrole", "g", "--verb=get", "--resource=pods"), "clusterrole.rbac.authorization.k8s.io/g"),
        (("rolebinding", "g", "--role=g", "--user=u"), "rolebinding.rbac.authorization.k8s.io/g"),
        (("clusterrolebinding", "g", "--clusterrole=g", "--user=u"), "clusterrolebinding.rbac.authorization.k8s.io/g"),
    ],
)
def test_create_with_a_generator_and_its_dry_runs(
    server: ServerProcess, arguments: tuple[str, ...], shown: str
) -> None:
    assert "apiVersion" in server.kubectl("create", "--dry-run=client", "-o", "yaml", *arguments)
    assert f"{shown} created (server dry run)" in server.kubectl("create", "--dry-run=server", *arguments)
    assert f"{shown} created" in server.kubectl("create", *arguments)
    assert "already exists" in server.kubectl("create", *arguments, check=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("cronjob", "c", "--image=x", "--schedule=* * * * *", "--", "true"),
        ("ingress", "i", "--rule=a/b=c:80"),
    ],
)
def test_a_generator_of_a_kind_that_is_not_served_is_refused(server: ServerProcess, arguments: tuple[str, ...]) -> None:
    assert "the server could not find the requested resource" in server.kubectl("create", *arguments, check=False)


def test_run_and_expose(server: ServerProcess) -> None:
    assert "pod/alone created" in server.kubectl("run", "alone", "--image=x", "--labels=app=alone", "--port=80")
    assert "service/alone exposed" in server.kubectl("expose", "pod", "alone", "--port=81", "--target-port=80")
    assert json.loads(value_of(server, "alone", ".spec.ports", "svc"))[0]["targetPort"] == 80


LIMITED = """apiVersion: v1
kind: LimitRange
metadata: {name: bounds, namespace: limited}
spec:
  limits:
  - {type: Container, default: {cpu: 200m}, defaultRequest: {cpu: 100m}, max: {cpu: 500m}, min: {cpu: 50m}}
"""
GREEDY = """apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: limited}
spec:
  containers: [{name: main, image: x, command: [sleep, "1"], resources: {requests: {cpu: CPU}, limits: {cpu: CPU}}}]
"""


def test_a_limit_range_sets_defaults_and_refuses_in_kubernetes_words(server: ServerProcess) -> None:
    server.kubectl("create", "namespace", "limited")
    server.kubectl("apply", "-f", "-", stdin=LIMITED)
    described = server.kubectl("describe", "limitrange", "bounds", "-n", "limited")
    assert "Container" in described
    assert "500m" in described
    server.kubectl("run", "modest", "--image=x", "-n", "limited")
    shown = server.kubectl("get", "pod", "modest", "-n", "limited", "-o", "jsonpath={.spec.containers[0].resources}")
    assert json.loads(shown) == {"limits": {"cpu": "200m"}, "requests": {"cpu": "100m"}}
    for name, cpu, why in (
        ("greedy", "2", "maximum cpu usage per Container is 500m, but limit is 2"),
        ("small", "1m", "minimum cpu usage per Container is 50m, but request is 1m"),
    ):
        body = GREEDY.replace("NAME", name).replace("CPU", cpu)
        refused = server.kubectl("apply", "-f", "-", stdin=body, check=False)
        assert f'pods "{name}" is forbidden: {why}' in refused


def test_apply_counts_changes_prunes_and_keeps_foreign_fields(server: ServerProcess) -> None:
    both = manifest("kept", label="p") + "---\n" + manifest("pruned", label="p")
    assert server.kubectl("apply", "-f", "-", stdin=both).count("created") == 2
    server.kubectl("annotate", "cm", "kept", "other=tool")
    server.kubectl("patch", "cm", "kept", "-p", '{"data":{"b":"2"}}')
    changed = manifest("kept", "'9'", label="p")
    assert "kept configured" in server.kubectl("apply", "-f", "-", stdin=changed, check=True)
    assert (value_of(server, "kept", ".data.a"), value_of(server, "kept", ".data.b")) == ("9", "2")
    assert value_of(server, "kept", ".metadata.annotations.other") == "tool"
    prune = ("--prune", "-l", "set=p", "--prune-allowlist=core/v1/ConfigMap")
    assert "configmap/pruned pruned" in server.kubectl("apply", *prune, "-f", "-", stdin=changed)
    removed = "\n".join(line for line in changed.splitlines() if not line.startswith("data"))
    server.kubectl("apply", "-f", "-", stdin=removed)
    assert value_of(server, "kept", ".data") == ""  # the manifest had the whole field, and has it no more
    last = server.kubectl("apply", "view-last-applied", "cm", "kept", "-o", "json")
    assert json.loads(last)["metadata"]["name"] == "kept"
    assert server.kubectl("diff", "-f", "-", stdin=removed) == ""
    assert "Server-side apply not available" in server.kubectl(
        "apply", "--server-side", "-f", "-", stdin=removed, check=False
    )


def test_set_changes_image_environment_and_resources(server: ServerProcess) -> None:
    server.kubectl("create", "deployment", "set", "--image=x:1")
    container = ".spec.template.spec.containers[0]"
    server.kubectl("set", "image", "deployment/set", "x=x:2")
    server.kubectl("set", "env", "deployment/set", "A=b", "C=d")
    server.kubectl("set", "env", "deployment/set", "C-")
    server.kubectl("set", "resources", "deployment/set", "--limits=cpu=1", "--requests=cpu=500m")
    assert value_of(server, "set", f"{container}.image", "deploy") == "x:2"
    assert json.loads(value_of(server, "set", f"{container}.env", "deploy")) == [{"name": "A", "value": "b"}]
    assert value_of(server, "set", f"{container}.resources.requests.cpu", "deploy") == "500m"
    assert value_of(server, "set", ".metadata.generation", "deploy") == "5"


def test_scale_checks_its_precondition(server: ServerProcess) -> None:
    server.kubectl("create", "deployment", "scaled", "--image=x")
    refused = server.kubectl("scale", "deploy/scaled", "--replicas=3", "--current-replicas=9", check=False)
    assert "Expected replicas to be 9, was 1" in refused
    server.kubectl("scale", "deploy/scaled", "--replicas=3", "--current-replicas=1")
    assert value_of(server, "scaled", ".spec.replicas", "deploy") == "3"
    server.kubectl("create", "configmap", "unscaled")
    assert "no subresource 'scale'" in server.kubectl("scale", "cm/unscaled", "--replicas=3", check=False)


def test_labels_and_annotations_are_added_changed_and_removed(server: ServerProcess) -> None:
    server.kubectl("create", "configmap", "tagged")
    server.kubectl("label", "cm", "tagged", "a=1", "b=2")
    assert "--overwrite is false" in server.kubectl("label", "cm", "tagged", "a=2", check=False)
    server.kubectl("label", "cm", "tagged", "a=2", "b-", "--overwrite")
    assert json.loads(value_of(server, "tagged", ".metadata.labels")) == {"a": "2"}
    server.kubectl("annotate", "cm", "-l", "a=2", "note=x y")
    server.kubectl("annotate", "cm", "tagged", "note-")
    assert value_of(server, "tagged", ".metadata.annotations") == ""
    stale = server.kubectl("label", "cm", "tagged", "c=3", "--resource-version=1", check=False)
    assert "the object has been modified" in stale


def test_delete_by_name_label_file_force_and_all(server: ServerProcess) -> None:
    server.kubectl("create", "namespace", "emptied")
    here = ("-n", "emptied")
    for name, label in (("one", "x"), ("two", "x"), ("three", "y"), ("four", "y"), ("five", "y")):
        server.kubectl("apply", *here, "-f", "-", stdin=manifest(name, label=label))
    left = ("get", "cm", *here, "-o", "jsonpath={.items[*].metadata.name}")
    assert 'configmap "one" deleted' in server.kubectl("delete", "cm", "one", *here)
    server.kubectl("delete", "cm", "-l", "set=x", *here)
    server.kubectl("delete", *here, "-f", "-", stdin=manifest("three"))
    assert server.kubectl(*left) == "five four"
    assert "not found" in server.kubectl("delete", "cm", "one", *here, check=False)
    assert "not found" not in server.kubectl("delete", "cm", "one", *here, "--ignore-not-found")
    server.kubectl("delete", "cm", "--all", *here)
    assert server.kubectl(*left) == ""
    server.kubectl("run", "stuck", "--image=x", *here)
    server.kubectl("patch", "pod", "stuck", *here, "-p", '{"metadata":{"finalizers":["example.com/f"]}}')
    assert "timed out" in server.kubectl("delete", "pod", "stuck", *here, "--timeout=1s", check=False)
    assert "Terminating" in server.kubectl("get", "pod", "stuck", *here)
    server.kubectl(
        "patch", "pod", "stuck", *here, "--type=json", "-p", '[{"op":"remove","path":"/metadata/finalizers"}]'
    )
    server.kubectl("delete", "pod", "stuck", *here, "--grace-period=0", "--force", "--ignore-not-found")
    assert "NotFound" in server.kubectl("get", "pod", "stuck", *here, check=False)


def test_rollout_commands_that_need_no_controller(server: ServerProcess) -> None:
    server.kubectl("create", "deployment", "rolled", "--image=x")
    server.kubectl("rollout", "pause", "deploy/rolled")
    assert "already paused" in server.kubectl("rollout", "pause", "deploy/rolled", check=False)
    assert "paused" in server.kubectl("rollout", "restart", "deploy/rolled", check=False)
    server.kubectl("rollout", "resume", "deploy/rolled")
    server.kubectl("rollout", "restart", "deploy/rolled")
    restarted = ".spec.template.metadata.annotations.kubectl\\.kubernetes\\.io/restartedAt"
    assert value_of(server, "rolled", restarted, "deploy")
    assert "No rollout history" in server.kubectl("rollout", "history", "deploy/rolled")
    assert "no rollout history" in server.kubectl("rollout", "undo", "deploy/rolled", check=False)


def test_a_write_that_is_not_valid_names_the_field(server: ServerProcess) -> None:
    bad = server.kubectl("create", "configmap", "Bad_Name", check=False)
    assert "metadata.name" in bad
    assert "must consist of lower case" in bad
    server.kubectl("create", "deployment", "immutable", "--image=x")
    patch = '{"spec":{"selector":{"matchLabels":{"app":"other"}}}}'
    assert "immutable" in server.kubectl("patch", "deploy", "immutable", "-p", patch, check=False)
    negative = server.kubectl("patch", "deploy", "immutable", "-p", '{"spec":{"replicas":-1}}', check=False)
    assert "spec.replicas" in negative
    assert "greater than or equal to 0" in negative
