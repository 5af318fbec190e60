"""Keys of ServiceAccount tokens: one algorithm, one form of each token, the same key for one authority."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from kedge.errors import Terminal
from kedge.server.http.certificates import Authority
from kedge.server.http.token_keys import FILE, SigningKeys

NOW = datetime(2030, 1, 1, tzinfo=UTC)
CLAIMS = {"sub": "system:serviceaccount:default:default", "exp": 5}


def keys_in(folder: Path) -> SigningKeys:
    folder.mkdir(exist_ok=True)
    return SigningKeys.ensure(folder, Authority.ensure(folder, NOW))


def encoded(part: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def decoded(part: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def test_a_signed_token_has_its_claims_and_names_its_key(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    token = keys.sign(CLAIMS)
    head, body, signature = token.split(".")
    assert decoded(head)["alg"] == "ES256"
    assert decoded(head)["kid"]
    assert decoded(body) == CLAIMS
    assert len(base64.urlsafe_b64decode(signature + "==")) == 64
    assert keys.verify(token) == CLAIMS
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_servers_with_one_authority_accept_each_others_tokens_and_no_others(tmp_path: Path) -> None:
    one = keys_in(tmp_path / "one")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "ca.pem").write_bytes((tmp_path / "one" / "ca.pem").read_bytes())
    token = one.sign(CLAIMS)
    assert keys_in(tmp_path / "two").verify(token) == CLAIMS
    assert keys_in(tmp_path / "other").verify(token) is None
    authority = Authority.ensure(tmp_path / "one", NOW)
    assert b"PRIVATE" in (tmp_path / "one" / FILE).read_bytes()
    assert (tmp_path / "one" / FILE).read_bytes() != authority.own.key_pem, "tokens have a key of their own"


def test_a_key_is_replaced_without_refusing_tokens_of_the_one_before(tmp_path: Path) -> None:
    old = keys_in(tmp_path)
    before = old.sign(CLAIMS)
    newer = tmp_path / "newer"
    keys_in(newer)
    (tmp_path / FILE).write_bytes((newer / FILE).read_bytes() + (tmp_path / FILE).read_bytes())
    both = keys_in(tmp_path)
    assert both.verify(before) == CLAIMS
    assert keys_in(newer).verify(both.sign(CLAIMS)) == CLAIMS, "the first key signs"
    assert old.verify(both.sign(CLAIMS)) is None


def test_no_other_form_of_a_token_is_accepted(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    token = keys.sign(CLAIMS)
    head, body, signature = token.split(".")
    kid = decoded(head)["kid"]
    changed = encoded({**CLAIMS, "sub": "system:serviceaccount:kube-system:admin"})
    forged = [
        f"{head}.{changed}.{signature}",
        f"{encoded({'alg': 'none', 'kid': kid})}.{body}.",
        f"{encoded({'alg': 'HS256', 'kid': kid})}.{body}.{signature}",
        f"{encoded({'alg': 'ES256', 'kid': 'another'})}.{body}.{signature}",
        f"{encoded({'alg': 'ES256', 'kid': [kid]})}.{body}.{signature}",
        f"{encoded([])}.{body}.{signature}",
        f"{head}.{body}.{signature[:-2]}",
        f"{head}.{body}.{'A' * 86}",
        f"{head}.{body}.{signature}==",
        f"{head}.{body}.{signature}.{signature}",
        f"{head}.{body}.{signature} ",
        "..",
        "",
        "ä.ö.ü",
        f"{head}.{'A' * 10_000}.{signature}",
    ]
    last = signature[-1]
    twin = chr(ord(last) + 1) if last not in "Zz9" else chr(ord(last) - 1)
    forged.append(f"{head}.{body}.{signature[:-1]}{twin}")  # unused bits of the last character
    assert [each for each in forged if keys.verify(each) is not None] == []
    assert keys.verify(token) == CLAIMS


def test_a_token_signed_by_another_key_is_refused_even_with_our_key_id(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    stranger = SigningKeys([ec.generate_private_key(ec.SECP256R1())])
    head = keys.sign(CLAIMS).split(".")[0]
    _, body, signature = stranger.sign(CLAIMS).split(".")
    assert keys.verify(f"{head}.{body}.{signature}") is None


@pytest.mark.parametrize("text", [b"", b"nonsense", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_damaged_file_of_keys_is_not_replaced_silently(tmp_path: Path, text: bytes) -> None:
    (tmp_path / FILE).write_bytes(text)
    with pytest.raises(Terminal, match="restore it or move it away"):
        keys_in(tmp_path)
    assert (tmp_path / FILE).read_bytes() == text


def test_a_token_with_deep_brackets_is_not_known(tmp_path: Path) -> None:
    deep = base64.urlsafe_b64encode(b"[" * 1_500 + b"]" * 1_500).rstrip(b"=").decode()
    assert keys_in(tmp_path).verify(f"{deep}.{encoded({})}.AAAA") is None
