"""The chain groups etcd's events into commits, and stops when one is missing."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from kedge.errors import BadRequest, TooLarge, Unavailable
from kedge.keys import NO_ORIGIN, Key, Origin
from kedge.store.etcd import messages as m
from kedge.store.etcd.chain import Chain, HistoryGap
from kedge.store.etcd.layout import EtcdCommit, Layout, Meta, encode_value
from kedge.store.etcd.transport import NotSent, RevisionError, Unanswered, outcome_of

LAYOUT = Layout("/kedge")
A, B = Key("Pod", "ns", "a"), Key("Pod", "ns", "b")


def chain() -> Chain:
    return Chain(LAYOUT, Meta("i", "c"), etcd_revision=10, commits=4)


def record(revision: int, number: int, changes: int, origin: Origin = NO_ORIGIN) -> Any:
    value = EtcdCommit(changes, origin).encode()
    kv = m.KeyValue(key=LAYOUT.record, create_revision=2, mod_revision=revision, version=number, value=value)
    return m.Event(kv=kv)


def version(key: Key, revision: int, value: bytes = b"", *, created: int | None = None) -> Any:
    return m.KeyValue(
        key=LAYOUT.key(key),
        create_revision=created or revision,
        mod_revision=revision,
        value=encode_value(value, Origin()),
    )


def test_a_commit_has_the_replaced_version_and_the_origin() -> None:
    mine = Origin("op", "decision")
    updated = m.Event(kv=version(A, 11, b"2", created=5), prev_kv=version(A, 9, b"1", created=5))
    gone = m.KeyValue(key=LAYOUT.key(B), mod_revision=11)
    deleted = m.Event(type=m.EVENT_DELETE, kv=gone, prev_kv=version(B, 8, b"x"))
    followed = chain()
    (link,) = followed.take([updated, deleted, record(11, 5, 2, mine)])
    change, removal = link.changes
    assert (change.key, change.origin, change.created) == (A, mine, False)
    assert change.entry is not None
    assert change.previous is not None
    assert (change.entry.value, change.previous.value, change.previous.modified) == (b"2", b"1", 9)
    assert removal.deleted
    assert removal.origin == mine, "a delete has no value that could hold its origin"
    assert removal.previous is not None
    assert removal.previous.value == b"x"
    assert (followed.revision, followed.commits) == (11, 5)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([m.Event(kv=version(A, 12)), record(12, 6, 1)], id="a commit was skipped"),
        pytest.param([m.Event(kv=version(A, 11)), record(11, 5, 2)], id="a change of a commit was skipped"),
        pytest.param([m.Event(kv=version(A, 11))], id="the record of a commit was skipped"),
        pytest.param([record(11, 5, 1)], id="all changes of a commit were skipped"),
        pytest.param([m.Event(kv=version(A, 11, created=5)), record(11, 5, 1)], id="what was replaced is gone"),
        pytest.param(
            [
                m.Event(type=m.EVENT_DELETE, kv=m.KeyValue(key=LAYOUT.key(A), mod_revision=11)),
                record(11, 5, 1),
            ],
            id="what was deleted is gone",
        ),
        pytest.param([m.Event(kv=version(A, 10)), record(10, 5, 1)], id="an old revision came again"),
        pytest.param([m.Event(kv=m.KeyValue(key=LAYOUT.meta, mod_revision=11))], id="the store was restored"),
    ],
)
def test_an_event_that_does_not_follow_is_a_gap(events: list[Any]) -> None:
    followed = chain()
    with pytest.raises(HistoryGap):
        list(followed.take(events))
    assert (followed.etcd_revision, followed.commits) == (10, 4), "a chain does not move past a gap"


def test_housekeeping_moves_the_chain_and_changes_nothing() -> None:
    followed = chain()
    (link,) = followed.take([m.Event(kv=m.KeyValue(key=LAYOUT.compaction, mod_revision=13))])
    assert link.changes == ()
    assert (followed.etcd_revision, followed.commits) == (13, 4)


def test_a_read_proves_idleness_only_if_it_saw_no_other_commit() -> None:
    followed = chain()
    assert not followed.prove_idle(etcd_revision=20, commits=5)
    assert followed.etcd_revision == 10
    assert followed.prove_idle(etcd_revision=20, commits=4)
    assert followed.etcd_revision == 20


def test_housekeeping_that_a_read_has_already_passed_is_no_gap_but_a_commit_is() -> None:
    followed = chain()
    assert followed.prove_idle(etcd_revision=20, commits=4)
    assert list(followed.take([m.Event(kv=m.KeyValue(key=LAYOUT.compaction, mod_revision=15))])) == []
    assert followed.etcd_revision == 20
    with pytest.raises(HistoryGap):
        list(followed.take([m.Event(kv=version(A, 16)), record(16, 5, 1)]))


@pytest.mark.parametrize(
    ("code", "details", "meaning"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: connection refused", NotSent),
        ("UNAVAILABLE", "etcdserver: no leader", NotSent),
        ("UNAVAILABLE", "Socket closed", Unanswered),
        ("UNAVAILABLE", "etcdserver: leader changed", Unanswered),
        ("UNAVAILABLE", "etcdserver: request timed out, possibly due to previous leader failure", Unanswered),
        ("UNAVAILABLE", "etcdserver: server stopped", Unanswered),
        ("UNKNOWN", "raft proposal dropped", Unanswered),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", Unanswered),
        ("CANCELLED", "", Unanswered),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", Unanswered),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", Unavailable),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", TooLarge),
        ("INVALID_ARGUMENT", "etcdserver: too many operations in txn request", BadRequest),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", RevisionError),
    ],
)
def test_an_outcome_is_known_only_for_known_errors_of_etcd_and_grpc(
    code: str, details: str, meaning: type[Exception]
) -> None:
    error = grpc.aio.AioRpcError(grpc.StatusCode[code], grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)
    assert type(outcome_of(error, "here")) is meaning
