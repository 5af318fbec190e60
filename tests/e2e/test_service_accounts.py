"""Tokens of ServiceAccounts as their users meet them: kubectl, and an unmodified client inside a pod."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.e2e.up_workload import UpProcess, running_up, until
from tests.kit.api_server import ServerProcess, running_server
from tests.tools import KUBECTL_STREAMS, need_kubectl

from kedge.agent.process import mounts

PROGRAM = """
import sys, time
from kubernetes import client, config
config.load_incluster_config()
api = client.AuthenticationV1Api()
while True:
    found = api.create_self_subject_review(client.V1SelfSubjectReview())
    print("I am", found.status.user_info.username, found.status.user_info.groups, flush=True)
    time.sleep(0.5)
"""


def pod(name: str, program: str, **spec: object) -> str:
    container = {"name": "main", "image": "x", "command": [sys.executable, "-c", program]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    return json.dumps({**body, "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}})


def wait_for_log(up: ServerProcess, name: str, text: str) -> str:
    until(lambda: text in up.kubectl("logs", name, check=False), f"{text!r} is in the log of {name}")
    return up.kubectl("logs", name)


def test_kubectl_makes_accounts_and_tokens_and_a_token_is_the_account_and_may_do_nothing(tmp_path: Path) -> None:
    with running_server(tmp_path / "state") as server:
        server.kubectl("create", "namespace", "team-a")
        assert "default" in server.kubectl("get", "serviceaccounts", "-n", "team-a")
        uid = ("get", "sa", "default", "-n", "team-a", "-o", "jsonpath={.metadata.uid}", "--ignore-not-found")
        before = server.kubectl(*uid)
        server.kubectl("delete", "serviceaccount", "default", "-n", "team-a")
        until(lambda: server.kubectl(*uid) not in ("", before), "the default account is made again")
        server.kubectl("create", "serviceaccount", "builder")
        token = server.kubectl("create", "token", "builder", "--duration", "20m").strip()
        shown = server.whoami(token)
        assert "system:serviceaccount:default:builder" in shown
        assert "system:serviceaccounts:default" in shown
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        reviewed = server.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review))
        status = json.loads(reviewed)["status"]
        assert status["authenticated"]
        assert status["user"]["username"] == "system:serviceaccount:default:builder"
        plain = ("--server", server.url, "--certificate-authority", str(server.state / "ca.crt"), "--token", token)
        bare = ("--kubeconfig", str(server.state / "bare.kubeconfig"), *plain)
        assert "cannot list resource" in server.kubectl("get", "pods", *bare, check=False)
        assert "no" in server.kubectl("auth", "can-i", "list", "pods", *bare, check=False)
        assert "less than" in server.kubectl("create", "token", "builder", "--duration", "1s", check=False)
        assert "not found" in server.kubectl("create", "token", "nobody", check=False)
        server.kubectl("delete", "serviceaccount", "builder")
        assert "Unauthorized" in server.whoami(token) or "is gone" in server.whoami(token)
        stopped = server.stop()
        assert stopped == 0
        server.start()  # the key is kept
        again = server.kubectl("create", "token", "default").strip()
        assert "system:serviceaccount:default:default" in server.whoami(again)


@pytest.mark.skipif(not mounts.are_possible(), reason="without mounts no file can be at the path of the client")
def test_an_unmodified_client_in_a_pod_has_its_identity_until_its_pod_is_deleted(tmp_path: Path) -> None:
    need_kubectl(KUBECTL_STREAMS)
    with running_up(UpProcess(tmp_path / "state", "--nodes", "1")) as up:
        up.kubectl("create", "-f", "-", stdin=pod("client", PROGRAM))
        shown = wait_for_log(up, "client", "I am")
        assert "I am system:serviceaccount:default:default" in shown
        assert "system:serviceaccounts:default" in shown
        token = up.kubectl("exec", "client", "--", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token").strip()
        assert "system:serviceaccount:default:default" in up.whoami(token)
        up.kubectl("delete", "pod", "client")
        assert "system:serviceaccount" not in up.whoami(token)
        looks = "import os; print('there is', sorted(os.listdir('/var/run')), flush=True); import time; time.sleep(600)"
        up.kubectl("create", "-f", "-", stdin=pod("plain", looks, automountServiceAccountToken=False))
        assert "secrets" not in wait_for_log(up, "plain", "there is") or Path("/var/run/secrets").exists()
