"""Signs certificate signing requests with the key of the cluster's authority. `service.credentials` decides which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kedge.server.http.certificates import CLOCK_SKEW, Authority
from kedge.server.service.credentials.signing_rules import RequestedCertificate

_EXTENDED: Final = {"client auth": ExtendedKeyUsageOID.CLIENT_AUTH, "server auth": ExtendedKeyUsageOID.SERVER_AUTH}
_RSA_BITS_MIN: Final = 2048
_SUBJECT: Final = (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)


class AuthoritySigner:
    """Implements `CertificateSigner` of the service."""

    def __init__(self, authority: Authority, now: Callable[[], datetime]) -> None:
        self._authority = authority
        self._now = now

    def read(self, pem: bytes) -> RequestedCertificate:
        request = x509.load_pem_x509_csr(pem)
        _check_key(request)
        users = [str(each.value) for each in request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        groups = [str(each.value) for each in request.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
        others = [each.oid.dotted_string for each in request.subject if each.oid not in _SUBJECT]
        if len(users) > 1:
            others.append("several common names")
        names: list[str] = []
        for each in _alternative_names(request):
            match each:
                case x509.DNSName():
                    names.append(each.value)
                case x509.IPAddress():
                    names.append(str(each.value))
                case _:
                    others.append(f"the name {each.value!r}")
        return RequestedCertificate(users[0] if users else "", tuple(groups), tuple(names), tuple(others))

    def sign(self, pem: bytes, usages: Sequence[str], valid_s: float) -> bytes:
        request, own, now = x509.load_pem_x509_csr(pem), self._authority.own, self._now()
        ends = min(now + timedelta(seconds=valid_s), own.certificate.not_valid_after_utc)
        extended = [_EXTENDED[each] for each in usages if each in _EXTENDED]
        builder = (
            x509.CertificateBuilder()
            .subject_name(request.subject)
            .issuer_name(own.certificate.subject)
            .public_key(request.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(usages), critical=True)
            .add_extension(x509.ExtendedKeyUsage(extended), critical=False)
            .add_extension(self._authority.key_identifier, critical=False)
        )
        names = _alternative_names(request)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(own.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _check_key(request: x509.CertificateSigningRequest) -> None:
    if not request.is_signature_valid:
        raise ValueError("its own signature is wrong")
    match request.public_key():
        case rsa.RSAPublicKey(key_size=bits) if bits >= _RSA_BITS_MIN:
            return
        case ec.EllipticCurvePublicKey() | ed25519.Ed25519PublicKey():
            return
    raise ValueError(f"its key is neither elliptic nor RSA of at least {_RSA_BITS_MIN} bits")


def _alternative_names(request: x509.CertificateSigningRequest) -> list[x509.GeneralName]:
    try:
        return list(request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _key_usage(usages: Sequence[str]) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_encipherment="key encipherment" in usages, key_cert_sign=False, crl_sign=False,
        content_commitment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
