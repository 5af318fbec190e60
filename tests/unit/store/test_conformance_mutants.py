"""The conformance suite finds broken stores: each bug here removes one safeguard, and its check must fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kedge.env import Env
from kedge.errors import Compacted, Conflict, Fenced, OperatingError
from kedge.keys import NO_ORIGIN, NO_REVISION, Fence, Key, Origin, Revision
from kedge.store import contract, feed, memory, versions
from kedge.store.conformance import CHECKS, MakeStore, check_names, check_store
from kedge.store.contract import Batch, Change, Check, DeleteKey, Entry, Listing, Put, Reading, Store, Write
from kedge.store.feed import Feed, FeedWatch
from kedge.store.memory import MemoryStore
from kedge.store.versions import Versions

PlantBug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, tuple[str, PlantBug]] = {}


def caught_by(check: str) -> Callable[[PlantBug], PlantBug]:
    def register(plant: PlantBug) -> PlantBug:
        BUGS[plant.__name__] = (check, plant)
        return plant

    return register


async def open_memory(name: str, env: Env) -> Store:
    del name
    return memory.MemoryStore(env)


async def backup_memory(store: Store) -> MakeStore:
    assert isinstance(store, MemoryStore)
    saved = store.backup()

    async def open_copy(name: str, env: Env) -> Store:
        del name
        return MemoryStore(env, backup=saved)

    return open_copy


# -- commits ---------------------------------------------------------------------------------------

prove, apply = Versions.prove, Versions.apply


@caught_by("commit_is_all_or_nothing")
def writes_before_it_proves(patch: pytest.MonkeyPatch) -> None:
    def bad(self: Versions, checks: Sequence[Check], writes: Sequence[Write], fence: Fence | None) -> None:
        self.apply([write for write in writes if isinstance(write, Put)][:1], 1, NO_ORIGIN)
        prove(self, checks, writes, fence)

    patch.setattr(Versions, "prove", bad)


@caught_by("readers_never_see_half_a_commit")
def commits_one_write_at_a_time(patch: pytest.MonkeyPatch) -> None:
    real = MemoryStore.commit

    async def bad(self: MemoryStore, checks: Any, writes: Any, **rest: Any) -> Revision:
        revision = await real(self, checks, writes[:1], **rest)
        for write in writes[1:]:
            revision = await real(self, [], [write], **rest)
        return revision

    patch.setattr(MemoryStore, "commit", bad)


@caught_by("conflicts_name_their_key")
def names_no_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(versions, "conflict", lambda *_: Conflict("no"))


@caught_by("conflicts_name_their_key")
def accepts_a_delete_of_a_missing_key(patch: pytest.MonkeyPatch) -> None:
    def lenient(self: Versions, writes: Sequence[Write], revision: Revision, origin: Origin) -> list[Change]:
        there = [w for w in writes if isinstance(w, Put) or self.newest(w.key) is not None]
        return apply(self, there, revision, origin)

    patch.setattr(Versions, "prove", lambda self, checks, _, fence: prove(self, checks, [], fence))
    patch.setattr(Versions, "apply", lenient)


@caught_by("fence_wins_over_conflict")
def reports_conflicts_before_fences(patch: pytest.MonkeyPatch) -> None:
    def bad(self: Versions, checks: Sequence[Check], writes: Sequence[Write], fence: Fence | None) -> None:
        prove(self, checks, writes, None)
        prove(self, [], [], fence)

    patch.setattr(Versions, "prove", bad)


@caught_by("fence_on_absent_key")
def lets_an_absent_fence_through(patch: pytest.MonkeyPatch) -> None:
    def bad(self: Versions, checks: Sequence[Check], writes: Sequence[Write], fence: Fence | None) -> None:
        if fence is not None and self.newest(fence.key) is None:
            fence = None
        prove(self, checks, writes, fence)

    patch.setattr(Versions, "prove", bad)


@caught_by("one_revision_a_commit")
def gives_a_revision_twice(patch: pytest.MonkeyPatch) -> None:
    real = MemoryStore.commit

    async def bad(self: MemoryStore, checks: Any, writes: Any, **rest: Any) -> Revision:
        return await real(self, checks, writes, **rest) // 2

    patch.setattr(MemoryStore, "commit", bad)


@caught_by("entries_keep_created_modified_origin")
def forgets_when_it_was_created(patch: pytest.MonkeyPatch) -> None:
    def bad(key: Key, value: bytes, created: Revision, modified: Revision, origin: Origin) -> Entry:
        del created
        return Entry(key, value, modified, modified, origin)

    patch.setattr(versions, "Entry", bad)


@caught_by("entries_keep_created_modified_origin")
def forgets_the_origin(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Versions, "apply", lambda self, writes, revision, _: apply(self, writes, revision, NO_ORIGIN))


@caught_by("operations_limit")
def has_no_limits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory, "check_commit", lambda *_, **__: 0)


@caught_by("key_written_twice")
def takes_a_key_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory, "check_commit", lambda *_, **__: 0)


@caught_by("size_limit")
def takes_any_size(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory, "check_commit", lambda *_, **__: 0)


@caught_by("unusable_keys_are_refused")
def takes_any_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(contract, "check_key", lambda _: None)


@caught_by("empty_commit_proves_its_checks")
def advances_when_nothing_is_written(patch: pytest.MonkeyPatch) -> None:
    real = MemoryStore.commit

    async def bad(self: MemoryStore, checks: Any, writes: Any, **rest: Any) -> Revision:
        revision = await real(self, checks, writes, **rest)
        if not writes:
            revision += 1
            self._feed.advance(revision)
        return revision

    patch.setattr(MemoryStore, "commit", bad)


@caught_by("racing_writers_lose_no_update")
def proves_too_early(patch: pytest.MonkeyPatch) -> None:
    real = MemoryStore.commit

    async def bad(self: MemoryStore, checks: Any, writes: Any, **rest: Any) -> Revision:
        self._versions.prove(checks, writes, None)
        await asyncio.sleep(0)
        return await real(self, [], writes, **rest)

    patch.setattr(MemoryStore, "commit", bad)


@caught_by("cancelled_commits_are_whole")
def leaves_half_when_cancelled(patch: pytest.MonkeyPatch) -> None:
    real = MemoryStore.commit

    async def bad(self: MemoryStore, checks: Any, writes: Any, **rest: Any) -> Revision:
        await real(self, checks, writes[:1], **rest)
        return await real(self, checks[1:], writes[1:], **rest)

    patch.setattr(MemoryStore, "commit", bad)


@caught_by("statistics_are_coherent")
def counts_no_conflicts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory, "Conflict", Fenced)


# -- reads -----------------------------------------------------------------------------------------

read, list_, get = Versions.list, Versions.list, MemoryStore.get


@caught_by("namespaces_do_not_leak")
def lists_another_namespace_too(patch: pytest.MonkeyPatch) -> None:
    def bad(self: Versions, kind: str, feed: Feed, *, namespace: str, **rest: Any) -> Listing:
        whole = list_(self, kind, feed, namespace="", **rest)
        entries = [entry for entry in whole.entries if entry.key.namespace.startswith(namespace)]
        return Listing(entries, whole.revision, whole.remaining)

    patch.setattr(Versions, "list", bad)


@caught_by("pages_hold_still")
def pages_from_the_present(patch: pytest.MonkeyPatch) -> None:
    def bad(self: Versions, kind: str, feed: Feed, *, at: Revision, **rest: Any) -> Listing:
        listing = list_(self, kind, feed, at=NO_REVISION, **rest)
        return listing._replace(revision=at or listing.revision)

    patch.setattr(Versions, "list", bad)


@caught_by("past_reads_match")
def gets_the_present_as_the_past(patch: pytest.MonkeyPatch) -> None:
    def bad(self: Versions, keys: Sequence[Key], feed: Feed, *, at: Revision) -> Reading:
        return Reading(tuple(map(self.newest, keys)), at or feed.revision)

    patch.setattr(Versions, "get", bad)


@caught_by("get_without_waiting")
def remembers_a_reading(patch: pytest.MonkeyPatch) -> None:
    get_nowait, known = MemoryStore.get_nowait, dict[tuple[Key, ...], Reading]()

    def bad(self: MemoryStore, keys: Sequence[Key], *, at: Revision = NO_REVISION) -> Reading:
        found = get_nowait(self, keys, at=at)
        return found if at else known.setdefault(tuple(keys), found)

    patch.setattr(MemoryStore, "get_nowait", bad)


@caught_by("reads_past_the_newest_wait")
def does_not_wait(patch: pytest.MonkeyPatch) -> None:
    async def bad(self: Feed, revision: Revision) -> None:
        del self, revision

    patch.setattr(Feed, "wait_reached", bad)


@caught_by("reads_past_the_newest_fail_in_time")
def serves_old_data_as_new(patch: pytest.MonkeyPatch) -> None:
    async def bad(self: Feed, revision: Revision) -> None:
        del self, revision

    patch.setattr(Feed, "wait_reached", bad)


# -- watches ---------------------------------------------------------------------------------------

take, make_batch = FeedWatch._take, FeedWatch._batch


@caught_by("no_gap_between_list_and_watch")
def watches_from_now_on(patch: pytest.MonkeyPatch) -> None:
    real = Feed.watch

    async def bad(self: Feed, kind: str, *, after: Revision, namespace: str = "") -> FeedWatch:
        watch = await real(self, kind, after=self.revision, namespace=namespace)
        watch.revision = after
        return watch

    patch.setattr(Feed, "watch", bad)


@caught_by("each_change_once_in_order")
def returns_changes_twice(patch: pytest.MonkeyPatch) -> None:
    def bad(self: FeedWatch) -> Batch | None:
        batch = take(self)
        return Batch((*batch.changes, *batch.changes[-1:]), batch.revision) if batch else None

    patch.setattr(FeedWatch, "_take", bad)


@caught_by("watch_resumes_where_it_stopped")
def claims_a_revision_it_has_not_reached(patch: pytest.MonkeyPatch) -> None:
    def bad(self: FeedWatch) -> Batch | None:
        batch = take(self)
        if batch is None:
            return None
        self.revision = self._feed.revision
        return Batch(batch.changes, self.revision)

    patch.setattr(FeedWatch, "_take", bad)


@caught_by("callback_sees_every_change")
def calls_a_batch_the_last_too_early(patch: pytest.MonkeyPatch) -> None:
    def bad(self: FeedWatch, start: int, end: int) -> tuple[int, Batch]:
        after, batch = make_batch(self, start, min(end, start + 1))
        return after, Batch(batch.changes, batch.changes[-1].revision if batch.changes else batch.revision, last=True)

    patch.setattr(FeedWatch, "_batch", bad)


@caught_by("batch_never_splits_a_commit")
def splits_commits(patch: pytest.MonkeyPatch) -> None:
    def bad(self: FeedWatch) -> Batch | None:
        log = self._log
        start = self._next - log.base
        changes = tuple(c for c in log.changes[start : start + self._feed.batch_max] if c)
        if not changes:
            return None
        self._next += len(changes)
        self.revision = changes[-1].revision
        return Batch(changes, self.revision)

    patch.setattr(FeedWatch, "_take", bad)


@caught_by("idle_watch_gets_progress")
def sends_no_progress_when_idle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Feed, "_send_progress", lambda _: None)


@caught_by("idle_watch_gets_progress")
def sends_no_progress_to_a_watch_that_begins_behind(patch: pytest.MonkeyPatch) -> None:
    def bad(self: Feed, watch: FeedWatch, log: Any) -> None:
        log.watches[watch] = None
        self._watchers += 1

    patch.setattr(Feed, "joined", bad)


@caught_by("progress_on_request")
def ignores_requests(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FeedWatch, "request_progress", lambda _: None)


@caught_by("slow_watch_is_disconnected")
def never_disconnects_a_slow_watch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FeedWatch, "behind", 0)


@caught_by("slow_watch_is_disconnected")
def disconnects_a_watch_that_resumes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FeedWatch, "behind", property(lambda self: self._log.end - self._next))


@caught_by("closing_ends_watches")
def forgets_its_watches_when_closed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Feed, "close", lambda _: None)


@caught_by("cancelled_reader_loses_nothing")
def drops_the_batch_of_a_cancelled_reader(patch: pytest.MonkeyPatch) -> None:
    real = FeedWatch.__anext__

    async def bad(self: FeedWatch) -> Batch:
        batch = await real(self)
        await asyncio.sleep(0)
        return batch

    patch.setattr(FeedWatch, "__anext__", bad)


@caught_by("latest_only_objects")
def skips_a_delete(patch: pytest.MonkeyPatch) -> None:
    def bad(writes: Sequence[Write]) -> set[Key]:
        return {write.key for write in writes}

    def drop(self: Any, version: Entry) -> None:
        for place, change in enumerate(self.changes):
            if change is not None and change.key == version.key:
                self.changes[place] = None

    patch.setattr(memory, "latest_only_keys", bad)
    patch.setattr(feed._Log, "skip", drop)


# -- compaction and restoring ----------------------------------------------------------------------


@caught_by("compaction_behind_a_watch")
def skips_what_was_compacted(patch: pytest.MonkeyPatch) -> None:
    def bad(self: FeedWatch) -> Batch | None:
        self._next = max(self._next, self._log.base)
        return take(self)

    patch.setattr(FeedWatch, "_take", bad)


@caught_by("compacted_past_is_refused")
def reads_what_was_compacted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Feed, "check_readable", lambda *_: None)


@caught_by("compact_repeats_and_bounds")
def compacts_the_future(patch: pytest.MonkeyPatch) -> None:
    async def bad(self: MemoryStore, revision: Revision) -> None:
        self._feed.compact(revision)

    patch.setattr(MemoryStore, "compact", bad)


@caught_by("compact_repeats_and_bounds")
def compacts_backwards(patch: pytest.MonkeyPatch) -> None:
    def bad(self: Feed, revision: Revision) -> None:
        self.compacted = revision

    patch.setattr(Feed, "compact", bad)


@caught_by("restored_backup")
def continues_from_the_revision_of_the_backup(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory, "RESTORE_BUMP", 0)


@caught_by("restored_backup")
def keeps_its_incarnation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory, "RESTORE_BUMP", 1_000_000_000)
    patch.setattr(MemoryStore, "incarnation", property(lambda _: "always", lambda *_: None), raising=False)


@caught_by("random_walk")
def drops_a_version_sometimes(patch: pytest.MonkeyPatch) -> None:
    def bad(first: Change, at: Revision) -> Entry | None:
        entry = as_of(first, at)
        return None if entry is not None and entry.created == entry.modified == at - 1 else entry

    as_of = versions.as_of
    patch.setattr(versions, "as_of", bad)


@pytest.mark.parametrize("bug", BUGS)
def test_the_suite_catches_a_store_that(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check, plant = BUGS[bug]
    plant(monkeypatch)
    for module in ("subject", "watches"):  # these stores never recover: a shorter wait is enough
        monkeypatch.setattr(f"kedge.store.conformance.{module}.WAIT_S", 1.0)
    with pytest.raises((AssertionError, OperatingError)) as caught:
        asyncio.run(check_store(open_memory, durable=False, backup=backup_memory, only=[check]))
    assert isinstance(caught.value, AssertionError | Compacted), f"a broken guarantee, reported badly: {caught.value!r}"


def test_every_check_documents_its_guarantee() -> None:
    for name, check in CHECKS.items():
        assert check.promise.endswith((".", ":")), name
    assert set(check_names(durable=True, shared=True, backup=True)) == set(CHECKS)


def test_a_check_that_does_not_apply_is_reported() -> None:
    with pytest.raises(ValueError, match="reopening_after_kill"):
        asyncio.run(check_store(open_memory, durable=False, only=["reopening_after_kill"]))


def test_deletes_are_never_latest_only() -> None:
    assert not DeleteKey(Key("Thing", "", "a")).latest_only
