"""Which certificates are approved by rule, and which a signer refuses even if they are approved."""

from __future__ import annotations

import pytest

from kedge.api.views import CertificateSigningRequestSpec
from kedge.api.wellknown import AGENT_HOST
from kedge.server.service.credentials.signing_rules import (
    COMPONENTS,
    NODE_CLIENT,
    NODE_SERVING,
    OWN_CLIENT,
    OWN_NODE_CLIENT,
    OWN_NODE_SERVING,
    RequestedCertificate,
    plan_approval,
    signer_problem,
)

NODE = RequestedCertificate("system:node:node-a", ("system:nodes",))
SERVING = NODE._replace(names=(AGENT_HOST,))
SCHEDULER = RequestedCertificate("system:kube-scheduler", ("kedge:schedulers",))
TOKEN, OWN = "system:bootstrap:abcdef", "system:node:node-a"
EVERY = {NODE_CLIENT, OWN_CLIENT, OWN_NODE_CLIENT, OWN_NODE_SERVING, *COMPONENTS.values()}


def spec(signer: str, username: str) -> CertificateSigningRequestSpec:
    usage = "server auth" if signer == "kubelet-serving" else "client auth"
    return CertificateSigningRequestSpec(
        signer_name=f"kubernetes.io/{signer}", usages=("digital signature", usage), username=username
    )


AGENT_CLIENT, AGENT_SERVING, CLIENT = "kube-apiserver-client-kubelet", "kubelet-serving", "kube-apiserver-client"


@pytest.mark.parametrize(
    ("signer", "username", "wanted", "exists", "right"),
    [
        (AGENT_CLIENT, TOKEN, NODE, False, NODE_CLIENT),
        (AGENT_CLIENT, OWN, NODE, True, OWN_NODE_CLIENT),
        (AGENT_SERVING, OWN, SERVING, True, OWN_NODE_SERVING),
        (AGENT_SERVING, "kedge-admin", SERVING, True, NODE_SERVING),
        (CLIENT, TOKEN, SCHEDULER, False, "schedulerclient"),
        (CLIENT, "system:kube-scheduler", SCHEDULER, False, OWN_CLIENT),
    ],
)
def test_a_request_is_approved_with_its_one_right(
    signer: str, username: str, wanted: RequestedCertificate, exists: bool, right: str
) -> None:
    assert plan_approval(spec(signer, username), wanted, {right}.__contains__, node_exists=exists) is not None
    assert plan_approval(spec(signer, username), wanted, (EVERY - {right}).__contains__, node_exists=exists) is None


@pytest.mark.parametrize(
    ("signer", "username", "wanted", "exists"),
    [
        (AGENT_CLIENT, TOKEN, NODE, True),  # the node exists
        (AGENT_CLIENT, "system:node:node-b", NODE, True),  # of another node
        (AGENT_SERVING, OWN, SERVING, False),  # there is no such node
        (AGENT_SERVING, "system:node:node-b", SERVING, True),
        (AGENT_SERVING, TOKEN, SERVING, True),
        (CLIENT, TOKEN, RequestedCertificate("ada", ()), False),
        (CLIENT, TOKEN, SCHEDULER._replace(groups=("kedge:controllers",)), False),
        (CLIENT, TOKEN, SCHEDULER._replace(groups=("kedge:schedulers", "system:nodes")), False),
        (CLIENT, TOKEN, SCHEDULER._replace(names=("10.0.0.1",)), False),
        (CLIENT, TOKEN, NODE, False),
    ],
)
def test_other_requests_wait_for_a_person(
    signer: str, username: str, wanted: RequestedCertificate, exists: bool
) -> None:
    assert plan_approval(spec(signer, username), wanted, EVERY.__contains__, node_exists=exists) is None


@pytest.mark.parametrize(
    ("signer", "wanted", "why"),
    [
        (CLIENT, RequestedCertificate("ada", ("system:masters",)), "system:masters"),
        (CLIENT, RequestedCertificate("", ()), "common name"),
        (CLIENT, RequestedCertificate("ada", (), others=("2.5.4.6",)), "2.5.4.6"),
        (AGENT_CLIENT, RequestedCertificate("ada", ("system:nodes",)), "CN=system:node:NAME"),
        (AGENT_CLIENT, NODE._replace(groups=("system:nodes", "admins")), "O=system:nodes"),
        (AGENT_CLIENT, RequestedCertificate("system:node:", ("system:nodes",)), "CN=system:node:NAME"),
        (AGENT_CLIENT, SERVING, "no host names"),
        (AGENT_SERVING, NODE, AGENT_HOST),
        (AGENT_SERVING, NODE._replace(names=("127.0.0.1",)), AGENT_HOST),
        (AGENT_SERVING, NODE._replace(names=("node-a",)), AGENT_HOST),
        (AGENT_SERVING, NODE._replace(names=("*.kedge.invalid",)), AGENT_HOST),
        (AGENT_SERVING, NODE._replace(names=(AGENT_HOST, "kedge.example")), AGENT_HOST),
    ],
)
def test_a_signer_refuses_a_subject_that_is_not_its_own(signer: str, wanted: RequestedCertificate, why: str) -> None:
    assert why in signer_problem(spec(signer, OWN), wanted)
    assert plan_approval(spec(signer, OWN), wanted, EVERY.__contains__, node_exists=True) is None


def test_a_signer_refuses_other_uses_of_the_key() -> None:
    for usages in (("digital signature",), ("client auth", "server auth"), ("server auth",)):
        wrong = CertificateSigningRequestSpec(signer_name=f"kubernetes.io/{AGENT_CLIENT}", usages=usages)
        assert "usages" in signer_problem(wrong, NODE)
