"""The certificates of one cluster: of its authority, the server, administrators and components.

Files are written whole or not at all, private ones with mode 0600, so that a start that is killed is simply repeated.
`access` reads the user and its groups from them; nothing here decides what a caller may do.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kedge.errors import Terminal

AUTHORITY_DAYS = 3650
LEAF_DAYS = 365
RENEW_DAYS = 30
"""A certificate with less than this left is made again."""
ADMIN = "kedge-admin"
CLOCK_SKEW = timedelta(minutes=5)
"""Certificates are valid from this long before they are made: clocks differ."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def pem(self) -> bytes:
        """Both, in one text: `ssl` and curl read it."""
        return self.key_pem + self.certificate_pem

    @classmethod
    def read(cls, path: Path) -> Certificate | None:
        """Read a file that holds `pem`; None if there is no such file.

        Raises:
            Terminal: the file exists and is not a certificate with its key.
        """
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            key = serialization.load_pem_private_key(text, None)
            certificate = x509.load_pem_x509_certificate(text[text.index(b"-----BEGIN CERTIFICATE") :])
        except (ValueError, TypeError) as error:
            raise Terminal(f"{path} holds no certificate with its key ({error}): restore it or move it away") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise Terminal(f"{path}: the key is not that of the certificate: restore it, or move it away")
        return cls(certificate, key)


