"""How a store identifies itself to etcd, and etcd to it: addresses, certificates, user and password.

Everything here is checked before the first connection: gRPC reports a bad certificate as an address that cannot be
reached. `diagnosis` finds what is wrong with an address that does not answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from kedge.errors import Misconfigured

DEFAULT_PORT = 2379


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """PEM bytes. `certificate` and `key` only where etcd requires client certificates."""

    ca: bytes
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)

    @classmethod
    def read(cls, cafile: Path, certfile: Path | None = None, keyfile: Path | None = None) -> EtcdTls:
        """Read PEM files.

        Raises:
            Misconfigured: a file cannot be read, is not PEM, or the key is not the certificate's.
        """
        tls = cls(_read(cafile), *(_read(each) if each is not None else None for each in (certfile, keyfile)))
        tls.check(f"authority {cafile}", f"certificate {certfile}", f"key {keyfile}")
        return tls

    def check(self, authority: str = "authority", certificate: str = "certificate", key: str = "key") -> None:
        """Check that these are certificates and the first one's key. The arguments are their names in errors."""
        _certificates(self.ca, authority)
        if (self.certificate is None) != (self.key is None):
            given, missing = ("certificate", "key") if self.key is None else ("key", "certificate")
            raise Misconfigured(f"etcd: there is a {given} but no {missing}: pass both, or neither")
        if self.certificate is None or self.key is None:
            return
        (first, *_) = _certificates(self.certificate, certificate)
        try:
            private = serialization.load_pem_private_key(self.key, password=None)
        except (ValueError, TypeError) as error:  # TypeError: it is encrypted
            raise Misconfigured(f"etcd: {key} is not a private key in PEM form without a password") from error
        if private.public_key() != first.public_key():
            raise Misconfigured(f"etcd: {key} is not the key of {certificate}: pass the two that belong together")


@dataclass(frozen=True, slots=True)
class EtcdLogin:
    """User and password, where etcd has authentication switched on."""

    user: str
    password: str = field(repr=False)

    @classmethod
    def read(cls, user: str, password_file: Path) -> EtcdLogin:
        """Take the password from the first line of a file: an argument would be visible to every local process.

        Raises:
            Misconfigured: the file cannot be read or its first line is empty.
        """
        try:
            password = _read(password_file).decode().partition("\n")[0].rstrip("\r")
        except UnicodeDecodeError as error:
            raise Misconfigured(f"etcd: {password_file} is not UTF-8: write the password in its first line") from error
        if not password:
            raise Misconfigured(f"etcd: the first line of {password_file} is empty: write the password of {user} there")
        return cls(user, password)


def parse_endpoints(endpoints: Sequence[str], *, tls: bool) -> list[str]:
    """Each as `host:port`, from that or from a URL.

    Raises:
        Misconfigured: there is none, or one is not an address.
    """
    addresses: list[str] = []
    for endpoint in endpoints:
        scheme, mark, rest = endpoint.partition("://")
        if mark and (scheme not in ("http", "https") or (scheme == "https") != tls):
            raise Misconfigured(f"etcd: {endpoint} is for {_use_of(scheme)}: {_advice(scheme)}")
        address = (rest if mark else endpoint).strip().rstrip("/")
        host, colon, port = address.rpartition(":")
        if not colon or address.endswith("]"):
            host, port = address, str(DEFAULT_PORT)
        if not host or not port.isdigit() or not 0 < int(port) < 65536 or "/" in host:
            raise Misconfigured(f"etcd: {endpoint!r} is not HOST:PORT, such as etcd-1.example.com:{DEFAULT_PORT}")
        addresses.append(f"{host}:{port}")
    if not addresses:
        raise Misconfigured("etcd: there is no address of a member: pass at least one HOST:PORT")
    return addresses


def _use_of(scheme: str) -> str:
    return {"http": "a connection without TLS", "https": "a connection with TLS"}.get(scheme, "another protocol")


def _advice(scheme: str) -> str:
    if scheme == "https":
        return "pass the authority of etcd's certificates too"
    return "leave the authority out, or write https://" if scheme == "http" else "write HOST:PORT"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Misconfigured(f"etcd: {path} cannot be read: {error.strerror or error}") from error


def _certificates(pem: bytes, name: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise Misconfigured(f"etcd: {name} is not a certificate in PEM form: {error}") from error
