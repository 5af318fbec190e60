"""A commit as one etcd transaction."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.errors import Conflict, Fenced
from kedge.keys import NO_ORIGIN, Fence, Key
from kedge.limits import Limits
from kedge.store.contract import Absent, AtRevision, DeleteKey, Present, Put
from kedge.store.etcd import messages as m
from kedge.store.etcd.layout import Layout, Meta
from kedge.store.etcd.transactions import MetaEntry, explain_failure, plan_commit

LAYOUT = Layout("/kedge")
META_ENTRY = MetaEntry(Meta("i", "c"), 7)
ETCD_OPS_MAX = 128
LEASE = Key("Lease", "ns", "fence")


def key(number: int) -> Key:
    return Key("Pod", "ns", f"{number}")


def test_every_commit_compares_the_meta_key() -> None:
    """Otherwise one opener would use past revisions after another has marked the store as restored."""
    for writes in ([Put(key(1), b"")], []):
        request = plan_commit(LAYOUT, META_ENTRY, [], writes, None, NO_ORIGIN)
        assert m.Compare(target=m.TARGET_MOD, key=LAYOUT.meta, mod_revision=7) in request.compare


def test_the_largest_commit_fits_what_etcd_allows() -> None:
    half = Limits().commit_ops_max // 2
    checks = [AtRevision(key(n), 5) for n in range(half)]
    request = plan_commit(
        LAYOUT, META_ENTRY, checks, [DeleteKey(key(n)) for n in range(half, 2 * half)], Fence(LEASE, 3), NO_ORIGIN
    )
    assert max(len(request.compare), len(request.success), len(request.failure)) <= ETCD_OPS_MAX


def test_no_commit_is_a_read_only_transaction() -> None:
    """A read-only transaction crashes etcd 3.5.0-3.5.4 if its client cancels it."""
    request = plan_commit(LAYOUT, META_ENTRY, [Present(key(1))], [], None, NO_ORIGIN)
    assert any(not op.HasField("request_range") for op in request.success)


def test_a_check_on_an_impossible_revision_is_not_a_check_for_absence() -> None:
    request = plan_commit(LAYOUT, META_ENTRY, [AtRevision(key(1), 0)], [], None, NO_ORIGIN)
    (compare,) = [each for each in request.compare if each.key == LAYOUT.key(key(1))]
    assert compare.mod_revision < 0, "in etcd, revision 0 means that the key is absent"


def failed(meta_revision: int, *found: tuple[Key, int]) -> Any:
    meta = m.KeyValue(key=LAYOUT.meta, mod_revision=meta_revision, value=META_ENTRY.meta.encode())
    kvs = [m.KeyValue(key=LAYOUT.key(each), create_revision=2, mod_revision=revision) for each, revision in found]
    response = m.TxnResponse()
    for kv in (meta, *kvs):
        response.responses.add().response_range.kvs.append(kv)
    return response


def test_a_lost_fence_is_reported_before_a_conflict() -> None:
    response = failed(7, (LEASE, 9), (key(1), 8))
    with pytest.raises(Fenced) as caught:
        explain_failure(LAYOUT, META_ENTRY, response, [Absent(key(1))], [], Fence(LEASE, 3))
    assert caught.value.revision == 9
    with pytest.raises(Conflict) as conflict:
        explain_failure(LAYOUT, META_ENTRY, response, [Absent(key(1))], [], Fence(LEASE, 9))
    assert (conflict.value.key, conflict.value.revision) == (key(1), 8)


def test_a_restored_store_is_reported_before_anything_else() -> None:
    moved = explain_failure(LAYOUT, META_ENTRY, failed(11, (key(1), 8)), [Absent(key(1))], [], None)
    assert moved == MetaEntry(META_ENTRY.meta, 11)
