"""The keys behind tokens of ServiceAccounts: JSON Web Tokens signed with ES256 (P-256), and no other algorithm.

The first key is derived from the authority's, so API servers with one `ca.pem` agree without another file to copy.
The file may hold more keys: the first one signs, and each is accepted, so that a key can be replaced.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from kedge.caches import remembered
from kedge.errors import Terminal, check
from kedge.server.http.certificates import Authority, write_private

FILE: Final = "service-accounts.pem"
_ALGORITHM: Final = "ES256"
_HALF_BYTES: Final = 32
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of P-256."""
_TOKEN_BYTES_MAX: Final = 8 * 1024
_REMEMBERED: Final = 1024
"""Tokens whose signatures are remembered: a check takes longer than the request behind it."""
_PEM_END: Final = b"-----END PRIVATE KEY-----"
_encode = msgspec.json.Encoder().encode


class SigningKeys:
    """Implements `TokenKeys` of the service."""

    def __init__(self, keys: Sequence[ec.EllipticCurvePrivateKey]) -> None:
        check(bool(keys), "a server without a key signs no tokens")
        self._signer = keys[0]
        self._public = {_key_id(each.public_key()): each.public_key() for each in keys}
        self.verify = remembered(entries=_REMEMBERED, entry_bytes=3 * _TOKEN_BYTES_MAX)(self._verify)

    @classmethod
    def ensure(cls, folder: Path, authority: Authority) -> SigningKeys:
        """Read the keys in `folder`, or derive the first one.

        Raises:
            Terminal: the file exists and holds something else.
        """
        path = folder / FILE
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            text = _pem(_derived(authority.own.key))
            write_private(path, text)
        try:
            parts = [part + _PEM_END for part in text.split(_PEM_END)[:-1]]
            keys = [serialization.load_pem_private_key(part, None) for part in parts]
        except (ValueError, TypeError) as error:
            raise Terminal(f"{path} holds no private keys ({error}): restore it or move it away") from error
        found = [each for each in keys if isinstance(each, ec.EllipticCurvePrivateKey) and each.key_size == 256]
        if not found or len(found) != len(keys):
            raise Terminal(f"{path} must hold private keys of P-256 alone: restore it or move it away")
        return cls(found)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """SHA-256 of each public key in hexadecimal; the first one signs."""
        return tuple(base64.urlsafe_b64decode(f"{each}=").hex() for each in self._public)

    def sign(self, claims: Mapping[str, Any]) -> str:
        header = {"alg": _ALGORITHM, "kid": _key_id(self._signer.public_key())}
        signed = f"{_text(_encode(header))}.{_text(_encode(claims))}"
        halves = decode_dss_signature(self._signer.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_text(b''.join(each.to_bytes(_HALF_BYTES) for each in halves))}"

    def _verify(self, token: str) -> Mapping[str, Any] | None:
        if len(token) > _TOKEN_BYTES_MAX or token.count(".") != 2:
            return None
        signed, _, signature = token.rpartition(".")
        head, _, body = signed.partition(".")
        try:
            header, claims = msgspec.json.decode(_bytes(head)), msgspec.json.decode(_bytes(body))
            raw = _bytes(signature)
        except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError):
            return None
        if not isinstance(header, dict) or not isinstance(claims, dict) or len(raw) != 2 * _HALF_BYTES:
            return None
        kid = header.get("kid")
        key = self._public.get(kid) if isinstance(kid, str) else None
        if key is None or header.get("alg") != _ALGORITHM:
            return None
        halves = int.from_bytes(raw[:_HALF_BYTES]), int.from_bytes(raw[_HALF_BYTES:])
        try:
            key.verify(encode_dss_signature(*halves), signed.encode(), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return None
        return claims


def _derived(authority: ec.EllipticCurvePrivateKey) -> ec.EllipticCurvePrivateKey:
    """A key of its own for tokens, the same for each server that has this authority."""
    secret = authority.private_numbers().private_value.to_bytes((authority.key_size + 7) // 8)
    drawn = HKDF(hashes.SHA256(), _HALF_BYTES + 8, None, b"kedge service account tokens").derive(secret)
    return ec.derive_private_key(int.from_bytes(drawn) % (_ORDER - 1) + 1, ec.SECP256R1())


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _key_id(key: ec.EllipticCurvePublicKey) -> str:
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return _text(hashlib.sha256(der).digest())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    """Raises `ValueError` for a text that is not base64url without padding, or not the shortest form of its bytes."""
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _text(data) != text:
        raise ValueError("another text of the same bytes: one token must have one form")
    return data
