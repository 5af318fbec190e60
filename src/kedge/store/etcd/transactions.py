"""Commits as etcd transactions. Pure: plans requests and reads their responses, sends nothing.

Every commit compares the store's meta key, so that none is made under an offset that a restored backup has replaced. A
failed commit returns the keys that it compared, so that a conflict costs no second round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kedge.errors import check
from kedge.keys import NO_REVISION, Fence, Key, Origin, Revision
from kedge.store.contract import Absent, AtRevision, Check, DeleteKey, Put, Write
from kedge.store.etcd import messages as m
from kedge.store.etcd.layout import EtcdCommit, Layout, Meta
from kedge.store.versions import Versions


class MetaEntry(NamedTuple):
    """The store's meta key: its value, and the etcd revision at which it was written."""

    meta: Meta
    written: int

    @property
    def floor(self) -> Revision:
        """The oldest revision of a restored store. A store that was never restored has all of etcd's history."""
        return self.written + self.meta.offset if self.meta.offset else NO_REVISION


def plan_commit(
    layout: Layout,
    meta_entry: MetaEntry,
    checks: Sequence[Check],
    writes: Sequence[Write],
    fence: Fence | None,
    origin: Origin,
) -> Any:
    """The transaction for a commit."""
    compares = [_at(layout.meta, meta_entry.written)]
    compared: dict[bytes, None] = {}
    for condition in _conditions(layout, meta_entry.meta, checks, writes, fence):
        compares.append(condition)
        compared[condition.key] = None
    success = [_write_op(layout, write, origin) for write in writes]
    if writes:
        record = EtcdCommit(len(writes), origin).encode()
        success.append(m.RequestOp(request_put=m.PutRequest(key=layout.record, value=record)))
    else:
        # A read-only transaction crashes etcd 3.5.0-3.5.4 if its client cancels it (etcd#14110). This one deletes a key
        # that never exists, so it goes through the log like a write, and changes nothing.
        success.append(m.RequestOp(request_delete_range=m.DeleteRangeRequest(key=layout.nothing)))
    failure = [m.RequestOp(request_range=m.RangeRequest(key=layout.meta))]
    failure += [m.RequestOp(request_range=m.RangeRequest(key=key, keys_only=True)) for key in compared]
    return m.TxnRequest(compare=compares, success=success, failure=failure)


def explain_failure(
    layout: Layout,
    meta_entry: MetaEntry,
    response: Any,
    checks: Sequence[Check],
    writes: Sequence[Write],
    fence: Fence | None,
) -> MetaEntry | None:
    """Raise the `Fenced` or `Conflict` of a failed commit; or return the meta key's new entry."""
    found = [kv for op in response.responses[1:] for kv in op.response_range.kvs]
    entries = [layout.entry(kv, meta_entry.meta) for kv in found]
    moved = meta_entry_in(response.responses[0].response_range)
    if moved == meta_entry:
        Versions(entries).prove(checks, writes, fence)
        check(False, "etcd failed a transaction whose every condition holds")  # noqa: FBT003
    return moved


def plan_meta(layout: Layout, known: MetaEntry | None, meta: Meta) -> Any:
    """Write the meta key, if it is still at `known`."""
    return m.TxnRequest(
        compare=[_at(layout.meta, known.written if known is not None else 0)],
        success=[
            m.RequestOp(request_put=m.PutRequest(key=layout.meta, value=meta.encode())),
            m.RequestOp(request_put=m.PutRequest(key=layout.record, value=EtcdCommit(0).encode())),
        ],
        failure=[m.RequestOp(request_range=m.RangeRequest(key=layout.meta))],
    )


def plan_clear(layout: Layout, meta_entry: MetaEntry) -> Any:
    """Delete every object, if the meta key is still at `meta_entry`."""
    objects = m.DeleteRangeRequest(key=layout.objects, range_end=layout.objects_end)
    return m.TxnRequest(
        compare=[_at(layout.meta, meta_entry.written)], success=[m.RequestOp(request_delete_range=objects)]
    )


def plan_compaction_turn(layout: Layout, known: int) -> Any:
    """Take the turn to compact, if no server has taken it since `known`."""
    return m.TxnRequest(
        compare=[_at(layout.compaction, known)],
        success=[m.RequestOp(request_put=m.PutRequest(key=layout.compaction))],
        failure=[m.RequestOp(request_range=m.RangeRequest(key=layout.compaction))],
    )


def meta_entry_in(range_response: Any) -> MetaEntry | None:
    for kv in range_response.kvs:
        return MetaEntry(Meta.decode(kv.value), kv.mod_revision)
    return None


def _conditions(
    layout: Layout, meta: Meta, checks: Sequence[Check], writes: Sequence[Write], fence: Fence | None
) -> list[Any]:
    conditions = []
    if fence is not None:
        conditions.append(_at(layout.key(fence.key), meta.etcd_revision(fence.revision)))
    for each in checks:
        match each:
            case AtRevision(key, revision):
                conditions.append(_at(layout.key(key), meta.etcd_revision(revision)))
            case Absent(key):
                conditions.append(
                    m.Compare(result=m.COMPARE_EQUAL, target=m.TARGET_CREATE, key=layout.key(key), create_revision=0)
                )
            case _:
                conditions.append(_present(layout, each.key))
    checked = {each.key for each in checks if not isinstance(each, Absent)}
    conditions.extend(
        _present(layout, write.key) for write in writes if isinstance(write, DeleteKey) and write.key not in checked
    )
    return conditions


def _at(key: bytes, revision: int) -> Any:
    return m.Compare(result=m.COMPARE_EQUAL, target=m.TARGET_MOD, key=key, mod_revision=revision)


def _present(layout: Layout, key: Key) -> Any:
    return m.Compare(result=m.COMPARE_GREATER, target=m.TARGET_CREATE, key=layout.key(key), create_revision=0)


def _write_op(layout: Layout, write: Write, origin: Origin) -> Any:
    key = layout.key(write.key)
    if isinstance(write, Put):
        return m.RequestOp(request_put=m.PutRequest(key=key, value=layout.value(write.key, write.value, origin)))
    return m.RequestOp(request_delete_range=m.DeleteRangeRequest(key=key))
