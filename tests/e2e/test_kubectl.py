"""The real kubectl against `kedge server` over HTTPS. Needs kubectl 1.28 or newer on the path."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
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


def test_nodes_are_tainted_cordoned_and_drained(server: ServerProcess) -> None:
    server.kubectl("create", "-f", "-", stdin="apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n")
    taints = ("get", "node", "node-1", "-o", "jsonpath={.spec.taints}")
    server.kubectl("taint", "nodes", "node-1", "dedicated=a:NoSchedule")
    assert json.loads(server.kubectl(*taints)) == [{"effect": "NoSchedule", "key": "dedicated", "value": "a"}]
    assert "already has" in server.kubectl("taint", "nodes", "node-1", "dedicated=b:NoSchedule", check=False)
    server.kubectl("taint", "nodes", "node-1", "dedicated=b:NoSchedule", "--overwrite")
    assert json.loads(server.kubectl(*taints))[0]["value"] == "b"
    server.kubectl("taint", "nodes", "node-1", "dedicated:NoSchedule-")
    assert server.kubectl(*taints) == ""
    server.kubectl("cordon", "node-1")
    assert "SchedulingDisabled" in server.kubectl("get", "nodes")
    server.kubectl("uncordon", "node-1")
    assert "SchedulingDisabled" not in server.kubectl("get", "nodes")
    assert "drained" in server.kubectl("drain", "node-1", "--ignore-daemonsets")
    server.kubectl("uncordon", "node-1")
    for name, way in (("evicted", ()), ("deleted", ("--disable-eviction",))):
        spec = {"nodeName": "node-1", "containers": [{"name": "main", "image": "x", "command": ["sleep", "1"]}]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        server.kubectl("create", "-f", "-", stdin=json.dumps(body))
        drain = ("drain", "node-1", "--force", "--grace-period=0", *way)
        if not way:  # kubectl waits for the end of a deletion that it only tried
            server.kubectl(*drain, "--dry-run=server")
            assert name in server.kubectl("get", "pods", "-o", "name")
        assert "drained" in server.kubectl(*drain)
        assert name not in server.kubectl("get", "pods", "-o", "name")


def test_wait_sees_values_conditions_and_deletions(server: ServerProcess) -> None:
    server.kubectl("create", "configmap", "awaited", "--from-literal=a=1")
    assert "condition met" in server.kubectl("wait", "cm/awaited", "--for=jsonpath={.data.a}=1", "--timeout=20s")
    late = server.kubectl("wait", "cm/awaited", "--for=jsonpath={.data.a}=2", "--timeout=1s", check=False)
    assert "timed out" in late
    server.kubectl("create", "deployment", "awaited", "--image=x")
    condition = '{"status":{"conditions":[{"type":"Available","status":"True"}]}}'
    available = ("wait", "deploy/awaited", "--for=condition=Available", "--timeout=20s")
    with server.started("kubectl", *available) as waiting:
        server.kubectl("patch", "deploy", "awaited", "--subresource=status", "--type=merge", "-p", condition)
        assert waiting.wait(30) == 0
    with server.started("kubectl", "wait", "cm/awaited", "--for=delete", "--timeout=20s") as waiting:
        server.kubectl("delete", "cm", "awaited")
        assert waiting.wait(30) == 0


def test_get_watch_prints_each_change(server: ServerProcess, tmp_path: Path) -> None:
    server.kubectl("create", "configmap", "followed", "--from-literal=a=1")
    shown = tmp_path / "watch"
    selector = "--field-selector=metadata.name=followed"
    with shown.open("wb") as output:
        command = ("kubectl", "get", "cm", selector, "-w", "--output-watch-events")
        with server.started(*command, stdout=output) as watching:
            wait_until(lambda: "ADDED" in shown.read_text())
            server.kubectl("patch", "cm", "followed", "-p", '{"data":{"b":"2"}}')
            server.kubectl("delete", "cm", "followed")
            wait_until(lambda: "DELETED" in shown.read_text())
            watching.terminate()
    rows = [line.split()[:3] for line in shown.read_text().splitlines()]
    assert rows[0] == ["EVENT", "NAME", "DATA"]
    assert rows[1:] == [["ADDED", "followed", "1"], ["MODIFIED", "followed", "2"], ["DELETED", "followed", "2"]]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_replace_is_refused_when_it_is_stale(server: ServerProcess) -> None:
    server.kubectl("create", "configmap", "replaced", "--from-literal=a=1")
    old = server.kubectl("get", "cm", "replaced", "-o", "json")
    assert "replaced" in server.kubectl("replace", "-f", "-", stdin=old.replace('"a": "1"', '"a": "2"'))
    assert "Conflict" in server.kubectl("replace", "-f", "-", stdin=old, check=False)
    assert "replaced" in server.kubectl("replace", "--force", "-f", "-", stdin=old)
    assert server.kubectl("get", "cm", "replaced", "-o", "jsonpath={.data.a}") == "1"


def test_delete_passes_its_propagation_on(server: ServerProcess) -> None:
    """Without a garbage collector the finalizers of foreground and orphan stay, and show what was asked for."""
    finalizers = ("-o", "jsonpath={.metadata.finalizers[0]}")
    for policy, finalizer in (("foreground", "foregroundDeletion"), ("orphan", "orphan")):
        server.kubectl("create", "deployment", policy, "--image=x")
        server.kubectl("delete", "deployment", policy, f"--cascade={policy}", "--wait=false")
        assert server.kubectl("get", "deployment", policy, *finalizers) == finalizer
    server.kubectl("create", "deployment", "background", "--image=x")
    server.kubectl("delete", "deployment", "background", "--cascade=background")
    assert "NotFound" in server.kubectl("get", "deployment", "background", check=False)


def test_a_list_is_applied_item_by_item(server: ServerProcess) -> None:
    """kubectl checks a `List` with OpenAPI v2 as protobuf, before it sends the items."""
    for name in ("listed-1", "listed-2"):
        server.kubectl("create", "configmap", name)
    shown = server.kubectl("get", "cm", "listed-1", "listed-2", "-o", "yaml")
    assert "kind: List" in shown
    server.kubectl("delete", "cm", "listed-1")
    assert "configmap/listed-1 created" in server.kubectl("apply", "-f", "-", stdin=shown)
    bad = shown.replace("kind: ConfigMap", "kind: ConfigMap\n  dat: {}")
    assert 'unknown field "dat"' in server.kubectl("apply", "-f", "-", stdin=bad, check=False)


def test_autoscale_sends_an_older_version_of_the_kind(server: ServerProcess) -> None:
    server.kubectl("create", "deployment", "scaled", "--image=x")
    assert "autoscaled" in server.kubectl("autoscale", "deployment", "scaled", "--max=3", "--cpu-percent=50")
    assert "50%" in server.kubectl("describe", "hpa", "scaled")
    assert "Deployment/scaled" in server.kubectl("get", "hpa")


def test_describe_shows_events(server: ServerProcess) -> None:
    server.kubectl("create", "configmap", "described")
    about = json.loads(server.kubectl("get", "cm", "described", "-o", "json"))["metadata"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "described-"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "described",
            "namespace": "default",
            "uid": about["uid"],
        },
        "reason": "Seen",
        "message": "it is here",
        "type": "Normal",
        "count": 2,
    }
    server.kubectl("create", "-f", "-", stdin=json.dumps(event))
    assert "it is here" in server.kubectl("describe", "cm", "described")
    assert "it is here" in server.kubectl("events", "--for", "configmap/described")
    assert "Seen" in server.kubectl("get", "events", "--field-selector", "involvedObject.name=described")


def test_events_of_the_newer_group_are_the_same_objects(server: ServerProcess) -> None:
    server.kubectl("create", "configmap", "noted")
    uid = server.kubectl("get", "cm", "noted", "-o", "jsonpath={.metadata.uid}")
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "noted-1"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "example.com/tests",
        "reportingInstance": "tests-1",
        "action": "Look",
        "reason": "Noted",
        "type": "Warning",
        "note": "seen by the newer group",
        "regarding": {"apiVersion": "v1", "kind": "ConfigMap", "name": "noted", "namespace": "default", "uid": uid},
    }
    server.kubectl("create", "-f", "-", stdin=json.dumps(event))
    assert "seen by the newer group" in server.kubectl("events", "--for", "configmap/noted")
    assert "seen by the newer group" in server.kubectl("describe", "cm", "noted")
    newer = ("get", "events.events.k8s.io")
    assert "configmap/noted" in server.kubectl(*newer, "--field-selector", "regarding.name=noted")
    assert server.kubectl(*newer, "noted-1", "-o", "jsonpath={.note}") == event["note"]
    server.kubectl("label", "events.events.k8s.io", "noted-1", "a=b")
    assert server.kubectl("get", "event", "noted-1", "-o", "jsonpath={.metadata.labels.a}") == "b"
    assert "reportingController" in server.kubectl("explain", "events", "--api-version=events.k8s.io/v1")


def test_requests_as_another_user_have_that_users_rights(server: ServerProcess) -> None:
    assert server.kubectl("auth", "can-i", "*", "*").strip() == "yes"
    assert "[*]" in server.kubectl("auth", "can-i", "--list")
    assert server.kubectl("auth", "can-i", "get", "pods", "--as=someone", check=False).strip() == "no"
    assert "Forbidden" in server.kubectl("get", "pods", "--as=someone", check=False)
    assert "someone" in server.kubectl("auth", "whoami", "--as=someone")
    scheduler = ("--as=scheduler", "--as-group=kedge:schedulers")
    assert server.kubectl("auth", "can-i", "patch", "pods", "--subresource=status", *scheduler).strip() == "yes"
    assert server.kubectl("auth", "can-i", "delete", "pods", *scheduler, check=False).strip() == "no"
    monitoring = ("--as=prometheus", "--as-group=kedge:metrics")
    assert server.kubectl("auth", "can-i", "get", "/metrics", *monitoring).strip() == "yes"
    assert server.kubectl("auth", "can-i", "get", "/metrics", "--as=someone", check=False).strip() == "no"
    assert "Forbidden" in server.kubectl("get", "--raw", "/metrics", "--as=someone", check=False)
    listed = server.kubectl("auth", "can-i", "--list", *scheduler)
    assert re.search(r"pods/status +\[\] +\[\] +\[patch\]", listed)
    assert "selfsubjectreviews" in server.kubectl("auth", "can-i", "--list", "--as=someone")
    assert "kedge-admin" in server.kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")


@pytest.mark.parametrize(
    "arguments",
    [
        ("job", "made", "--image=x", "--", "true"),
        ("secret", "generic", "made", "--from-literal=a=b"),
        ("service", "clusterip", "made", "--tcp=80:80"),
        ("quota", "made", "--hard=pods=300"),
        ("poddisruptionbudget", "made", "--selector=a=b", "--min-available=1"),
        ("priorityclass", "made", "--value=10"),
    ],
)
def test_create_has_a_generator_for(server: ServerProcess, arguments: tuple[str, ...]) -> None:
    assert "created" in server.kubectl("create", *arguments)
    assert server.kubectl("get", arguments[0], "made", "-o", "jsonpath={.metadata.name}") == "made"


def test_commands_that_cannot_be_served_are_refused_with_a_reason(server: ServerProcess) -> None:
    server.kubectl("run", "lonely", "--image=x")
    assert "is not scheduled yet" in server.kubectl("exec", "lonely", "--", "true", check=False)
    assert "is waiting to start: ContainerCreating" in server.kubectl("logs", "lonely", check=False)
    assert "ephemeral containers are disabled" in server.kubectl("debug", "lonely", "--image=x", check=False)
    assert "could not find" in server.kubectl("create", "ingress", "a", "--rule=a/b=c:80", check=False)


def test_a_new_pod_has_warnings_that_images_are_labels_and_a_command_is_needed(server: ServerProcess) -> None:
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "unrunnable"}}
    spec = {"containers": [{"name": "web", "image": "nginx"}]}
    printed = server.kubectl("create", "-f", "-", stdin=json.dumps({**body, "spec": spec}), check=False)
    assert "pod/unrunnable created" in printed
    assert "an image is only a label, and there is no pod network" in printed
    assert "container web has no command" in printed
    server.kubectl("delete", "pod", "unrunnable", "--grace-period=0", "--force", check=False)


def test_the_server_on_uvloop_serves_watches_and_drains(tmp_path: Path) -> None:
    with running_server(tmp_path / "state", "--event-loop", "uvloop") as server:
        server.kubectl("apply", "-f", "-", stdin=DEPLOYMENT.replace("NAME", "fast"))
        server.kubectl("scale", "deployment", "fast", "--replicas=2")
        assert server.kubectl("get", "deploy", "fast", "-o", "jsonpath={.spec.replicas}") == "2"
        command = ["kubectl", "get", "deployments", "-w", "-o", "name"]
        with subprocess.Popen(command, env=server.client_environment, stdout=subprocess.PIPE, text=True) as watch:
            try:
                assert watch.stdout is not None
                assert watch.stdout.readline().strip() == "deployment.apps/fast"
                server.kubectl("scale", "deployment", "fast", "--replicas=3")
                assert watch.stdout.readline().strip() == "deployment.apps/fast"
            finally:
                watch.kill()
        assert server.stop() == 0
