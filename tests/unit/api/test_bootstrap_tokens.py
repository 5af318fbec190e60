"""Bootstrap tokens: Secrets of Kubernetes' type, without the secret part in plain text."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest

from kedge.api.bootstrap_tokens import bootstrap_secret, hash_token_secret
from kedge.api.tokens import parse_token_secret, token_id, token_key

TOKEN = "abcdef.0123456789abcdef"
EXPIRES = datetime(2030, 1, 1, tzinfo=UTC)
GROUP = "system:bootstrappers:kedge:agent"


def secret(**changes: str) -> dict[str, Any]:
    body = bootstrap_secret(TOKEN, [GROUP], EXPIRES, "")
    encoded = {name.replace("_", "-"): base64.b64encode(text.encode()).decode() for name, text in changes.items()}
    return {**body, "data": {**body["data"], **encoded}}


def test_a_token_is_found_by_its_id_and_matched_by_its_hash() -> None:
    assert token_id(TOKEN) == "abcdef"
    assert token_key("abcdef").name == "bootstrap-token-abcdef"
    found = parse_token_secret(secret())
    assert found is not None
    assert (found.user, found.groups, found.expires) == (
        "system:bootstrap:abcdef", ("system:bootstrappers", GROUP), EXPIRES,
    )  # fmt: skip
    assert found.matches(TOKEN)
    assert not found.matches("abcdef.0123456789abcdee")
    assert "0123456789abcdef" not in str(secret())


@pytest.mark.parametrize(
    "changes",
    [
        {"usage_bootstrap_authentication": "false"},
        {"auth_extra_groups": "system:masters"},
        {"auth_extra_groups": f"{GROUP},system:bootstrappersx"},
        {"token_id": "fedcba"},
        {"expiration": "soon"},
    ],
)
def test_a_secret_that_names_other_groups_or_uses_is_no_token(changes: dict[str, str]) -> None:
    assert parse_token_secret(secret(**changes)) is None


def test_a_secret_part_that_was_sent_in_plain_text_is_replaced_by_its_hash() -> None:
    body = secret()
    plain = {
        "token-id": base64.b64encode(b"abcdef").decode(),
        "token-secret": base64.b64encode(b"0123456789abcdef").decode(),
        "usage-bootstrap-authentication": base64.b64encode(b"true").decode(),
    }
    sent = {**body, "data": plain}
    assert hash_token_secret(sent)
    assert "token-secret" not in sent["data"]
    found = parse_token_secret(sent)
    assert found is not None
    assert found.matches(TOKEN)
    assert not hash_token_secret(sent)
    assert not hash_token_secret({"type": "Opaque", "data": plain})
