"""TLS of an agent's endpoint: a certificate that lives as long as the agent, and the check of its callers.

The certificate signs itself. API servers trust it by its fingerprint, which the agent writes to its Node.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kedge.api.wellknown import API_SERVERS_GROUP

_DAYS = 3650
"""Longer than an agent runs: the fingerprint is what counts, and the next start makes another certificate."""


def make_context(authority_pem: str) -> tuple[ssl.SSLContext, str]:
    """A TLS context for one run of an endpoint, and the fingerprint of its certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kedge agent")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority_pem)
    context.verify_mode = ssl.CERT_REQUIRED
    descriptor, path = tempfile.mkstemp(prefix="kedge-")
    try:
        os.write(descriptor, private + certificate.public_bytes(serialization.Encoding.PEM))
        os.close(descriptor)
        context.load_cert_chain(path)
    finally:
        Path(path).unlink()
    return context, hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


def is_api_server(peer: Mapping[str, Any] | None) -> bool:
    """Whether a verified client certificate, as `ssl` describes it, is that of an API server."""
    names = [pair for part in (peer or {}).get("subject", ()) for pair in part]
    return ("organizationName", API_SERVERS_GROUP) in names
