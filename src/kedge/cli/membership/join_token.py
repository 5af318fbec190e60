"""The text that lets a component join: the hash of the authority's key, and a bootstrap token."""

from __future__ import annotations

import re
import secrets
import string
from typing import Final, NamedTuple

from kedge.api import bootstrap_tokens
from kedge.api.tokens import token_id
from kedge.errors import Terminal

_FORM: Final = re.compile(r"sha256:([0-9a-f]{64}):(\S+)", re.ASCII)
_ALPHABET: Final = string.ascii_lowercase + string.digits


class JoinToken(NamedTuple):
    """Written as `sha256:HASH:ID.SECRET`."""

    authority_sha256: str
    """Hash of the authority's public key: a certificate that is renewed with the same key keeps it."""
    token: str

    def __str__(self) -> str:
        return f"sha256:{self.authority_sha256}:{self.token}"


def parse_join_token(text: str) -> JoinToken:
    """Raises `Terminal` for a text that is no such token."""
    found = _FORM.fullmatch(text.strip())
    if found is None or token_id(found[2]) is None:
        raise Terminal("the token is not sha256:HASH:ID.SECRET: make one with `kedge token create --for COMPONENT`")
    return JoinToken(found[1], found[2])


def new_bootstrap_token() -> str:
    def draw(length: int) -> str:
        return "".join(secrets.choice(_ALPHABET) for _ in range(length))

    return f"{draw(6)}.{draw(bootstrap_tokens.SECRET_LENGTH)}"