class Authority:
    """The authority of a cluster. Everything it signs is trusted by the cluster's servers and clients."""

    def __init__(self, own: Certificate) -> None:
        self.own = own

    @classmethod
    def ensure(cls, folder: Path, now: datetime) -> Authority:
        """Read the authority in `folder`, or make it."""
        path = folder / "ca.pem"
        found = Certificate.read(path)
        if found is None:
            found = _make_authority(now)
            write_private(path, found.pem)
        write_whole(folder / "ca.crt", found.certificate_pem, mode=0o644)
        return cls(found)

    def ensure_serving(self, path: Path, hosts: list[str], now: datetime) -> Certificate:
        """The server's certificate for these hosts: read, or made where it is missing, old or for others."""
        found = Certificate.read(path)
        if found is None or not self._serves(found, hosts, now):
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            found = self._sign("kedge-server", (), now, ExtendedKeyUsageOID.SERVER_AUTH, names)
            write_private(path, found.pem)
        return found

    def ensure_client(self, path: Path, user: str, groups: tuple[str, ...], now: datetime) -> Certificate:
        """A file with the client certificate of a component: kept while it is valid."""
        found = Certificate.read(path)
        if found is None or not self._is_current(found, now):
            found = self.issue_client(user, groups, now)
            write_private(path, found.pem)
        return found

    def issue_client(self, user: str, groups: tuple[str, ...], now: datetime) -> Certificate:
        """A client certificate: the user is its common name, the groups are its organizations."""
        return self._sign(user, groups, now, ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def ensure_kubeconfig(self, path: Path, server: str, user: str, groups: tuple[str, ...], now: datetime) -> None:
        """A kubeconfig for one user. Its certificate is kept while it is valid; the address is brought up to date."""
        found = _client_in(path)
        kept = found if found is not None and self._is_current(found, now) else None
        client = kept or self.issue_client(user, groups, now)
        text = kubeconfig(server, self.own.certificate_pem, client, user)
        if kept is None or path.read_text(encoding="utf-8") != text:
            write_private(path, text.encode())

    def renew_kubeconfig(self, path: Path, user: str, groups: tuple[str, ...], now: datetime) -> Certificate | None:
        """The client certificate of a kubeconfig, made again if it ends soon; the rest of the file stays.

        None if the file is gone, or has no certificate of this authority for the user: then it is left alone.
        """
        found = _client_in(path)
        if found is None or not self.signed(found.certificate) or _user_of(found.certificate) != user:
            return None
        if self._is_current(found, now):
            return found
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        made = self.issue_client(user, groups, now)
        config["users"][0]["user"] |= _client_data(made)
        write_private(path, yaml.safe_dump(config, sort_keys=False).encode())
        return made

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public key in hexadecimal: join tokens carry it."""
        return key_fingerprint(self.own.certificate)

    def derived_secret(self, purpose: str) -> bytes:
        """A secret that every server with this authority has, and nothing else; one for each purpose."""
        return hmac.digest(self.own.key_pem, purpose.encode(), "sha256")

    @property
    def key_identifier(self) -> x509.AuthorityKeyIdentifier:
        """The extension by which a certificate names the key that signed it. Strict clients require it: RFC 5280."""
        own = self.own.certificate
        try:
            named = own.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        except x509.ExtensionNotFound:
            named = x509.SubjectKeyIdentifier.from_public_key(self.own.key.public_key())
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(named)

    def signed(self, certificate: x509.Certificate) -> bool:
        try:
            certificate.verify_directly_issued_by(self.own.certificate)
        except Exception:  # noqa: BLE001  # of several libraries' types: whatever it is, it is not ours
            return False
        return True

    def _serves(self, found: Certificate, hosts: list[str], now: datetime) -> bool:
        try:
            names = found.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return False
        wanted = {_general_name(host) for host in hosts}
        return wanted <= set(names) and self._is_current(found, now)

    def _is_current(self, found: Certificate, now: datetime) -> bool:
        left = found.certificate.not_valid_after_utc - now
        return (
            self.signed(found.certificate)
            and _names_its_issuer(found.certificate)
            and left > timedelta(days=RENEW_DAYS)
        )

    def _sign(
        self,
        name: str,
        groups: tuple[str, ...],
        now: datetime,
        usage: x509.ObjectIdentifier,
        names: x509.SubjectAlternativeName | None,
    ) -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ])  # fmt: skip
        builder = _builder(subject, self.own.certificate.subject, key, now, LEAF_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        builder = builder.add_extension(self.key_identifier, critical=False)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return Certificate(builder.sign(self.own.key, hashes.SHA256()), key)


def _client_in(path: Path) -> Certificate | None:
    """The client certificate in a kubeconfig; None if the file is missing, or was edited so that it has none."""
    try:
        user = yaml.safe_load(path.read_text(encoding="utf-8"))["users"][0]["user"]
        text = base64.b64decode(user["client-key-data"]) + base64.b64decode(user["client-certificate-data"])
        key = serialization.load_pem_private_key(text, None)
        certificate = x509.load_pem_x509_certificate(text[text.index(b"-----BEGIN CERTIFICATE") :])
    except (OSError, ValueError, KeyError, IndexError, TypeError, yaml.YAMLError):
        return None
    return Certificate(certificate, key) if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _user_of(certificate: x509.Certificate) -> str:
    return "".join(str(each.value) for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME))


def _names_its_issuer(certificate: x509.Certificate) -> bool:
    """Whether strict clients accept it; earlier versions of kedge made certificates without this extension."""
    return any(isinstance(each.value, x509.AuthorityKeyIdentifier) for each in certificate.extensions)


def key_fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the public key of a certificate, in hexadecimal."""
    der = certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).hexdigest()


def kubeconfig(server: str, authority_pem: bytes, client: Certificate, user: str) -> str:
    """A kubeconfig with everything inside it, so that it can be copied to another machine."""
    cluster = {"server": server, "certificate-authority-data": _text(authority_pem)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "kedge", "cluster": cluster}],
        "users": [{"name": user, "user": _client_data(client)}],
        "contexts": [{"name": "kedge", "context": {"cluster": "kedge", "user": user}}],
        "current-context": "kedge",
    }
    return yaml.safe_dump(config, sort_keys=False)


def _client_data(client: Certificate) -> dict[str, str]:
    return {"client-certificate-data": _text(client.certificate_pem), "client-key-data": _text(client.key_pem)}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    write_whole(path, data, mode=0o600)


def write_whole(path: Path, data: bytes, *, mode: int) -> None:
    """Write under another name, sync, then rename: a kill in between leaves the old file or the new one."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.replace(path)


def _make_authority(now: datetime) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kedge authority")])
    builder = _builder(name, name, key, now, AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return Certificate(builder.sign(key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
