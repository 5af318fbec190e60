"""The real kubectl against `kedge server` over HTTPS. Needs kubectl 1.28 or newer on the path."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit.api_server import ServerProcess, running_server

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, labels: {app: NAME}}
spec:
  replicas: 3
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      containers:
      - {name: main, image: "x:1", ports: [{containerPort: 80}]}
      - {name: side, image: "y:1"}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    assert shutil.which("kubectl"), (
        "these tests need kubectl 1.28 or newer on the path: install it, then run them again"
    )
    with running_server(tmp_path_factory.mktemp("kubectl") / "state") as running:
        yield running


def test_kubectl_knows_the_server_and_its_resources(server: ServerProcess) -> None:
    assert "kedge" in server.kubectl("version", "-o", "json")
    resources = server.kubectl("api-resources")
    for word in ("deploy", "rollouts", "hpa", "reservations", "selfsubjectreviews"):
        assert word in resources
    assert "apps/v1" in server.kubectl("api-versions")
    assert "kedge-admin" in server.kubectl("auth", "whoami")
    assert server.kubectl("auth", "can-i", "create", "pods").strip() == "yes"


def test_explain_describes_fields(server: ServerProcess) -> None:
    shown = server.kubectl("explain", "deployment.spec.strategy.rollingUpdate")
    assert "maxSurge" in shown
    assert "IntOrString" in shown


def test_generators_create_objects_from_protobuf_bodies(server: ServerProcess) -> None:
    assert "created" in server.kubectl("create", "deployment", "made", "--image=nginx", "--replicas=2")
    assert "created" in server.kubectl("create", "configmap", "made", "--from-literal=a=1")
    assert "created" in server.kubectl("create", "namespace", "made")
    found = json.loads(server.kubectl("get", "deployment", "made", "-o", "json"))
    assert found["spec"]["replicas"] == 2
    assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx"
    assert json.loads(server.kubectl("get", "cm", "made", "-o", "json"))["data"] == {"a": "1"}


def test_apply_diff_and_a_second_apply_agree(server: ServerProcess) -> None:
    manifest = DEPLOYMENT.replace("NAME", "applied")
    assert "created" in server.kubectl("apply", "-f", "-", stdin=manifest)
    assert "unchanged" in server.kubectl("apply", "-f", "-", stdin=manifest)
    changed = manifest.replace("x:1", "x:2").replace('      - {name: side, image: "y:1"}\n', "")
    assert "+" in server.kubectl("diff", "-f", "-", stdin=changed, check=False)
    assert "configured" in server.kubectl("apply", "-f", "-", stdin=changed)
    found = json.loads(server.kubectl("get", "deployment", "applied", "-o", "json"))
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "x:2"
    assert container["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert found["metadata"]["generation"] == 2


def test_get_prints_tables_and_every_other_form(server: ServerProcess) -> None:
    server.kubectl("create", "deployment", "shown", "--image=nginx")
    table = server.kubectl("get", "deploy", "shown", "-o", "wide")
    assert table.split()[:4] == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE"]
    assert "app=shown" in table
    assert server.kubectl("get", "deploy", "shown", "-o", "name").strip() == "deployment.apps/shown"
    assert "kind: Deployment" in server.kubectl("get", "deploy", "shown", "-o", "yaml")
    assert server.kubectl("get", "deploy", "shown", "-o", "jsonpath={.spec.replicas}") == "1"
    assert "shown" in server.kubectl("get", "deploy", "-A", "-l", "app=shown", "--show-labels")
    assert "shown" not in server.kubectl("get", "deploy", "-l", "app!=shown")
    server.kubectl("get", "deploy", "--sort-by=.metadata.name")
    assert "shown" in server.kubectl("get", "deploy", "--field-selector", "metadata.name=shown")
    assert "shown" in server.kubectl("get", "all")


def test_patches_of_every_type_are_applied(server: ServerProcess) -> None:
    server.kubectl("apply", "-f", "-", stdin=DEPLOYMENT.replace("NAME", "patched"))
    name = ("deployment", "patched")
    server.kubectl("patch", *name, "-p", '{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"z"}]}}}}')
    images = "jsonpath={.spec.template.spec.containers[*].image}"
    assert server.kubectl("get", *name, "-o", images).split() == ["x:1", "z"]
    server.kubectl("patch", *name, "--type=merge", "-p", '{"metadata":{"labels":{"a":"b"}}}')
    server.kubectl("patch", *name, "--type=json", "-p", '[{"op":"remove","path":"/metadata/labels/a"}]')
    assert "a=b" not in server.kubectl("get", *name, "--show-labels")
    assert "scaled" in server.kubectl("scale", *name, "--replicas=7")
    assert server.kubectl("get", *name, "-o", "jsonpath={.spec.replicas}") == "7"
    server.kubectl("label", *name, "color=blue")
    server.kubectl("annotate", *name, "note=x")
    assert "blue" in server.kubectl("get", *name, "--show-labels")
    server.kubectl("set", "image", "deployment/patched", "main=x:9")
    assert server.kubectl("get", *name, "-o", images).split()[0] == "x:9"
    server.kubectl("rollout", "pause", "deployment/patched")
    server.kubectl("rollout", "resume", "deployment/patched")
    server.kubectl("rollout", "restart", "deployment/patched")


def test_strict_validation_names_the_unknown_field(server: ServerProcess) -> None:
    bad = DEPLOYMENT.replace("NAME", "bad").replace("replicas: 3", "replicsa: 3")
    assert 'unknown field "spec.replicsa"' in server.kubectl("apply", "-f", "-", stdin=bad, check=False)
    assert "NotFound" in server.kubectl("get", "deployment", "bad", check=False)


def test_deleting_waits_and_dry_runs_change_nothing(server: ServerProcess) -> None:
    server.kubectl("create", "configmap", "gone")
    assert "dry run" in server.kubectl("delete", "cm", "gone", "--dry-run=server")
    assert "gone" in server.kubectl("get", "cm", "gone")
    assert "deleted" in server.kubectl("delete", "cm", "gone", "--wait")
    assert "NotFound" in server.kubectl("get", "cm", "gone", check=False)
    assert "created" in server.kubectl("create", "configmap", "gone", "--dry-run=server")
    assert "NotFound" in server.kubectl("get", "cm", "gone", check=False)


def test_edit_goes_through_the_editor(server: ServerProcess, tmp_path: Path) -> None:
    server.kubectl("create", "configmap", "edited", "--from-literal=a=1")
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i \'s/a: "1"/a: "2"/\' "$1"\n')
    editor.chmod(0o755)
    os.environ["KUBE_EDITOR"] = str(editor)
    try:
        server.kubectl("edit", "configmap", "edited")
    finally:
        del os.environ["KUBE_EDITOR"]
    assert server.kubectl("get", "cm", "edited", "-o", "jsonpath={.data.a}") == "2"


def test_the_next_start_keeps_state_certificates_and_kubeconfig(tmp_path: Path) -> None:
    with running_server(tmp_path / "state") as first:
        first.kubectl("create", "configmap", "kept", "--from-literal=a=1")
        port = first.url.rpartition(":")[2]
        before = (first.state / "ca.crt").read_text(), first.kubeconfig.read_text()
        assert first.kubeconfig.stat().st_mode & 0o777 == 0o600
        assert first.stop() == 0
        first.start(f"127.0.0.1:{port}")
        assert ((first.state / "ca.crt").read_text(), first.kubeconfig.read_text()) == before
        assert first.kubectl("get", "cm", "kept", "-o", "jsonpath={.data.a}") == "1"
        first.kill()
        first.start(f"127.0.0.1:{port}")
        assert first.kubectl("get", "cm", "kept", "-o", "jsonpath={.data.a}") == "1"
