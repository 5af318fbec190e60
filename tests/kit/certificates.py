"""Keys, requests and certificates for tests of joining."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kedge.server.http.certificate_signer import AuthoritySigner
from kedge.server.http.certificates import Authority

CLIENT = ("digital signature", "client auth")
SERVING = ("digital signature", "server auth")


def make_signer(folder: Path, now: Callable[[], datetime]) -> AuthoritySigner:
    return AuthoritySigner(Authority.ensure(folder, now()), now)


def request_pem(user: str, groups: Sequence[str], names: Sequence[str] = (), *others: x509.GeneralName) -> bytes:
    subject = x509.Name([
        *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
        *([x509.NameAttribute(NameOID.COMMON_NAME, user)] if user else []),
    ])  # fmt: skip
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if names or others:
        found = [*(_name(each) for each in names), *others]
        builder = builder.add_extension(x509.SubjectAlternativeName(found), critical=False)
    key = ec.generate_private_key(ec.SECP256R1())
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def signing_request(
    name: str, pem: bytes, signer: str = "kube-apiserver-client-kubelet", usages: Sequence[str] = CLIENT, **spec: Any
) -> dict[str, Any]:
    body = {"request": base64.b64encode(pem).decode(), "signerName": f"kubernetes.io/{signer}", "usages": list(usages)}
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {**body, **spec},
    }


def certificate_of(document: Any) -> x509.Certificate | None:
    text = (document.get("status") or {}).get("certificate")
    return None if text is None else x509.load_pem_x509_certificate(base64.b64decode(text))


def conditions_of(document: Any) -> dict[str, str]:
    """The messages of the conditions, by type."""
    return {each["type"]: each.get("message", "") for each in (document.get("status") or {}).get("conditions") or ()}


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
