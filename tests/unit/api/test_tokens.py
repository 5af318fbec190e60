"""Bearer tokens as Secrets: what is a digest, and how a token is compared with it."""

from __future__ import annotations

import base64
import hmac
from datetime import UTC, datetime
from typing import Any

import pytest

from kedge.api import tokens
from kedge.api.bootstrap_tokens import bootstrap_secret, token_digest
from kedge.api.tokens import format_token, parse_token_secret, token_secret

TOKEN = format_token("abcdefghij", b"0123456789abcdef0123456789abcdef")
DIGEST = token_digest(TOKEN)


def with_digest(body: dict[str, Any], field: str, digest: str) -> dict[str, Any]:
    return {**body, "data": {**body["data"], field: base64.b64encode(digest.encode()).decode()}}


@pytest.mark.parametrize(
    "digest",
    ["", "ab", "é" * 64, "٣" * 64, "g" * 64, DIGEST.upper(), DIGEST + "\n", DIGEST[:-1] + "\n", DIGEST[1:], DIGEST * 2],
)
def test_a_secret_whose_digest_is_not_64_hexadecimal_digits_is_no_token(digest: str) -> None:
    assert parse_token_secret(with_digest(token_secret(TOKEN, "ada", (), None), "sha256", digest)) is None
    joining = bootstrap_secret("abcdef.0123456789abcdef", [], datetime(2030, 1, 1, tzinfo=UTC), "")
    assert parse_token_secret(joining) is not None
    assert parse_token_secret(with_digest(joining, "token-sha256", digest)) is None


def test_a_token_is_compared_by_its_digest_and_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []

    def compare(left: str, right: str) -> bool:
        compared.append((left, right))
        return hmac.compare_digest(left, right)

    found = parse_token_secret(token_secret(TOKEN, "ada", (), None))
    assert found is not None
    monkeypatch.setattr(tokens, "hmac", type("Hmac", (), {"compare_digest": staticmethod(compare)}))
    other = format_token("abcdefghij", b"x" * 32)
    assert found.matches(TOKEN)
    assert not found.matches(other)
    assert compared == [(DIGEST, DIGEST), (DIGEST, token_digest(other))]
