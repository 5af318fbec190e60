"""TLS of an agent's endpoint: its serving certificate, which is renewed while it listens, and the check of its callers.

`cli.membership.serving_certificate` requests the certificate from the cluster's authority. Without one no handshake
succeeds.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kedge.api.wellknown import API_SERVERS_GROUP


def endpoint_context(authority_pem: str) -> ssl.SSLContext:
    """A TLS context that demands a certificate of this authority from callers. It has none of its own yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority_pem)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def use_certificate(context: ssl.SSLContext, pem: bytes) -> None:
    """Show this certificate, which has its key beside it, to new callers. Open connections go on."""
    descriptor, path = tempfile.mkstemp(prefix="kedge-")
    try:
        os.write(descriptor, pem)
        os.close(descriptor)
        context.load_cert_chain(path)
    finally:
        Path(path).unlink()


def is_api_server(peer: Mapping[str, Any] | None) -> bool:
    """Whether a verified client certificate, as `ssl` describes it, is that of an API server."""
    names = [pair for part in (peer or {}).get("subject", ()) for pair in part]
    return ("organizationName", API_SERVERS_GROUP) in names
