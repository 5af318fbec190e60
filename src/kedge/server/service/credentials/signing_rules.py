"""Rules about certificates: which requests a signer can sign, and which are approved without a person. Pure.

An agent or component that joins has a bootstrap token with the right for its one identity; later it renews its own
certificate. Serving certificates name the agent's node in their subject, and have no host name of any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from kedge.api.access import CONTROLLERS, CONTROLLERS_USER, MASTERS, NODES, SCHEDULER_USER, SCHEDULERS
from kedge.api.names import subdomain_problem
from kedge.api.views import CertificateSigningRequestSpec
from kedge.api.wellknown import AGENT_CLIENT_SIGNER, AGENT_HOST, AGENT_SERVING_SIGNER, CLIENT_SIGNER
from kedge.keys import NODE_USER_PREFIX

SIGNERS: Final = (AGENT_CLIENT_SIGNER, AGENT_SERVING_SIGNER, CLIENT_SIGNER)
"""The signers of this server. Requests for others are left to the programs that they name."""
COMPONENTS: Final[dict[tuple[str, tuple[str, ...]], str]] = {
    (SCHEDULER_USER, (SCHEDULERS,)): "schedulerclient",
    (CONTROLLERS_USER, (CONTROLLERS,)): "controllersclient",
}
"""The identities of components, and the right to request each."""
NODE_CLIENT, OWN_NODE_CLIENT, NODE_SERVING, OWN_NODE_SERVING, OWN_CLIENT = (
    "nodeclient", "selfnodeclient", "nodeserver", "selfnodeserver", "selfclient",
)  # fmt: skip
"""Rights to approval, as subresources of certificatesigningrequests that a role allows the verb `create` on."""
RIGHTS: Final = (NODE_CLIENT, OWN_NODE_CLIENT, NODE_SERVING, OWN_NODE_SERVING, OWN_CLIENT, *COMPONENTS.values())
_KEY_USAGES: Final = frozenset({"digital signature", "key encipherment"})


class RequestedCertificate(NamedTuple):
    """The parts of a certificate that the caller chooses."""

    user: str
    groups: tuple[str, ...]
    names: tuple[str, ...] = ()
    """Host names and addresses."""
    others: tuple[str, ...] = ()
    """Parts that no signer here signs: other names, other parts of the subject."""


class CertificateSigner(Protocol):
    """Reads requests and signs them with the key of the authority."""

    def read(self, pem: bytes) -> RequestedCertificate:
        """Raises `ValueError` for a text that is no request, or whose own signature is wrong."""

    def sign(self, pem: bytes, usages: Sequence[str], valid_s: float) -> bytes:
        """The certificate, as PEM. It is valid from now on, and not longer than the authority."""


class Approval(NamedTuple):
    """A request is approved."""

    reason: str
    message: str


def signer_problem(spec: CertificateSigningRequestSpec, wanted: RequestedCertificate) -> str:
    """Why a signer does not sign a request, even if it is approved; empty if it does."""
    if wanted.others:
        return f"it has {', '.join(wanted.others)}: leave them out"
    if MASTERS in wanted.groups:
        return f"no certificate is signed for the group {MASTERS}: use admin.kubeconfig of the server"
    usage = "server auth" if spec.signer_name == AGENT_SERVING_SIGNER else "client auth"
    if usage not in spec.usages or not set(spec.usages) <= {*_KEY_USAGES, usage}:
        return f"its usages must be {usage!r}, and may be 'digital signature' and 'key encipherment'"
    if not wanted.user:
        return "its subject has no common name, which is the user"
    if spec.signer_name == CLIENT_SIGNER:
        return ""
    if wanted.groups != (NODES,) or subdomain_problem(_node(wanted)):
        return f"its subject must be O={NODES}, CN={NODE_USER_PREFIX}NAME"
    if spec.signer_name == AGENT_CLIENT_SIGNER and wanted.names:
        return "a client certificate has no host names: leave them out"
    if spec.signer_name == AGENT_SERVING_SIGNER and wanted.names != (AGENT_HOST,):
        # With an address or a name of an API server, the agent could pass for that server.
        return f"the only name of a serving certificate must be {AGENT_HOST}"
    return ""


def node_to_read(spec: CertificateSigningRequestSpec, wanted: RequestedCertificate) -> str:
    """The node whose existence decides about a request; empty if none does."""
    return _node(wanted) if spec.signer_name in (AGENT_CLIENT_SIGNER, AGENT_SERVING_SIGNER) else ""


def plan_approval(
    spec: CertificateSigningRequestSpec,
    wanted: RequestedCertificate,
    allows: Callable[[str], bool],
    *,
    node_exists: bool,
) -> Approval | None:
    """Whether a request is approved without a person; None leaves it to one.

    `node_exists` is about the node that it names. `allows` is whether the user that made the request has a right to
    approval.
    """
    if signer_problem(spec, wanted):
        return None
    own = spec.username == wanted.user
    match spec.signer_name:
        case signer if signer == AGENT_SERVING_SIGNER:
            if not node_exists:
                return None
            if own and allows(OWN_NODE_SERVING):
                return Approval("OwnNode", "an agent serves for its own node")
            # An agent with the kubeconfig of an administrator requests as that user.
            if allows(NODE_SERVING):
                return Approval("AnyNode", "its user may ask for the certificate of any node")
        case signer if signer == AGENT_CLIENT_SIGNER:
            if own and allows(OWN_NODE_CLIENT):
                return Approval("Renewal", "an agent renews its own certificate")
            # A stolen token adds nodes. It must not become a node that exists, with the Secrets of its pods.
            if not own and not node_exists and allows(NODE_CLIENT):
                return Approval("Joined", "an agent joins with a token")
        case _:
            right = COMPONENTS.get((wanted.user, wanted.groups))
            if right is None or wanted.names:
                return None
            if own and allows(OWN_CLIENT):
                return Approval("Renewal", "a component renews its own certificate")
            if not own and allows(right):
                return Approval("Joined", "a component joins with a token")
    return None


def _node(wanted: RequestedCertificate) -> str:
    return wanted.user.removeprefix(NODE_USER_PREFIX) if wanted.user.startswith(NODE_USER_PREFIX) else ""
