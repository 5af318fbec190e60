"""A configuration file of real components: its limits and settings are in effect."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.up_workload import until
from tests.kit.api_server import running_server
from tests.kit.process_nodes import keeper_pids

LEASES = "kube-node-lease"


def kedge(*words: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kedge", *map(str, words)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)


def leases(kubeconfig: Path, namespace: str) -> dict[str, int]:
    """Durations of the leases, by name."""
    done = kedge("get", "leases", "-n", namespace, "-o", "json", "--kubeconfig", kubeconfig)
    found: list[Any] = json.loads(done.stdout)["items"] if done.returncode == 0 else []
    return {each["metadata"]["name"]: each["spec"].get("leaseDurationSeconds", 0) for each in found}


def config_map(size: int) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "x" * size}})


def test_a_limit_in_the_file_is_in_effect_in_a_running_server(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("limits:\n  http_body_bytes_max: 20_000\n")
    with running_server(tmp_path / "state", "--config", str(file)) as server:
        refused = kedge("apply", "-f", "-", "--kubeconfig", server.kubeconfig, stdin=config_map(30_000))
        fine = kedge("apply", "-f", "-", "--kubeconfig", server.kubeconfig, stdin=config_map(3_000))
    assert (refused.returncode, "20000 bytes" in refused.stderr) == (1, True), refused.stderr
    assert fine.returncode == 0, fine.stderr


def test_components_take_settings_and_limits_from_one_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    with running_server(tmp_path / "state") as server:
        component = f"  kubeconfig: {server.kubeconfig}\n"
        file.write_text(
            f"scheduler:\n{component}controllers:\n{component}agent:\n{component}  state: node\n  name: from-file\n"
            "limits:\n  lease_s: 33\n  node_lease_s: 77\n"
        )
        started = [
            subprocess.Popen([sys.executable, "-m", "kedge", verb, "--config", str(file)], stderr=subprocess.DEVNULL)
            for verb in ("scheduler", "controllers", "agent")
        ]
        try:
            until(lambda: leases(server.kubeconfig, LEASES) == {"from-file": 77}, "the node's lease is the file's")
            until(lambda: len(leases(server.kubeconfig, "kube-system")) >= 2, "scheduler and controllers lead")
            assert set(leases(server.kubeconfig, "kube-system").values()) == {33}
        finally:
            for each in started:
                each.terminate()
            assert [each.wait(60) for each in started] == [0, 0, 0]
    assert (tmp_path / "node").is_dir(), "a path is relative to the file's folder"
    assert keeper_pids(tmp_path / "node") == [], "an agent without pods leaves no keeper behind"


def test_a_detached_cluster_uses_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("up:\n  state: cluster\n  listen: 127.0.0.1:0\n  nodes: 2\nlimits:\n  node_lease_s: 77\n")
    state = tmp_path / "cluster"
    try:
        done = kedge("up", "--detach", "--config", file, "--nodes", "1")
        assert done.returncode == 0, done.stderr
        assert f"with 1 nodes; state is in {state}" in done.stdout
        until(lambda: leases(state / "admin.kubeconfig", LEASES) == {"node-1": 77}, "the node's lease is the file's")
    finally:
        assert kedge("down", "--state", state).returncode == 0


def test_a_rewritten_kubeconfig_is_used_without_a_restart(tmp_path: Path) -> None:
    """As after a renewal of its certificate; here the address of the server has changed."""
    kubeconfig, file, log = tmp_path / "kubeconfig", tmp_path / "config.yaml", tmp_path / "agent.log"
    file.write_text("limits:\n  client_kubeconfig_s: 0.2\n  node_renew_s: 1\n")
    with running_server(tmp_path / "state") as server:
        kubeconfig.write_bytes(server.kubeconfig.read_bytes())
        words = ("agent", "--kubeconfig", kubeconfig, "--state", tmp_path / "node", "--name", "a", "--config", file)
        with log.open("wb") as written:
            agent = subprocess.Popen([sys.executable, "-m", "kedge", *map(str, words)], stderr=written)

        def renewed() -> str:
            path = "jsonpath={.spec.renewTime}"
            return server.kubectl("get", "lease", "a", "-n", LEASES, "-o", path, check=False)

        try:
            until(lambda: leases(kubeconfig, LEASES) == {"a": 40}, "the node has a lease")
            server.stop()
            server.start()  # on another port
            kubeconfig.write_text("clusters: [")
            until(lambda: "is not used" in log.read_text(), "half a file is not used")
            last = renewed()
            kubeconfig.write_bytes(server.kubeconfig.read_bytes())
            until(lambda: renewed() != last, "the lease is renewed at the new address")
            assert f"uses {server.url}" in log.read_text().splitlines()[-1]
        finally:
            agent.terminate()
            assert agent.wait(60) == 0
