"""Finds what is wrong with an etcd address that gRPC cannot use: gRPC reports only that it cannot be reached.

One plain HTTP request for `/version` an address, with the standard library's TLS, whose errors have causes. Asked only
after `EtcdStore.open` has failed; nothing here decides how a request is sent.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from kedge.errors import Misconfigured, OperatingError, Unavailable
from kedge.store.etcd.access import EtcdTls

OLDEST_RELEASE = (3, 4)
"""The oldest release with the requests and watch responses that a store uses."""

_EXPIRED, _NOT_YET_VALID, _OTHER_HOST, _OTHER_ADDRESS = 10, 9, 62, 64  # OpenSSL's X509_V_ERR codes
_ANSWER_BYTES_MAX = 1 << 16
_TRANSIENT = "address"


class Finding(NamedTuple):
    """One thing that is wrong."""

    part: str
    """address, certificate, authority or version."""
    text: str


async def diagnosed(
    error: Unavailable, addresses: Sequence[str], tls: EtcdTls | None, *, within_s: float
) -> OperatingError:
    """`error` with its cause. Only if every address may still come up is it worth another attempt."""
    found = await asyncio.gather(*(diagnose(each, tls, within_s=within_s) for each in addresses))
    findings = [(address, finding) for address, finding in zip(addresses, found, strict=True) if finding is not None]
    if not findings:
        return error
    text = "; ".join(f"{address}: {finding.part}: {finding.text}" for address, finding in findings)
    lasting = any(finding.part != _TRANSIENT for _, finding in findings)
    return (Misconfigured if lasting else Unavailable)(f"etcd cannot be used: {text}")


async def diagnose(address: str, tls: EtcdTls | None, *, within_s: float) -> Finding | None:
    """The fault of one address; None if it answers as a usable etcd."""
    try:
        async with asyncio.timeout(within_s):
            return await _with_tls(address, tls) if tls is not None else await _without_tls(address)
    except TimeoutError:
        return Finding("address", f"no answer within {within_s:g} s: is it the right host, and is etcd running?")
    except OSError as error:
        return Finding("address", f"{error.strerror or error}: is it the right host and port, and is etcd running?")


async def _with_tls(address: str, tls: EtcdTls) -> Finding | None:
    try:
        return _version_of(await _get_version(address, _context(tls)))
    except ssl.SSLCertVerificationError as error:
        return _server_certificate(error)
    except (ssl.SSLError, ConnectionResetError, asyncio.IncompleteReadError) as error:
        if await _is_plain(address):
            return Finding("authority", "etcd uses no TLS there: leave out the authority and certificates")
        if tls.certificate is not None:
            return Finding("certificate", f"etcd rejects the client certificate ({_reason(error)}): use one of its CA")
        return Finding("certificate", f"etcd requires a client certificate and its key ({_reason(error)})")


async def _without_tls(address: str) -> Finding | None:
    if await _is_plain(address):
        return _version_of(await _get_version(address, None))
    try:
        await _get_version(address, _context(None))
    except ssl.SSLError as error:
        if "WRONG_VERSION_NUMBER" in str(error):
            return Finding("address", "the program there is not etcd: it answers neither HTTP nor TLS")
    except (ConnectionResetError, asyncio.IncompleteReadError):
        return Finding("address", "the program there is not etcd: it answers neither HTTP nor TLS")
    return Finding("authority", "etcd uses TLS there: pass the authority of its certificate")


async def _is_plain(address: str) -> bool:
    """Whether HTTP without TLS is answered there."""
    try:
        answer = await _get_version(address, None)
    except (ConnectionResetError, asyncio.IncompleteReadError):
        return False
    return answer.startswith(b"HTTP/") and b"HTTPS server" not in answer


def _server_certificate(error: ssl.SSLCertVerificationError) -> Finding:
    if error.verify_code in (_OTHER_HOST, _OTHER_ADDRESS):
        return Finding("certificate", f"etcd's certificate is for another host: {error.verify_message}")
    if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        return Finding("certificate", f"etcd's certificate is not valid now: {error.verify_message}")
    return Finding("authority", f"etcd's certificate is not from the given authority: {error.verify_message}")


def _version_of(answer: bytes) -> Finding | None:
    """From the answer to `GET /version`."""
    try:
        version = str(json.loads(answer.partition(b"\r\n\r\n")[2])["etcdserver"])
    except (ValueError, KeyError, TypeError):
        return Finding("address", "the program there answers, but not as etcd does: is it the client port?")
    numbers = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_RELEASE:
        return Finding("version", f"etcd {version} is too old: upgrade it to {'.'.join(map(str, OLDEST_RELEASE))}")
    return None


async def _get_version(address: str, context: ssl.SSLContext | None) -> bytes:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    reader, writer = await asyncio.open_connection(
        host, int(port), ssl=context, server_hostname=host if context is not None else None
    )
    try:
        writer.write(f"GET /version HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        first = await reader.readexactly(1)  # an alert about the client's certificate comes only now, in TLS 1.3
        return first + await reader.read(_ANSWER_BYTES_MAX)
    finally:
        writer.transport.abort()


def _context(tls: EtcdTls | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=tls.ca.decode("ascii") if tls is not None else None)
    if tls is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif tls.certificate is not None and tls.key is not None:
        with tempfile.NamedTemporaryFile(prefix="kedge-etcd-") as pem:  # `ssl` reads files alone; mode 0600
            pem.write(tls.key + b"\n" + tls.certificate)
            pem.flush()
            context.load_cert_chain(pem.name)
    return context


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", "") or error)
