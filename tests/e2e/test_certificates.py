"""Certificate signing requests and bootstrap tokens with the real kubectl, over HTTPS."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from tests.kit.api_server import running_server
from tests.kit.certificates import request_pem, signing_request


def test_kubectl_lists_approves_and_denies_signing_requests(tmp_path: Path) -> None:
    with running_server(tmp_path / "state") as server:
        for name in ("ada", "bob"):
            body = signing_request(name, request_pem(name, ["people"]), "kube-apiserver-client", expirationSeconds=3600)
            server.kubectl("create", "-f", "-", stdin=json.dumps(body))
        listed = server.kubectl("get", "csr")
        assert "kedge-admin" in listed
        assert "Pending" in listed
        server.kubectl("certificate", "approve", "ada")
        server.kubectl("certificate", "deny", "bob")
        listed = server.kubectl("get", "csr")
        assert "60m" in listed
        assert "Approved,Issued" in listed
        assert "Denied" in listed
        certificate = server.kubectl("get", "csr", "ada", "-o", "jsonpath={.status.certificate}")
        assert b"BEGIN CERTIFICATE" in base64.b64decode(certificate)
        assert "signerName" in server.kubectl("explain", "csr.spec")


def test_a_bootstrap_token_that_kubectl_made_is_hashed_and_joins_nothing_but_its_group(tmp_path: Path) -> None:
    with running_server(tmp_path / "state") as server:
        given = {
            "token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:kedge:agent",
        }  # fmt: skip
        server.kubectl(
            "create", "secret", "generic", "bootstrap-token-abcdef", "-n", "kube-system",
            "--type", "bootstrap.kubernetes.io/token", *(f"--from-literal={key}={text}" for key, text in given.items()),
        )  # fmt: skip
        stored = json.loads(
            server.kubectl("get", "secret", "-n", "kube-system", "bootstrap-token-abcdef", "-o", "json")
        )
        assert "token-secret" not in stored["data"]
        bare = tmp_path / "bare.kubeconfig"
        bare.write_text("")
        by_token = (
            "--kubeconfig", str(bare), "--server", server.url, "--certificate-authority", str(server.state / "ca.crt"),
            "--token", "abcdef.0123456789abcdef",
        )  # fmt: skip
        shown = server.kubectl("auth", "whoami", *by_token)
        assert "system:bootstrap:abcdef" in shown
        assert "system:bootstrappers:kedge:agent" in shown
        assert "forbidden" in server.kubectl("get", "pods", *by_token, check=False)
        body = signing_request("node-x", request_pem("system:node:node-x", ["system:nodes"]))
        server.kubectl("create", "-f", "-", *by_token, stdin=json.dumps(body))
        assert "Approved,Issued" in server.kubectl("get", "csr", "node-x")
