"""The first connection to a cluster: its authority is read without trust, and checked against the hash in the token.

Only then is the token sent, over a connection that this authority has signed for.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from kedge.cli.membership.join_token import JoinToken
from kedge.client.http import RestClient, ServerAddress
from kedge.client.http.failover import parse_server
from kedge.errors import OperatingError, Terminal, Unavailable
from kedge.server.http.api import AUTHORITY_PATH
from kedge.server.http.certificates import key_fingerprint

_WITHIN_S: Final = 15.0


async def fetch_authority(url: str, token: JoinToken) -> bytes:
    """The certificate of the authority, as PEM.

    Raises:
        Unavailable: the server does not answer. Try again.
        Terminal: it is not the cluster that the token is for.
    """
    host, port = parse_server(url)
    client = RestClient(ServerAddress(host, port, _unverified()), on_warning=lambda _: None)
    try:
        async with asyncio.timeout(_WITHIN_S):
            reply = await client.call("GET", AUTHORITY_PATH.decode())
        found = x509.load_pem_x509_certificates(str(reply["authority"]).encode())
    except Unavailable:
        raise
    except TimeoutError as error:
        raise Unavailable(f"{url} does not answer: check the address, and that the server runs") from error
    except (OperatingError, ValueError, KeyError, TypeError) as error:
        raise Terminal(f"{url} is no kedge server with an authority ({error}): check the address") from error
    finally:
        await client.close()
    for each in found:
        if key_fingerprint(each) == token.authority_sha256:
            return each.public_bytes(serialization.Encoding.PEM)
    raise Terminal(
        f"{url} has another authority than the token names: the address is of another cluster, or another program"
        " answers for it. The token was not sent"
    )


def token_address(url: str, token: JoinToken, authority_pem: bytes) -> ServerAddress:
    """The server, verified, with the token as identity."""
    host, port = parse_server(url)
    return ServerAddress(host, port, ssl.create_default_context(cadata=authority_pem.decode()), token.token)


def _unverified() -> ssl.SSLContext:
    """TLS that trusts any server. Nothing secret may be sent over it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
