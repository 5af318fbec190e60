"""Bootstrap tokens: a component that joins a cluster shows one once, to get a certificate.

They are Secrets of Kubernetes' type `bootstrap.kubernetes.io/token`. The secret part is stored as its SHA-256:
`hash_token_secret` replaces one that was sent in plain text. `api.tokens` has the bearer tokens of users.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from kedge.api.access import BOOTSTRAP_USER_PREFIX, BOOTSTRAPPERS
from kedge.api.timestamps import format_time
from kedge.api.wellknown import BOOTSTRAP_TOKEN_TYPE, SYSTEM_NAMESPACE

ID_PATTERN = re.compile(r"[a-z0-9]{6}", re.ASCII)
SECRET_LENGTH: Final = 16
"""82 random bits, in the alphabet of Kubernetes: a fast hash is enough, since there is nothing to guess."""
NAME_PREFIX: Final = "bootstrap-token-"
_PLAIN, _HASHED = "token-secret", "token-sha256"
_GROUP = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]", re.ASCII)
_USAGE: Final = "usage-bootstrap-authentication"


def bootstrap_secret(token: str, groups: Sequence[str], expires: datetime, description: str) -> dict[str, Any]:
    """The Secret for a token `ID.SECRET`."""
    token_id = token.partition(".")[0]
    data = {
        "token-id": token_id,
        _HASHED: token_digest(token),
        "expiration": format_time(expires),
        _USAGE: "true",
        "auth-extra-groups": ",".join(groups),
        "description": description,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{NAME_PREFIX}{token_id}", "namespace": SYSTEM_NAMESPACE},
        "type": BOOTSTRAP_TOKEN_TYPE,
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in data.items()},
    }


def hash_token_secret(secret: dict[str, Any]) -> bool:
    """Replace the plain secret part in a Secret of this type by its hash. Returns whether there was one."""
    data = secret.get("data")
    if secret.get("type") != BOOTSTRAP_TOKEN_TYPE or not isinstance(data, dict) or _PLAIN not in data:
        return False
    try:
        token_id, plain = (base64.b64decode(data[name], validate=True).decode() for name in ("token-id", _PLAIN))
    except (binascii.Error, ValueError, KeyError, TypeError):
        return False  # validation names the field, or the token is never valid
    kept = {name: text for name, text in data.items() if name != _PLAIN}
    secret["data"] = {**kept, _HASHED: base64.b64encode(token_digest(f"{token_id}.{plain}").encode()).decode()}
    return True


def bootstrap_user(name: str, data: Mapping[str, str]) -> tuple[str, str, tuple[str, ...], str] | None:
    """ID, hash, groups and expiry behind the decoded data of a Secret; None if it cannot authenticate."""
    token_id = name.removeprefix(NAME_PREFIX)
    groups = tuple(each for each in data.get("auth-extra-groups", "").split(",") if each)
    valid = (
        data.get("token-id") == token_id
        and ID_PATTERN.fullmatch(token_id)
        and data.get(_USAGE) == "true"
        and all(_GROUP.fullmatch(group) for group in groups)
    )
    return (token_id, data[_HASHED], (BOOTSTRAPPERS, *groups), data.get("expiration", "")) if valid else None


def user_of(token_id: str) -> str:
    return f"{BOOTSTRAP_USER_PREFIX}{token_id}"


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
