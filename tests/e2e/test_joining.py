"""Components join a server with tokens and work under their own certificates, which renew themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.up_workload import down_nodes, until
from tests.kit.api_server import ServerProcess, running_server
from tests.kit.token_command import token_command

from kedge.cli.membership.certificates import KeptIdentity

LIMITS = "limits: {certificate_s_max: 20, certificate_check_s: 0.5, client_kubeconfig_s: 0.5}\n"
"""Certificates of 20 seconds are renewed after 14 to 18."""


def state_of(server: ServerProcess, verb: str) -> Path:
    return server.state / "nodes" / verb  # where `kedge down` looks for processes of pods


@contextmanager
def component(folder: Path, server: ServerProcess, verb: str, token: str, *options: str) -> Iterator[Path]:
    """A component that joins; yields its log."""
    log = folder / f"{verb}.log"
    state = state_of(server, verb)
    command = [sys.executable, "-m", "kedge", verb, "--join", server.url, "--state", str(state)]
    with log.open("ab") as output:
        process = subprocess.Popen([*command, "--token", token, *options], stdout=output, stderr=output)
    try:
        yield log
    finally:
        process.terminate()
        process.wait(30)


def test_agent_scheduler_and_controllers_join_run_a_pod_and_renew(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(LIMITS)
    options = ("--config", str(config))
    with running_server(tmp_path / "state", *options) as server:
        tokens = {each: token_command(server, "create", "--for", each).strip() for each in ("scheduler", "controllers")}
        tokens["agent"] = token_command(server, "create").strip()
        listed = token_command(server, "list")
        assert "system:bootstrappers:kedge:scheduler" in listed
        with (
            component(tmp_path, server, "scheduler", tokens["scheduler"], *options),
            component(tmp_path, server, "controllers", tokens["controllers"], *options),
            component(tmp_path, server, "agent", tokens["agent"], "--name", "node-x", *options) as log,
        ):
            until(lambda: " Ready" in server.kubectl("get", "node", "node-x", check=False), "node-x is ready")
            assert "Approved,Issued" in server.kubectl("get", "csr")
            body = {
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
                "spec": {"containers": [{"name": "c", "image": "x", "command": ["sh", "-c", "echo hello; sleep 600"]}],
                         "terminationGracePeriodSeconds": 0},
            }  # fmt: skip
            server.kubectl("create", "-f", "-", stdin=json.dumps(body))
            until(lambda: "Running" in server.kubectl("get", "pod", "p"), "the pod runs")
            until(lambda: "hello" in server.kubectl("logs", "p", check=False), "its log is served")
            for each in tokens.values():  # tokens are not needed any more
                token_command(server, "delete", each.rpartition(":")[2].partition(".")[0])
            kept = {
                verb: KeptIdentity.read(state_of(server, verb) / f"{verb}.kubeconfig")
                for verb in ("agent", "scheduler", "controllers")
            }
            assert {each.user for each in kept.values() if each is not None} == {
                "system:node:node-x", "system:kube-scheduler", "system:kube-controller-manager",
            }  # fmt: skip
            for verb, first in kept.items():
                assert first is not None
                path = state_of(server, verb) / f"{verb}.kubeconfig"

                def renewed(path: Path = path, ends: object = first.ends) -> bool:
                    found = KeptIdentity.read(path)
                    return found is not None and found.ends != ends

                until(renewed, f"the certificate of {verb} is renewed", within_s=90)
            until(lambda: "has changed: uses" in log.read_text(), "the agent uses the renewed one")
            server.kubectl("delete", "pod", "p", timeout_s=90)
            assert " Ready" in server.kubectl("get", "node", "node-x")
        down_nodes(server)
