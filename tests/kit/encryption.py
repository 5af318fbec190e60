"""Planted values and key files, for tests of what is written where."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from pathlib import Path

import yaml

from kedge.env import Env
from kedge.store.encryption import EncryptionKey, KeyFile, ValueCipher

PLANTED = "planted-4f1c-value-that-must-stay-hidden"
"""A value that a test stores in a Secret and looks for afterwards."""


def forms_of(value: str) -> tuple[bytes, ...]:
    """The forms in which a value of a Secret may be found in a file."""
    plain = value.encode()
    # In base64 as a whole, and without the ends that depend on neighbours, were it part of a longer text.
    return plain, base64.b64encode(plain).rstrip(b"=")[:-2]


def files_with(folder: Path, value: str, *, apart_from: Iterable[str] = ()) -> list[Path]:
    """The files below `folder` that have the value in clear."""
    left_out = tuple(apart_from)
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(part in path.as_posix() for part in left_out)
        and any(form in path.read_bytes() for form in forms_of(value))
    ]


def write_keys(path: Path, *names: str, kinds: tuple[str, ...] = ("Secret",), salt: str = "") -> Path:
    """A key file. A key follows from its name and `salt`; `identity` has none."""
    keys = [
        {"name": each, **({} if each == "identity" else {"key": base64.b64encode(_bytes(each + salt)).decode()})}
        for each in names
    ]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        yaml.safe_dump({"kinds": list(kinds), "keys": keys}, opened)
    return path


def _bytes(name: str) -> bytes:
    return (name.encode() * 32)[:32]


def cipher_of(env: Env, *names: str, kinds: tuple[str, ...] = ("Pod", "Secret"), salt: str = "") -> ValueCipher:
    """A cipher with keys that follow from their names."""
    keys = [EncryptionKey(each, b"" if each == "identity" else _bytes(each + salt)) for each in names or ("key-1",)]
    return ValueCipher(env, KeyFile("keys.yaml", tuple(keys), frozenset(kinds)))
