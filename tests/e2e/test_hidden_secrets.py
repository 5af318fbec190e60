"""A planted Secret is in nothing that a cluster run writes: store, decision log, log lines, metrics, events."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.up_workload import LocalUp, down_nodes, until
from tests.kit.encryption import PLANTED, files_with, forms_of, write_keys

MANIFEST = f"""
apiVersion: v1
kind: ConfigMap
metadata: {{name: owner, namespace: apart}}
---
apiVersion: v1
kind: Secret
metadata: {{name: planted, namespace: apart}}
stringData: {{password: {PLANTED}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: reader, namespace: apart}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: label-only
    command: [sh, -c, "exec sleep 100000"]
    env: [{{name: PASSWORD, valueFrom: {{secretKeyRef: {{name: planted, key: password}}}}}}]
    volumeMounts: [{{name: files, mountPath: /tmp/planted}}]
  volumes: [{{name: files, secret: {{secretName: planted}}}}]
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalUp]:
    keys = write_keys(tmp_path / "keys.yaml", "key-1")
    options = ("--nodes", "1", "--encryption-keys", str(keys), "--log-level", "debug")
    running = LocalUp(tmp_path / "state", *options)
    running.start()
    try:
        yield running
    finally:
        running.end()
        down_nodes(running)


def shown(cluster: LocalUp) -> str:
    """Everything that the cluster shows about itself, but the Secret to a reader of Secrets."""
    pages = [
        cluster.kubectl("get", "--raw", path) for path in ("/metrics", "/kedge/debug/queues", "/kedge/debug/caches")
    ]
    events = cluster.kubectl("get", "events", "-A", "-o", "json")
    why = cluster.kedge("why", "pod/reader", "-n", "apart", "--state", str(cluster.state))
    return "\n".join([*pages, events, why, cluster.log])


def test_a_planted_secret_is_in_nothing_that_a_cluster_writes(cluster: LocalUp, tmp_path: Path) -> None:
    until(lambda: cluster.kubectl("get", "nodes").count(" Ready") == 1, "the node is ready")
    cluster.kubectl("create", "namespace", "apart")
    cluster.kubectl("apply", "-f", "-", stdin=MANIFEST)
    cluster.kubectl("wait", "pod/reader", "-n", "apart", "--for=condition=Ready", "--timeout=90s", timeout_s=100)
    wrong = json.dumps({"data": {"password": f"{PLANTED}!"}})
    refused = cluster.kubectl("patch", "secret", "planted", "-n", "apart", "-p", wrong, check=False)
    assert "must be base64" in refused
    assert PLANTED not in refused
    # Nodes have it while the pod runs: that is how its processes get it.
    assert not files_with(tmp_path, PLANTED, apart_from=["/state/nodes/"])
    assert not any(form.decode() in shown(cluster) for form in forms_of(PLANTED))
    cluster.kubectl("delete", "pod", "reader", "-n", "apart", "--timeout=60s", timeout_s=90)
    # The garbage collector and the namespace's deletion read and delete Secrets, and record both.
    uid = json.loads(cluster.kubectl("get", "configmap", "owner", "-n", "apart", "-o", "json"))["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    owned = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "owned", "namespace": "apart", "ownerReferences": [owner]},
        "data": {"password": base64.b64encode(PLANTED.encode()).decode()},
    }
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(owned))
    cluster.kubectl("delete", "configmap", "owner", "-n", "apart")
    until(lambda: "owned" not in cluster.kubectl("get", "secrets", "-n", "apart"), "the owned Secret is collected")
    cluster.kubectl("delete", "namespace", "apart", "--timeout=90s", timeout_s=100)
    assert cluster.stop() == 0
    recorded = [path for path in (cluster.state / "decisions").rglob("*") if path.is_file()]
    assert any(b"owned" in path.read_bytes() for path in recorded), "the run recorded decisions about Secrets"
    assert not files_with(tmp_path, PLANTED)
