"""Certificates of a component: requested with a new key, and kept as a kubeconfig in its state folder."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ipaddress
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kedge.api.access import CONTROLLERS, CONTROLLERS_USER, NODES, SCHEDULER_USER, SCHEDULERS
from kedge.api.wellknown import AGENT_CLIENT_SIGNER, CLIENT_SIGNER, SIGNING_REQUEST_KIND
from kedge.client.contract import Client
from kedge.errors import AlreadyExists, NotFound, Terminal
from kedge.keys import NODE_USER_PREFIX, Key
from kedge.server.http.certificates import CLOCK_SKEW, Certificate, kubeconfig, write_private

_POLL_S: Final = 2.0


class ComponentIdentity(NamedTuple):
    """The user that a component is, and the signer of its certificate."""

    component: str
    user: str
    group: str
    signer: str = CLIENT_SIGNER


SCHEDULER: Final = ComponentIdentity("scheduler", SCHEDULER_USER, SCHEDULERS)
CONTROLLERS_IDENTITY: Final = ComponentIdentity("controllers", CONTROLLERS_USER, CONTROLLERS)


def agent_identity(node: str) -> ComponentIdentity:
    return ComponentIdentity("agent", f"{NODE_USER_PREFIX}{node}", NODES, AGENT_CLIENT_SIGNER)


async def request_certificate(
    client: Client,
    identity: ComponentIdentity,
    notify: Callable[[str], None],
    *,
    signer: str = "",
    usage: str = "client auth",
    names: Sequence[str] = (),
) -> Certificate:
    """A certificate for a new key. Waits until the request is approved.

    Raises:
        Terminal: it was denied, or cannot be signed.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    body = _request_body(key, identity, signer or identity.signer, usage, names)
    kind = client.kinds.of_key_kind(SIGNING_REQUEST_KIND)
    name = body["metadata"]["name"]
    notified = False
    while True:
        try:
            found = (await client.create(kind, body)).object
        except AlreadyExists:
            found = await client.get(Key(SIGNING_REQUEST_KIND, "", name))
        try:
            while True:
                certificate = _signed(found.edit())
                if certificate is not None:
                    return Certificate(certificate, key)
                if not notified:
                    notified = True
                    notify(f"waits for approval of its certificate: kubectl certificate approve {name}")
                await asyncio.sleep(_POLL_S)
                found = await client.get(found.key)
        except NotFound:
            continue  # it waited for too long, and is made again


def certificate_request(key: ec.EllipticCurvePrivateKey, identity: ComponentIdentity, names: Sequence[str]) -> bytes:
    """A request for a certificate of this identity, as PEM; of a serving certificate with its host names."""
    subject = x509.Name([
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, identity.group),
        x509.NameAttribute(NameOID.COMMON_NAME, identity.user),
    ])  # fmt: skip
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if names:
        listed = x509.SubjectAlternativeName([_general_name(each) for each in names])
        builder = builder.add_extension(listed, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _request_body(
    key: ec.EllipticCurvePrivateKey, identity: ComponentIdentity, signer: str, usage: str, names: Sequence[str]
) -> dict[str, Any]:
    pem = certificate_request(key, identity, names)
    return {
        "metadata": {"name": f"{identity.component}-{hashlib.sha256(pem).hexdigest()[:20]}"},
        "spec": {
            "request": base64.b64encode(pem).decode(),
            "signerName": signer,
            "usages": ["digital signature", usage],
        },
    }


def _signed(request: dict[str, Any]) -> x509.Certificate | None:
    status = request.get("status") or {}
    for each in status.get("conditions") or ():
        if each["type"] in ("Denied", "Failed"):
            raise Terminal(
                f"the certificate was refused ({each['type']}: {each.get('message', '')}): read it with"
                f" kubectl get csr {request['metadata']['name']}"
            )
    text = status.get("certificate")
    return None if not text else x509.load_pem_x509_certificate(base64.b64decode(text))


def renewal_of(kept: Certificate, part: float) -> datetime:
    """When `part` of the life of a certificate has passed."""
    begins, ends = kept.certificate.not_valid_before_utc + CLOCK_SKEW, kept.certificate.not_valid_after_utc
    return begins + (ends - begins) * part


# -- the file ----------------------------------------------------------------------------------------


class KeptIdentity(NamedTuple):
    """A component's certificate and the authority of its cluster, as its kubeconfig has them."""

    certificate: Certificate
    authority_pem: bytes
    url: str

    @property
    def user(self) -> str:
        found = self.certificate.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(found[0].value) if found else ""

    @property
    def issued(self) -> datetime:
        return self.certificate.certificate.not_valid_before_utc + CLOCK_SKEW

    @property
    def ends(self) -> datetime:
        return self.certificate.certificate.not_valid_after_utc

    def renewal(self, part: float) -> datetime:
        """When `part` of its life has passed."""
        return renewal_of(self.certificate, part)

    def write(self, path: Path) -> None:
        write_private(path, kubeconfig(self.url, self.authority_pem, self.certificate, self.user).encode())

    @classmethod
    def read(cls, path: Path) -> KeptIdentity | None:
        """None if there is no such file.

        Raises:
            Terminal: the file is something else.
        """
        try:
            config = yaml.safe_load(path.read_text(encoding="utf-8"))
            cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
            key = serialization.load_pem_private_key(base64.b64decode(user["client-key-data"]), None)
            certificate = x509.load_pem_x509_certificate(base64.b64decode(user["client-certificate-data"]))
            authority = base64.b64decode(cluster["certificate-authority-data"])
            url = str(cluster["server"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, IndexError, TypeError, yaml.YAMLError) as error:
            raise Terminal(
                f"{path} holds no identity of a component ({error!r}): move it away and join again"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise Terminal(f"{path} has a key that kedge did not make: move it away and join again")
        return cls(Certificate(certificate, key), authority, url)


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
