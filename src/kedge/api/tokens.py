"""Bearer tokens as Secrets of a type of their own: the server stores the SHA-256 of a token, never the token.

A token is `ID.SECRET`; the ID names its Secret, so that it is found without a search. `kedge token` writes the Secrets,
`server.http` reads them. Nothing here decides what a caller may do.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kedge.api.timestamps import format_time, parse_time
from kedge.api.wellknown import SECRET_KIND, SYSTEM_NAMESPACE, TOKEN_TYPE
from kedge.keys import Key

ID_PATTERN = re.compile(r"[a-z0-9]{10}", re.ASCII)
SECRET_BYTES = 32
"""256 random bits: a fast hash is enough, since there is nothing to guess."""
_PREFIX = "token-"


@dataclass(frozen=True, slots=True)
class StoredToken:
    """One token without its secret part."""

    id: str
    sha256: str
    user: str
    groups: tuple[str, ...]
    expires: datetime | None

    def matches(self, token: str) -> bool:
        """Whether this is the stored form of `token`. Takes the same time wherever they differ."""
        return hmac.compare_digest(self.sha256, _digest(token))


def token_key(token_id: str) -> Key:
    return Key(SECRET_KIND, SYSTEM_NAMESPACE, f"{_PREFIX}{token_id}")


def token_id(token: str) -> str | None:
    """The ID of a token; None for a text that is no token."""
    found, dot, secret = token.partition(".")
    return found if dot and secret and ID_PATTERN.fullmatch(found) else None


def format_token(found_id: str, secret: bytes) -> str:
    return f"{found_id}.{base64.urlsafe_b64encode(secret).rstrip(b'=').decode()}"


def token_secret(token: str, user: str, groups: Sequence[str], expires: datetime | None) -> dict[str, Any]:
    """The Secret for a token."""
    found_id = token_id(token)
    if found_id is None:
        raise ValueError("a token is ID.SECRET")
    data = {"sha256": _digest(token), "user": user, "groups": "\n".join(groups)}
    if expires is not None:
        data["expires"] = format_time(expires)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": token_key(found_id).name, "namespace": SYSTEM_NAMESPACE},
        "type": TOKEN_TYPE,
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in data.items()},
    }


def parse_token_secret(secret: Mapping[str, Any]) -> StoredToken | None:
    """The token of a Secret; None if the Secret is of another type, or damaged."""
    name = str((secret.get("metadata") or {}).get("name") or "")
    if secret.get("type") != TOKEN_TYPE or not name.startswith(_PREFIX):
        return None
    try:
        data = {key: base64.b64decode(text).decode() for key, text in (secret.get("data") or {}).items()}
        expires = parse_time(data["expires"]) if "expires" in data else None
        groups = tuple(group for group in data.get("groups", "").split("\n") if group)
        found = StoredToken(name.removeprefix(_PREFIX), data["sha256"], data["user"], groups, expires)
    except (binascii.Error, ValueError, KeyError, AttributeError, TypeError):
        return None
    return found if found.user and len(found.sha256) == hashlib.sha256().digest_size * 2 else None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
