"""The record of encryption keys in the store: which key writes, and which keys the stored values may need. Pure.

Servers on one store agree through it: a server whose key file lacks one of these keys, or has another key of the same
name, does not start; on etcd each write of an encrypted kind checks that the record has not moved.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kedge.api.wellknown import ENCRYPTION_KEYS_KIND
from kedge.errors import Misconfigured
from kedge.keys import Key
from kedge.store.encryption.key_file import IDENTITY, KeyFile

RECORD_KEY: Final = Key(ENCRYPTION_KEYS_KIND, "", "keys")
"""An internal key, not an object of the API."""


class KeyRecord(msgspec.Struct, frozen=True):
    """Which keys a store needs."""

    writer: str
    keys: dict[str, str]
    """Fingerprints of all keys that stored values may be encrypted with, by name; empty for `identity`."""
    kinds: tuple[str, ...]
    """Kinds that are written with `writer`."""
    rotated_kinds: tuple[str, ...] = ()
    """Kinds that may have values of any of the keys: a rotation writes them again."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, stored: bytes) -> KeyRecord:
        return msgspec.json.decode(stored, type=cls)

    @property
    def named(self) -> str:
        return ", ".join(name for name in self.keys if name != IDENTITY)


def plan_start(record: KeyRecord | None, file: KeyFile, *, new: bool) -> KeyRecord | None:
    """The record for a server that starts with `file`; None if it needs none. Raises `Misconfigured`."""
    if record is None and not file.source:
        return None
    if record is None:
        record = KeyRecord(IDENTITY, {}, ())
    if file.source and not new and file.kinds - set(record.kinds):
        # A kind that was not encrypted so far has values in clear, in history at least.
        record = msgspec.structs.replace(record, keys={**record.keys, IDENTITY: ""})
    check_keys(record, file)
    if not file.source:
        return record  # only `identity` is left in it
    writer, kinds = file.writer, tuple(sorted(file.kinds))
    keys = {**record.keys, writer.name: writer.fingerprint}
    return KeyRecord(writer.name, keys, kinds, tuple(sorted({*kinds, *record.rotated_kinds})))


def rotated(file: KeyFile) -> KeyRecord:
    """The record after every value was written again with the first key of `file`."""
    kinds = tuple(sorted(file.kinds))
    return KeyRecord(file.writer.name, {file.writer.name: file.writer.fingerprint}, kinds, kinds)


def check_keys(record: KeyRecord, file: KeyFile) -> None:
    """Raise `Misconfigured` unless `file` has every key that the store needs."""
    for name, fingerprint in record.keys.items():
        found = file.find(name)
        if found is None and not file.source:
            raise Misconfigured(
                f"the store has values encrypted with {record.named}: pass --encryption-keys FILE with these keys"
            )
        if found is None and name == IDENTITY:
            raise Misconfigured(
                f"the store was used without encryption, and {file.source} has no entry {IDENTITY}: add it last, start,"
                " run `kedge secrets rotate`, and remove it"
            )
        if found is None:
            raise Misconfigured(
                f"the store has values encrypted with key {name}, which {file.source} does not have: add that key; it"
                " can go after `kedge secrets rotate`"
            )
        if found.fingerprint != fingerprint:
            raise Misconfigured(
                f"key {name} of {file.source} is not the key {name} of the store (fingerprint {found.fingerprint}, not"
                f" {fingerprint}): put the right one there, or name the new key differently"
            )
