"""The format of keys and values in etcd. Pure; readable with `etcdctl get --prefix /kedge/`.

Objects are at `<prefix>/objects/<kind>!<namespace>!<name>`, a form whose byte order is the order of `Key`. A value is
one line with its origin (empty if it has none), followed by the object's own bytes.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from kedge.errors import Misconfigured
from kedge.keys import NO_ORIGIN, Key, Origin, Revision
from kedge.store.contract import RESTORE_BUMP, Entry
from kedge.store.encryption import ValueCipher

NEVER = -1
"""A revision that no key has. Not 0, which to etcd means that the key is absent."""

# `!` sorts below every character of names. A character at or below it, or the escape itself, is written as the escape
# and a second character in the same order, so that no name can break the order of keys.
_SEPARATOR, _ESCAPE, _SHIFT = "!", '"', 0x30
_AFTER_SEPARATOR = b'"'
_UNSAFE = re.compile(r'[\x00-"]')
_ESCAPED = re.compile(r'"(.)', re.DOTALL)


def encode_key(key: Key) -> bytes:
    """The part of an etcd key that names the object."""
    return _SEPARATOR.join([_escaped(part) for part in key]).encode()


def decode_key(encoded: bytes) -> Key:
    kind, namespace, name = encoded.decode().split(_SEPARATOR)
    return Key(_plain(kind), _plain(namespace), _plain(name))


def _escaped(part: str) -> str:
    return _UNSAFE.sub(lambda found: _ESCAPE + chr(ord(found[0]) + _SHIFT), part) if _UNSAFE.search(part) else part


def _plain(part: str) -> str:
    return _ESCAPED.sub(lambda found: chr(ord(found[1]) - _SHIFT), part) if _ESCAPE in part else part


def encode_value(value: bytes, origin: Origin) -> bytes:
    return _origin_line(origin) + value


def _origin_line(origin: Origin) -> bytes:
    return msgspec.json.encode(origin) + b"\n" if origin != NO_ORIGIN else b"\n"


def decode_value(stored: bytes) -> tuple[bytes, Origin]:
    end = stored.index(b"\n")  # JSON on one line contains no newline
    return stored[end + 1 :], _decode_origin(stored[:end]) if end else NO_ORIGIN


_decode_origin = msgspec.json.Decoder(Origin).decode
"""Origins of before, without callers or groups, are shorter."""


class EtcdCommit(NamedTuple):
    """The value that every commit writes at `Layout.record`: the etcd version of that key counts commits.

    With it a reader of etcd's watch can prove that it missed nothing, which etcd does not guarantee on every release
    (etcd#17529, etcd#18089).
    """

    changes: int
    origin: Origin = NO_ORIGIN

    def encode(self) -> bytes:
        return msgspec.json.encode((self.changes, *self.origin))

    @classmethod
    def decode(cls, stored: bytes) -> EtcdCommit:
        changes, *origin = msgspec.json.decode(stored)
        return cls(changes, msgspec.convert(origin, Origin))


def cluster_of(header: Any) -> str:
    """etcd's id of the cluster, from the header of a reply."""
    return f"{header.cluster_id:x}"


def commits_in(record: Any) -> int:
    """The number of commits, from a range of the commit record."""
    return record.kvs[0].version if record.kvs else 0


class Era(NamedTuple):
    """From etcd revision `since` on, a kedge revision is etcd's plus `offset`."""

    since: int
    offset: Revision


class Meta(msgspec.Struct, frozen=True):
    """The identity of a store: written once, and again when a backup was restored."""

    incarnation: str
    cluster: str
    """etcd's id of the cluster, in hexadecimal: another id means a restored backup."""
    eras: tuple[Era, ...] = (Era(0, 0),)
    """Oldest first, one more for each restored backup: objects keep their revisions, and no revision is used twice."""
    restoring: bool = False
    """A backup is being written here, or its writer was killed: not yet a store."""

    @property
    def offset(self) -> Revision:
        return self.eras[-1].offset

    def kedge_revision(self, etcd_revision: int) -> Revision:
        for era in reversed(self.eras):
            if etcd_revision >= era.since:
                return etcd_revision + era.offset
        return etcd_revision

    def etcd_revision(self, revision: Revision) -> int:
        """The etcd revision of `revision`, or `NEVER`."""
        etcd_revision = revision - self.offset
        for era in reversed(self.eras):
            etcd_revision = revision - era.offset
            if etcd_revision >= era.since:
                break
        return etcd_revision if etcd_revision > 0 and self.kedge_revision(etcd_revision) == revision else NEVER

    def restored(self, incarnation: str, cluster: str, *, since: int) -> Meta:
        return Meta(incarnation, cluster, (*self.eras, Era(since, self.offset + RESTORE_BUMP)))

    def check_finished(self, prefix: bytes) -> None:
        """Raise `Misconfigured` if a restore to this prefix was begun and not finished."""
        if self.restoring:
            raise Misconfigured(f"a restore to {prefix.decode()} is not finished: run it again first")

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, stored: bytes) -> Meta:
        return msgspec.json.decode(stored, type=cls)


class Layout:
    """The keys under one prefix."""

    def __init__(self, prefix: str, cipher: ValueCipher | None = None) -> None:
        """`cipher` encrypts values in etcd; without one they are taken as they are."""
        self._cipher = cipher
        base = prefix.rstrip("/").encode()
        self.start, self.end = base + b"/", base + b"0"  # `0` follows `/`: the range is the whole prefix
        self.objects, self.objects_end = base + b"/objects/", base + b"/objects0"
        self.meta = base + b"/meta"
        self.record = base + b"/commit"
        self.compaction = base + b"/compaction"
        self.nothing = base + b"/nothing"  # never written

    def key(self, key: Key) -> bytes:
        return self.objects + encode_key(key)

    def parse(self, stored: bytes) -> Key:
        return decode_key(stored[len(self.objects) :])

    def range(self, kind: str, namespace: str = "") -> tuple[bytes, bytes]:
        """First key and end of a kind, or of one namespace of it."""
        stem = self.objects + _SEPARATOR.join([_escaped(part) for part in filter(None, (kind, namespace))]).encode()
        return stem + _SEPARATOR.encode(), stem + _AFTER_SEPARATOR

    def entry(self, kv: Any, meta: Meta) -> Entry:
        """The object version in etcd's `KeyValue`."""
        found = self.stored_entry(kv, meta)
        if self._cipher is None or not kv.value:
            return found
        value = self._cipher.open(found.key, found.value)
        return found if value is found.value else Entry(found.key, value, found.created, found.modified, found.origin)

    def stored_entry(self, kv: Any, meta: Meta) -> Entry:
        """The object version with its value as etcd has it."""
        value, origin = decode_value(kv.value) if kv.value else (b"", NO_ORIGIN)
        created, modified = meta.kedge_revision(kv.create_revision), meta.kedge_revision(kv.mod_revision)
        return Entry(self.parse(kv.key), value, created, modified, origin)

    def value(self, key: Key, value: bytes, origin: Origin) -> bytes:
        """The form of a value in etcd."""
        if self._cipher is not None and key.kind in self._cipher.sealed_kinds:
            value = self._cipher.seal(key, value)
        return encode_value(value, origin)
