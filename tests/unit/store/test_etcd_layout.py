"""The format of keys, values and revisions in etcd."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kedge.keys import Key, Origin
from kedge.store.contract import RESTORE_BUMP
from kedge.store.etcd.layout import (
    NEVER,
    Era,
    EtcdCommit,
    Layout,
    Meta,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

# Few characters, near the separator and the escape, so that one part is often a prefix of another.
PARTS = st.text(alphabet=st.sampled_from('\x01 !"#-.0aZ~é\U0001f680'), max_size=4) | st.text(
    alphabet=st.characters(exclude_categories=["Cs"]), max_size=6
)
KEYS = st.builds(Key, PARTS.filter(bool), PARTS, PARTS.filter(bool))
ORIGINS = st.builds(Origin, st.text(), st.text())


@given(KEYS)
def test_a_key_survives_encoding(key: Key) -> None:
    assert decode_key(encode_key(key)) == key


@given(KEYS, KEYS)
def test_bytes_sort_as_keys_do(one: Key, other: Key) -> None:
    assert (encode_key(one) < encode_key(other)) == (one < other)


@given(KEYS, KEYS)
def test_a_range_holds_its_kind_and_namespace_and_nothing_else(key: Key, other: Key) -> None:
    layout = Layout("/kedge")
    for namespace in ("", key.namespace):
        start, end = layout.range(key.kind, namespace)
        inside = other.kind == key.kind and (not namespace or other.namespace == namespace)
        assert (start <= layout.key(other) < end) == inside
    assert layout.objects <= layout.key(other) < layout.objects_end
    assert layout.start <= layout.key(other) < layout.end


def test_ordinary_keys_are_readable() -> None:
    assert Layout("/kedge").key(Key("Pod", "default", "web-1")) == b"/kedge/objects/Pod!default!web-1"
    assert Layout("/kedge/").key(Key("Node", "", "n1")) == b"/kedge/objects/Node!!n1"


@given(st.binary(), ORIGINS)
def test_a_value_and_its_origin_survive_encoding(value: bytes, origin: Origin) -> None:
    assert decode_value(encode_value(value, origin)) == (value, origin)


@given(st.integers(0, 120), ORIGINS)
def test_a_commit_record_survives_encoding(changes: int, origin: Origin) -> None:
    assert EtcdCommit.decode(EtcdCommit(changes, origin).encode()) == EtcdCommit(changes, origin)


@given(st.lists(st.integers(1, 50), max_size=3), st.integers(1, 300))
def test_no_two_etcd_revisions_share_a_revision_and_order_is_kept(restores: list[int], etcd_revision: int) -> None:
    meta, since = Meta("first", "c"), 0
    for number, steps in enumerate(restores):
        since += steps
        meta = meta.restored(f"{number}", "c", since=since)
    assert Meta.decode(meta.encode()) == meta
    revision = meta.kedge_revision(etcd_revision)
    assert meta.etcd_revision(revision) == etcd_revision
    assert revision < meta.kedge_revision(etcd_revision + 1)


def test_a_revision_lost_with_a_backup_never_matches_again() -> None:
    meta = Meta("first", "c").restored("second", "d", since=10)
    assert meta.eras == (Era(0, 0), Era(10, RESTORE_BUMP))
    assert meta.kedge_revision(9) == 9
    assert meta.kedge_revision(10) == RESTORE_BUMP + 10
    assert meta.etcd_revision(9) == 9
    for lost in (0, 10, 11, 5_000, RESTORE_BUMP + 9):
        assert meta.etcd_revision(lost) == NEVER
