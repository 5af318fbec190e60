"""Bearer tokens as Secrets of a type of their own: the server stores the SHA-256 of a token, never the token.

A token is `ID.SECRET`; the ID names its Secret, so that it is found without a search. `kedge token` writes the Secrets,
`server.http` reads them, those of `bootstrap_tokens` too. Nothing here decides what a caller may do.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kedge.api import bootstrap_tokens
from kedge.api.bootstrap_tokens import token_digest
from kedge.api.timestamps import format_time, parse_time
from kedge.api.wellknown import BOOTSTRAP_TOKEN_TYPE, SECRET_KIND, SYSTEM_NAMESPACE, TOKEN_TYPE
from kedge.keys import Key

ID_PATTERN = re.compile(r"[a-z0-9]{10}", re.ASCII)
SECRET_BYTES = 32
"""256 random bits: a fast hash is enough, since there is nothing to guess."""
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
"""A SHA-256 as `token_digest` writes it. `compare_digest` raises for text that is not ASCII."""
_PREFIX = "token-"
_PREFIXES = {TOKEN_TYPE: _PREFIX, BOOTSTRAP_TOKEN_TYPE: bootstrap_tokens.NAME_PREFIX}
"""How the name of a Secret begins, by its type."""


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
        return hmac.compare_digest(self.sha256, token_digest(token))


def token_key(token_id: str) -> Key:
    joins = bootstrap_tokens.ID_PATTERN.fullmatch(token_id)
    return Key(SECRET_KIND, SYSTEM_NAMESPACE, f"{bootstrap_tokens.NAME_PREFIX if joins else _PREFIX}{token_id}")


def token_id(token: str) -> str | None:
    """The ID of a token; None for a text that is no token."""
    found, dot, secret = token.partition(".")
    return found if dot and secret and is_token_id(found) else None


def is_token_id(text: str) -> bool:
    """Whether a text may be the ID of a token, of either type."""
    return bool(ID_PATTERN.fullmatch(text) or bootstrap_tokens.ID_PATTERN.fullmatch(text))


def format_token(found_id: str, secret: bytes) -> str:
    return f"{found_id}.{base64.urlsafe_b64encode(secret).rstrip(b'=').decode()}"


def token_secret(token: str, user: str, groups: Sequence[str], expires: datetime | None) -> dict[str, Any]:
    """The Secret for a token."""
    found_id = token_id(token)
    if found_id is None:
        raise ValueError("a token is ID.SECRET")
    data = {"sha256": token_digest(token), "user": user, "groups": "\n".join(groups)}
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
    prefix = _PREFIXES.get(str(secret.get("type")))
    if prefix is None or not name.startswith(prefix):
        return None
    try:
        data = {key: base64.b64decode(text).decode() for key, text in (secret.get("data") or {}).items()}
        found = _bootstrap(name, data) if prefix is bootstrap_tokens.NAME_PREFIX else _bearer(name, data)
    except (binascii.Error, ValueError, KeyError, AttributeError, TypeError):
        return None
    return found if found is not None and found.user and _DIGEST.fullmatch(found.sha256) else None


def _bearer(name: str, data: Mapping[str, str]) -> StoredToken:
    expires = parse_time(data["expires"]) if "expires" in data else None
    groups = tuple(group for group in data.get("groups", "").split("\n") if group)
    return StoredToken(name.removeprefix(_PREFIX), data["sha256"], data["user"], groups, expires)


def _bootstrap(name: str, data: Mapping[str, str]) -> StoredToken | None:
    found = bootstrap_tokens.bootstrap_user(name, data)
    if found is None:
        return None
    token_id, sha256, groups, expiration = found
    expires = parse_time(expiration) if expiration else None
    return StoredToken(token_id, sha256, bootstrap_tokens.user_of(token_id), groups, expires)
