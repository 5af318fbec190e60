"""The cipher of stored values: backends encrypt with it what they write to disk or send, and decrypt what they read.

    kedge:sealed:1:<key name>:<fingerprint>:<nonce of 12 bytes><AES-256-GCM of the value>

The object's key is associated data, so a value that is moved to another object does not decrypt. A cipher keeps no
values. It agrees with the store on keys through `key_record`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kedge.env import Env
from kedge.errors import Conflict, Misconfigured
from kedge.keys import NO_REVISION, Fence, Key, Origin, Revision
from kedge.store.contract import Absent, AtRevision, Check, Entry, Put, Store, Write
from kedge.store.encryption.key_file import IDENTITY, NO_KEY_FILE, EncryptionKey, KeyFile
from kedge.store.encryption.key_record import RECORD_KEY, KeyRecord, check_keys, plan_start

MARK: Final = b"kedge:sealed:1:"
"""The first bytes of an encrypted value. A value in clear is a JSON object and begins with a brace."""
NONCE_BYTES: Final = 12
_ATTEMPTS_MAX = 4
"""How often a write is repeated because another server has put another key first meanwhile."""

Commit = Callable[[Sequence[Check], Sequence[Write], Fence | None, Origin], Awaitable[Revision]]


class ValueCipher:
    """Encrypts values of the kinds that the key file names. `start` it on the open store before the first write."""

    def __init__(self, env: Env, file: KeyFile = NO_KEY_FILE) -> None:
        self._env = env
        self._file = file
        self._ciphers: dict[str, AESGCM] = {}
        self._writer = file.writer
        self._recorded = NO_REVISION
        """The revision of the record of keys that `_writer` is from."""
        self.sealed_kinds: frozenset[str] = frozenset()
        """Kinds that are written encrypted; empty while the writer is `identity`."""
        self.kinds = file.kinds
        self._sealed = env.metrics.counter(
            "kedge_store_encrypted_values_total", "Values that were encrypted, by name of the key", ("key",)
        )
        self._use(file.writer, file.kinds)

    @property
    def writer(self) -> EncryptionKey:
        return self._writer

    @property
    def file(self) -> KeyFile:
        return self._file

    # -- values ------------------------------------------------------------------------------------

    def seal(self, key: Key, value: bytes) -> bytes:
        """The stored form of a value. Only kinds in `sealed_kinds` need it."""
        if key.kind not in self.sealed_kinds:
            return value
        writer, nonce = self._writer, self._env.secret_bytes(NONCE_BYTES)
        self._sealed.labels(writer.name).inc()
        head = b"%s%s:%s:" % (MARK, writer.name.encode(), writer.fingerprint.encode())
        return head + nonce + self._cipher_of(writer).encrypt(nonce, value, _associated(head, key))

    def open(self, key: Key, stored: bytes) -> bytes:
        """The value of a stored form.

        Raises:
            Misconfigured: its key is missing or another one, or the value was altered, or is in clear unexpectedly.
        """
        if not stored.startswith(MARK):
            if key.kind in self.kinds and self._file.find(IDENTITY) is None:
                raise Misconfigured(
                    f"{key} is in clear, and {self._file.source} has no entry {IDENTITY}: add it last, start, and run"
                    " `kedge secrets rotate`",
                    key=key,
                )
            return stored
        name, _, rest = stored[len(MARK) :].partition(b":")
        fingerprint, _, sealed = rest.partition(b":")
        used = EncryptedWith(key, name.decode("latin-1"), fingerprint.decode("latin-1"))
        head = stored[: len(stored) - len(sealed)]
        cipher = self._cipher_of(used.key_in(self._file))
        try:
            return cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _associated(head, key))
        except (InvalidTag, ValueError) as error:
            raise Misconfigured(
                f"{key} does not decrypt with its key {used.name}: the stored value was altered, or moved from another"
                " object; restore it from a backup",
                key=key,
            ) from error

    def seal_entries(self, entries: Iterable[Entry]) -> list[Entry]:
        """The entries with the stored forms of their values: for copies of a store."""
        kinds = self.sealed_kinds
        return [
            each
            if each.key.kind not in kinds
            else Entry(each.key, self.seal(each.key, each.value), each.created, each.modified, each.origin)
            for each in entries
        ]

    # -- agreement with the store ------------------------------------------------------------------

    async def start(self, store: Store) -> None:
        """Check the keys against the record in the store, and record the key that writes.

        Raises:
            Misconfigured: a key that the store needs is missing or another one. The message names it.
        """
        await self._agree(store, self._file)

    async def use_file(self, store: Store, file: KeyFile) -> None:
        """Continue with another key file. Raises as `start`, and keeps the old one then."""
        old = self._file
        self._file = KeyFile(file.source, (*file.keys, *(each for each in old.keys if not file.find(each.name))))
        try:
            await self._agree(store, file)
        except BaseException:
            self._file = old
            raise
        self._file, self.kinds = file, file.kinds

    async def follow(self, store: Store) -> None:
        """Adopt the record of keys, which another server has changed. Raises `Misconfigured`."""
        record, self._recorded = await read_record(store)
        if record is None:
            self._use(self._file.writer, self._file.kinds)
            return
        check_keys(record, self._file)
        writer = self._file.find(record.writer)
        if writer is None:
            raise Misconfigured(f"the store's values are written with {record.writer}: add it to {self._file.source}")
        self._use(writer, frozenset(record.kinds))

    async def commit(
        self,
        store: Store,
        commit: Commit,
        checks: Sequence[Check],
        writes: Sequence[Write],
        fence: Fence | None,
        origin: Origin,
    ) -> Revision:
        """Commit values that only a server with the recorded keys may write: the commit checks the record."""
        for attempt in range(_ATTEMPTS_MAX):
            try:
                return await commit((*checks, self._record_check()), writes, fence, origin)
            except Conflict as error:
                if error.key != RECORD_KEY or attempt == _ATTEMPTS_MAX - 1:
                    raise
            await self.follow(store)
        raise AssertionError

    def covers(self, writes: Sequence[Write]) -> bool:
        """Whether a commit writes a value whose encryption the servers must agree on."""
        kinds = self.kinds
        return any(write.key.kind in kinds and isinstance(write, Put) for write in writes)

    # -- private -----------------------------------------------------------------------------------

    def _record_check(self) -> Check:
        return AtRevision(RECORD_KEY, self._recorded) if self._recorded else Absent(RECORD_KEY)

    async def _agree(self, store: Store, file: KeyFile) -> None:
        while True:
            record, revision = await read_record(store)
            # Every store that has served has objects: namespaces at least.
            planned = plan_start(record, file, new=record is None and not store.statistics().objects)
            if planned is not None and planned != record:
                check = AtRevision(RECORD_KEY, revision) if record is not None else Absent(RECORD_KEY)
                try:
                    revision = await store.commit([check], [Put(RECORD_KEY, planned.encode())])
                except Conflict:
                    continue  # another server was faster
            self._recorded = revision
            self._use(file.writer, frozenset(planned.kinds) if planned is not None else file.kinds)
            return

    def _use(self, writer: EncryptionKey, kinds: frozenset[str]) -> None:
        self._writer, self.kinds = writer, kinds
        self.sealed_kinds = kinds if writer.secret else frozenset()

    def _cipher_of(self, key: EncryptionKey) -> AESGCM:
        found = self._ciphers.get(key.fingerprint)
        if found is None:
            found = self._ciphers[key.fingerprint] = AESGCM(key.secret)
        return found


class EncryptedWith:
    """The key that encrypted one value, by name and fingerprint."""

    def __init__(self, key: Key, name: str, fingerprint: str) -> None:
        self._key = key
        self.name = name
        self._fingerprint = fingerprint

    def key_in(self, file: KeyFile) -> EncryptionKey:
        found = file.find(self.name)
        if found is not None and found.fingerprint == self._fingerprint:
            return found
        if not file.source:
            why = f"is encrypted with key {self.name}: pass --encryption-keys FILE with that key"
        elif found is None:
            why = f"is encrypted with key {self.name}, which {file.source} does not have: add that key"
        else:
            why = (
                f"is encrypted with another key {self.name} than {file.source} has (fingerprint {self._fingerprint},"
                f" not {found.fingerprint}): put the right one there"
            )
        raise Misconfigured(f"{self._key} {why}", key=self._key)


async def read_record(store: Store) -> tuple[KeyRecord | None, Revision]:
    """The record of keys, and its revision."""
    (entry,) = (await store.get([RECORD_KEY])).entries
    return (KeyRecord.decode(entry.value), entry.modified) if entry is not None else (None, NO_REVISION)


def _associated(head: bytes, key: Key) -> bytes:
    """The object that a value belongs to, and the key that it is encrypted with. No part of a key contains NUL."""
    return head + "\0".join(key).encode()
