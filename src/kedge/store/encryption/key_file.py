"""The file of encryption keys: named keys of 32 bytes, the first of which writes, and the kinds that are encrypted.

    kinds: [Secret]
    keys:
    - name: key-1
      key: <32 bytes in base64>
    - name: identity

The entry `identity` has no key: it stands for values in clear. Errors name the file, never the content of a key.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import yaml

from kedge.api.kinds import KINDS
from kedge.api.wellknown import SECRET_KIND
from kedge.errors import Misconfigured, NotFound

IDENTITY: Final = "identity"
"""The name of the entry for values in clear."""
KEY_BYTES: Final = 32
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")
_FINGERPRINT_LABEL: Final = b"kedge encryption key fingerprint 1"


@dataclass(frozen=True)
class EncryptionKey:
    """One key. Its secret is not in its text form."""

    name: str
    secret: bytes = field(repr=False, default=b"")
    """Empty for `identity`."""

    @cached_property
    def fingerprint(self) -> str:
        """Distinguishes keys without showing them; empty for `identity`."""
        return hmac.digest(self.secret, _FINGERPRINT_LABEL, "sha256")[:8].hex() if self.secret else ""


@dataclass(frozen=True)
class KeyFile:
    """The content of a key file."""

    source: str
    """The file's path, for messages."""
    keys: tuple[EncryptionKey, ...]
    kinds: frozenset[str] = frozenset({SECRET_KIND})
    """Kinds whose values are encrypted, as `Key.kind` has them."""

    @property
    def writer(self) -> EncryptionKey:
        return self.keys[0]

    def find(self, name: str) -> EncryptionKey | None:
        return next((each for each in self.keys if each.name == name), None)


NO_KEY_FILE: Final = KeyFile("", (EncryptionKey(IDENTITY),))
"""For a server without a key file: it reads and writes values in clear."""


def read_key_file(path: Path) -> KeyFile:
    """
    Raises:
        Misconfigured: it cannot be read, other users can read it, or it is not a key file.
    """
    try:
        with path.open("rb") as opened:
            if os.fstat(opened.fileno()).st_mode & 0o007:
                raise Misconfigured(f"{path} can be read by every user of this machine: chmod 600 {path}")
            document = yaml.safe_load(opened.read())
    except OSError as error:
        raise Misconfigured(
            f"{path} cannot be read ({error.strerror}): pass the file with the encryption keys"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError):
        # No cause: its message quotes the file.
        raise Misconfigured(f"{path} is not YAML: make one with `kedge secrets add-key {path}`") from None
    return _parse(str(path), document)


def add_key(path: Path, name: str, new_bytes: Callable[[int], bytes]) -> EncryptionKey:
    """Put a new key first in the file, or make the file. Never leaves half a file.

    Raises:
        Misconfigured: the file has a key of this name, or is not a key file.
    """
    known = read_key_file(path) if path.exists() else None
    if not _NAME.fullmatch(name) or name == IDENTITY:
        raise Misconfigured(f"{name!r} cannot name a key: use small letters, digits, '-' and '.'")
    if known is not None and known.find(name) is not None:
        raise Misconfigured(f"{path} has a key {name} already: choose another name")
    made = EncryptionKey(name, new_bytes(KEY_BYTES))
    keys = [made, *(known.keys if known is not None else ())]
    kinds = sorted(known.kinds if known is not None else {SECRET_KIND})
    document = {"kinds": kinds, "keys": [_entry(each) for each in keys]}
    draft = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            yaml.safe_dump(document, opened, sort_keys=False)
            opened.flush()
            os.fsync(opened.fileno())
        draft.rename(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise Misconfigured(f"{path} cannot be written ({error.strerror}): choose another folder") from error
    return made


def _entry(key: EncryptionKey) -> dict[str, str]:
    return {"name": key.name, **({"key": base64.b64encode(key.secret).decode()} if key.secret else {})}


def _parse(source: str, document: Any) -> KeyFile:
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list) or not document["keys"]:
        raise Misconfigured(f"{source} has no list `keys`: make one with `kedge secrets add-key {source}`")
    if unknown := sorted(map(str, document.keys() - {"keys", "kinds"})):
        raise Misconfigured(f"{source} has unknown fields {', '.join(unknown)}: it may have `keys` and `kinds`")
    keys = tuple(_key(source, place, each) for place, each in enumerate(document["keys"], 1))
    names = [each.name for each in keys]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Misconfigured(f"{source} has the key {twice} twice: remove one")
    return KeyFile(source, keys, _kinds(source, document.get("kinds", [SECRET_KIND])))


def _key(source: str, place: int, entry: Any) -> EncryptionKey:
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Misconfigured(f"{source}: key {place} has no name of small letters, digits, '-' and '.': name it")
    if unknown := sorted(map(str, entry.keys() - {"name", "key"})):
        raise Misconfigured(f"{source}: key {name} has unknown fields {', '.join(unknown)}: remove them")
    if name == IDENTITY:
        if "key" in entry:
            raise Misconfigured(f"{source}: {IDENTITY} stands for values in clear and has no key: remove it there")
        return EncryptionKey(IDENTITY)
    try:
        secret = base64.b64decode(str(entry.get("key", "")).encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        secret = b""
    if len(secret) != KEY_BYTES:
        raise Misconfigured(f"{source}: key {name} is not {KEY_BYTES} bytes in base64: correct it")
    return EncryptionKey(name, secret)


def _kinds(source: str, listed: Any) -> frozenset[str]:
    if not isinstance(listed, Iterable) or isinstance(listed, str) or not all(isinstance(each, str) for each in listed):
        raise Misconfigured(f"{source}: `kinds` is not a list of kinds such as [{SECRET_KIND}, ConfigMap]: correct it")
    kinds = frozenset(listed)
    for each in sorted(kinds):
        try:
            KINDS.of_key_kind(each)
        except NotFound as error:
            raise Misconfigured(
                f"{source}: there is no kind {each}: name kinds as Secret, ConfigMap or Deployment.apps"
            ) from error
    if SECRET_KIND not in kinds:
        raise Misconfigured(f"{source}: `kinds` lacks {SECRET_KIND}: add it")
    return kinds
