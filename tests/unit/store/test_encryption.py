"""Encryption of stored values: what is in files, which keys are needed, and what a rotation leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml
from tests.kit.encryption import PLANTED, cipher_of, files_with, write_keys
from tests.objects import make_env

from kedge.env import system_env
from kedge.errors import Misconfigured
from kedge.keys import NO_ORIGIN, Key
from kedge.limits import Limits
from kedge.store.backup import encode_backup, read_backup, write_backup_file
from kedge.store.contract import AtRevision, DeleteKey, Put
from kedge.store.encryption import ValueCipher, add_key, read_key_file, rotate
from kedge.store.sqlite import SqliteStore

SECRET, OTHER, MAP = (
    Key("Secret", "default", "one"),
    Key("Secret", "default", "two"),
    Key("ConfigMap", "default", "one"),
)
VALUE = b'{"data":"' + PLANTED.encode() + b'"}'


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await work()

    asyncio.run(main())


async def opened(folder: Path, cipher: ValueCipher | None, name: str = "kedge.db") -> SqliteStore:
    store = await SqliteStore.open(folder / name, system_env(), cipher=cipher)
    if cipher is not None:
        try:
            await cipher.start(store)
        except BaseException:
            await store.close()
            raise
    return store


def keys(*names: str, salt: str = "", kinds: tuple[str, ...] = ("Secret",)) -> ValueCipher:
    return cipher_of(system_env(), *names, kinds=kinds, salt=salt)


# -- values --------------------------------------------------------------------------------------------


def test_a_value_comes_back_and_no_two_stored_forms_are_alike() -> None:
    cipher = keys("key-1")
    first, second = cipher.seal(SECRET, VALUE), cipher.seal(SECRET, VALUE)
    assert cipher.open(SECRET, first) == cipher.open(SECRET, second) == VALUE
    assert first != second
    assert PLANTED.encode() not in first


def test_nonces_come_from_the_environment() -> None:
    """In simulation a run is a function of its seed: nonces of equal seeds are equal."""
    env, same = make_env(seed=7), make_env(seed=7)
    forms = [cipher_of(each, kinds=("Secret",)).seal(SECRET, VALUE) for each in (env, same)]
    assert forms[0] == forms[1]


def test_a_kind_that_is_not_named_is_left_alone() -> None:
    assert keys("key-1").seal(MAP, VALUE) is VALUE
    assert keys("key-1").open(MAP, VALUE) is VALUE
    assert keys("key-1", kinds=("Secret", "ConfigMap")).seal(MAP, VALUE) != VALUE


@pytest.mark.parametrize(
    "place", [Key("Secret", "default", "two"), Key("Secret", "other", "one"), Key("ConfigMap", "default", "one")]
)
def test_a_value_that_was_moved_to_another_object_does_not_decrypt(place: Key) -> None:
    cipher = keys("key-1", kinds=("Secret", "ConfigMap"))
    with pytest.raises(Misconfigured, match=f"{place.name}.*moved from another object"):
        cipher.open(place, cipher.seal(SECRET, VALUE))


def test_an_altered_value_does_not_decrypt() -> None:
    cipher = keys("key-1")
    stored = bytearray(cipher.seal(SECRET, VALUE))
    stored[-1] ^= 1
    with pytest.raises(Misconfigured, match="altered"):
        cipher.open(SECRET, bytes(stored))


def test_a_value_in_clear_is_no_longer_read_once_identity_is_removed() -> None:
    """Otherwise a writer of the file could put a Secret of its own in place of an encrypted one."""
    assert keys("key-1", "identity").open(SECRET, VALUE) == VALUE
    with pytest.raises(Misconfigured, match=r"is in clear.*identity"):
        keys("key-1").open(SECRET, VALUE)


# -- files ---------------------------------------------------------------------------------------------


def test_no_file_of_a_store_has_a_secret_in_clear(tmp_path: Path) -> None:
    """File, write-ahead log, history of versions, and both forms of backups."""

    async def work() -> None:
        store = await opened(tmp_path, keys("key-1"))
        await store.commit([], [Put(SECRET, VALUE), Put(OTHER, VALUE), Put(MAP, b'{"data":"seen"}')])
        await store.commit([], [Put(SECRET, VALUE + b" ")])
        await store.commit([], [DeleteKey(OTHER)])
        await store.backup(tmp_path / "copy.db")
        await write_backup_file(tmp_path / "backup", encode_backup(await store.export(), "now"), lambda _: None)
        assert (tmp_path / "kedge.db-wal").stat().st_size
        assert not files_with(tmp_path, PLANTED)
        assert files_with(tmp_path, "seen")
        assert (await store.get([SECRET])).entries[0].value == VALUE + b" "  # type: ignore[union-attr]
        await store.close()
        assert not files_with(tmp_path, PLANTED)
        again = await opened(tmp_path, keys("key-1"))
        assert (await again.get([SECRET])).entries[0].value == VALUE + b" "  # type: ignore[union-attr]
        await again.close()
        values = [each.value for part in read_backup(tmp_path / "backup") for each in part if each.key == SECRET]
        assert [keys("key-1").open(SECRET, each) for each in values] == [VALUE + b" "]

    run(work)


def test_a_backup_without_the_key_has_the_encrypted_values(tmp_path: Path) -> None:
    """`kedge backup --state` needs no key: it opens the store without a cipher."""

    async def work() -> None:
        store = await opened(tmp_path, keys("key-1"))
        await store.commit([], [Put(SECRET, VALUE)])
        await store.close()
        bare = await opened(tmp_path, None)
        await write_backup_file(tmp_path / "backup", encode_backup(await bare.export(), "now"), lambda _: None)
        await bare.close()
        values = [each.value for part in read_backup(tmp_path / "backup") for each in part if each.key == SECRET]
        assert [keys("key-1").open(SECRET, each) for each in values] == [VALUE]

    run(work)


# -- which keys are needed -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cipher", "message"),
    [
        (lambda: ValueCipher(system_env()), r"key-1.*--encryption-keys"),
        (lambda: keys("key-2"), r"key key-1, which keys.yaml does not have"),
        (lambda: keys("key-1", salt="other"), r"another key key-1 than keys.yaml has \(fingerprint"),
    ],
    ids=["no file", "missing key", "wrong key"],
)
def test_a_store_does_not_open_without_its_keys(
    tmp_path: Path, cipher: Callable[[], ValueCipher], message: str
) -> None:
    async def work() -> None:
        store = await opened(tmp_path, keys("key-1"))
        await store.commit([], [Put(SECRET, VALUE)])
        await store.close()
        with pytest.raises(Misconfigured, match=message):
            await opened(tmp_path, cipher())
        await (await opened(tmp_path, keys("key-1"))).close()  # and it is not left locked

    run(work)


@pytest.mark.parametrize(
    ("cipher", "message"),
    [
        (lambda: ValueCipher(system_env()), r"key-1.*--encryption-keys"),
        (lambda: keys("key-2"), r"key key-1, which keys.yaml does not have"),
        (lambda: keys("key-1", salt="other"), r"key key-1 of keys.yaml is not the key key-1 of the store"),
    ],
    ids=["no file", "missing key", "wrong key"],
)
def test_the_record_names_the_keys_even_without_any_secret(
    tmp_path: Path, cipher: Callable[[], ValueCipher], message: str
) -> None:
    async def work() -> None:
        await (await opened(tmp_path, keys("key-1"))).close()
        with pytest.raises(Misconfigured, match=message):
            await opened(tmp_path, cipher())

    run(work)


# -- rotation ------------------------------------------------------------------------------------------


async def rotated(store: SqliteStore, cipher: ValueCipher) -> tuple[int, tuple[str, ...]]:
    done = await rotate(store, cipher, Limits(), NO_ORIGIN)
    return done.rewritten, done.unneeded


def test_a_new_key_replaces_the_old_one(tmp_path: Path) -> None:
    async def work() -> None:
        store = await opened(tmp_path, keys("key-1"))
        await store.commit([], [Put(SECRET, VALUE), Put(OTHER, VALUE)])
        await store.close()
        cipher = keys("key-2", "key-1")
        store = await opened(tmp_path, cipher)
        before = await store.revision()
        assert await rotated(store, cipher) == (2, ("key-1",))
        assert (await store.get([SECRET])).entries[0].modified > before  # type: ignore[union-attr]
        await store.close()
        store = await opened(tmp_path, keys("key-2"))
        assert (await store.get([SECRET])).entries[0].value == VALUE  # type: ignore[union-attr]
        await store.close()
        with pytest.raises(Misconfigured, match="key-2"):
            await opened(tmp_path, keys("key-1"))

    run(work)


def test_encryption_is_switched_on_and_off_again(tmp_path: Path) -> None:
    async def work() -> None:
        store = await opened(tmp_path, ValueCipher(system_env()))
        await store.commit([], [Put(SECRET, VALUE), Put(OTHER, VALUE)])
        await store.commit([], [DeleteKey(OTHER)])
        await store.close()
        assert files_with(tmp_path, PLANTED), "in clear so far"
        with pytest.raises(Misconfigured, match="identity"):
            await opened(tmp_path, keys("key-1"))
        cipher = keys("key-1", "identity")
        store = await opened(tmp_path, cipher)
        assert await rotated(store, cipher) == (1, ("identity",))
        assert not files_with(tmp_path, PLANTED), "free pages and the log are scrubbed too"
        await store.close()
        store = await opened(tmp_path, keys("key-1"))
        await store.close()
        cipher = keys("identity", "key-1")
        store = await opened(tmp_path, cipher)
        assert await rotated(store, cipher) == (1, ("key-1",))
        await store.close()
        store = await opened(tmp_path, ValueCipher(system_env()))
        assert (await store.get([SECRET])).entries[0].value == VALUE  # type: ignore[union-attr]
        await store.close()

    run(work)


def test_a_store_that_was_plain_needs_identity_even_if_its_secrets_are_deleted(tmp_path: Path) -> None:
    """Its history and free pages still have them, until a rotation scrubs the file."""

    async def work() -> None:
        store = await opened(tmp_path, ValueCipher(system_env()))
        await store.commit([], [Put(SECRET, VALUE), Put(MAP, b"{}")])
        await store.commit([], [DeleteKey(SECRET)])
        await store.compact(await store.revision())
        await store.close()
        with pytest.raises(Misconfigured, match="used without encryption"):
            await opened(tmp_path, keys("key-1"))

    run(work)


def test_a_kind_is_added_and_taken_out_again(tmp_path: Path) -> None:
    async def work() -> None:
        store = await opened(tmp_path, keys("key-1"))
        await store.commit([], [Put(SECRET, VALUE), Put(MAP, VALUE)])
        await store.close()
        both = ("ConfigMap", "Secret")
        with pytest.raises(Misconfigured, match="identity"):
            await opened(tmp_path, keys("key-1", kinds=both))
        cipher = keys("key-1", "identity", kinds=both)
        store = await opened(tmp_path, cipher)
        assert await rotated(store, cipher) == (2, ("identity",))
        await store.close()
        assert not files_with(tmp_path, PLANTED)
        cipher = keys("key-2", "key-1")
        store = await opened(tmp_path, cipher)
        assert await rotated(store, cipher) == (2, ("key-1",))
        await store.close()
        store = await opened(tmp_path, keys("key-2"))
        assert (await store.get([MAP])).entries[0].value == VALUE  # type: ignore[union-attr]
        await store.close()

    run(work)


def test_a_secret_that_changes_during_a_rotation_keeps_its_change(tmp_path: Path) -> None:
    async def work() -> None:
        cipher = keys("key-1")
        store = await opened(tmp_path, cipher)
        revision = await store.commit([], [Put(SECRET, VALUE), Put(OTHER, VALUE)])
        racing = asyncio.gather(
            store.commit([AtRevision(SECRET, revision)], [Put(SECRET, b'{"new":1}')]), rotated(store, cipher)
        )
        await racing
        assert (await store.get([SECRET])).entries[0].value == b'{"new":1}'  # type: ignore[union-attr]
        await store.close()

    run(work)


def test_keys_are_exchanged_while_the_store_serves(tmp_path: Path) -> None:
    """The file is read again on SIGHUP; one that lacks a needed key changes nothing."""

    async def work() -> None:
        cipher = ValueCipher(system_env(), read_key_file(write_keys(tmp_path / "keys", "key-1")))
        store = await opened(tmp_path, cipher)
        await store.commit([], [Put(SECRET, VALUE)])
        with pytest.raises(Misconfigured, match="key-1"):
            await cipher.use_file(store, read_key_file(write_keys(tmp_path / "keys", "key-2")))
        assert cipher.writer.name == "key-1"
        await cipher.use_file(store, read_key_file(write_keys(tmp_path / "keys", "key-2", "key-1")))
        assert await rotated(store, cipher) == (1, ("key-1",))
        await cipher.use_file(store, read_key_file(write_keys(tmp_path / "keys", "key-2")))
        await store.close()
        await (await opened(tmp_path, keys("key-2"))).close()

    run(work)


# -- key files -----------------------------------------------------------------------------------------


def test_a_key_file_is_made_and_gets_further_keys_first(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    add_key(path, "first", lambda size: b"1" * size)
    add_key(path, "second", lambda size: b"2" * size)
    found = read_key_file(path)
    assert [each.name for each in found.keys] == ["second", "first"]
    assert found.writer.secret == b"2" * 32
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(Misconfigured, match="has a key first already"):
        add_key(path, "first", lambda size: b"3" * size)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "no list `keys`"),
        ({"keys": [{"name": "a", "key": "c2hvcnQ="}]}, "key a is not 32 bytes"),
        ({"keys": [{"name": "a", "key": "no base64!"}]}, "key a is not 32 bytes"),
        ({"keys": [{"name": "A B", "key": ""}]}, "key 1 has no name"),
        ({"keys": [{"name": "identity", "key": "c2hvcnQ="}]}, "identity stands for values in clear"),
        ({"keys": [{"name": "identity"}, {"name": "identity"}]}, "identity twice"),
        ({"keys": [{"name": "identity"}], "kinds": ["Secret", "Nothing"]}, "there is no kind Nothing"),
        ({"keys": [{"name": "identity"}], "kinds": ["ConfigMap"]}, "lacks Secret"),
        ({"keys": [{"name": "identity"}], "more": 1}, "unknown fields more"),
    ],
)
def test_a_wrong_key_file_is_refused_with_the_place(tmp_path: Path, document: object, message: str) -> None:
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(Misconfigured, match=message):
        read_key_file(path)


def test_a_key_file_that_every_user_can_read_is_refused(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys", "key-1")
    path.chmod(0o644)
    with pytest.raises(Misconfigured, match="chmod 600"):
        read_key_file(path)


def test_no_error_and_no_text_form_shows_a_key(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys", "key-1")
    found = read_key_file(path)
    assert "key-1key-1" not in repr(found)
    path.write_text("keys: [\n" + PLANTED)
    with pytest.raises(Misconfigured) as refused:
        read_key_file(path)
    assert PLANTED not in f"{refused.value!r} {refused.value.__cause__!r}"
