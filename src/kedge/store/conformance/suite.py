"""The suite: the list of checks, the requirements of each, and `check_store`, which runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from kedge.store.conformance import commits, compaction, durability, model, pushes, reads, watches
from kedge.store.conformance.subject import Backup, MakeEnv, MakeStore, Subject, real_env

CHECK_S = 120.0
"""No check takes longer on a sound store; one that does is stuck."""


Run: TypeAlias = Callable[[Subject], Awaitable[None]]


class StoreCheck(NamedTuple):
    """One guarantee of the contract. `run` raises `AssertionError` if the store breaks it."""

    run: Run
    seeded: bool = False
    """Random: run once for every seed."""
    durable: bool = False
    """Needs a store that outlives its process."""
    backup: bool = False
    """Needs a backup hook."""
    shared: bool = False
    """Needs a store that several processes can have open at once."""

    @property
    def promise(self) -> str:
        return (self.run.__doc__ or "").partition("\n")[0]


_PLAIN: tuple[Run, ...] = (
    commits.check_commit_is_all_or_nothing,
    commits.check_conflicts_name_their_key,
    commits.check_deleted_key_conflicts,
    commits.check_fence_wins_over_conflict,
    commits.check_fence_on_absent_key,
    commits.check_one_revision_a_commit,
    commits.check_entries_keep_created_modified_origin,
    commits.check_bytes_come_back_as_they_went,
    commits.check_operations_limit,
    commits.check_size_limit,
    commits.check_key_written_twice,
    commits.check_unusable_keys_are_refused,
    commits.check_empty_commit_proves_its_checks,
    commits.check_closed_store_refuses,
    commits.check_statistics_are_coherent,
    reads.check_get_answers_in_order,
    reads.check_get_without_waiting,
    reads.check_namespaces_do_not_leak,
    reads.check_reads_past_the_newest_wait,
    reads.check_reads_past_the_newest_fail_in_time,
    watches.check_batch_never_splits_a_commit,
    watches.check_idle_watch_gets_progress,
    watches.check_progress_on_request,
    watches.check_slow_watch_is_disconnected,
    watches.check_watch_that_ended_stays_ended,
    watches.check_closing_ends_watches,
    compaction.check_compacted_past_is_refused,
    compaction.check_compaction_keeps_the_newest,
    compaction.check_compact_repeats_and_bounds,
    pushes.check_callback_runs_until_it_is_removed,
    pushes.check_callback_that_raises,
    compaction.check_compaction_far_behind_a_watch,
)
_SEEDED: tuple[Run, ...] = (
    commits.check_readers_never_see_half_a_commit,
    commits.check_racing_writers_lose_no_update,
    commits.check_cancelled_commits_are_whole,
    reads.check_pages_hold_still,
    reads.check_past_reads_match,
    watches.check_each_change_once_in_order,
    watches.check_no_gap_between_list_and_watch,
    pushes.check_callback_sees_every_change,
    watches.check_watch_resumes_where_it_stopped,
    watches.check_cancelled_reader_loses_nothing,
    watches.check_latest_only_objects,
    compaction.check_compaction_behind_a_watch,
    compaction.check_compaction_under_load,
    model.check_random_walk,
)


def _checks() -> dict[str, StoreCheck]:
    checks = {run.__name__: StoreCheck(run) for run in _PLAIN}
    checks |= {run.__name__: StoreCheck(run, seeded=True) for run in _SEEDED}
    for run in (durability.check_reopening_finds_everything, durability.check_reopening_after_compaction):
        checks[run.__name__] = StoreCheck(run, durable=True)
    checks["check_no_deleted_version_reappears"] = StoreCheck(
        durability.check_no_deleted_version_reappears, seeded=True, durable=True
    )
    checks["check_reopening_after_kill"] = StoreCheck(durability.check_reopening_after_kill, durable=True)
    checks["check_two_openers_agree"] = StoreCheck(watches.check_two_openers_agree, seeded=True, shared=True)
    checks["check_restored_backup"] = StoreCheck(compaction.check_restored_backup, backup=True)
    return {name.removeprefix("check_"): each for name, each in checks.items()}


CHECKS: Mapping[str, StoreCheck] = MappingProxyType(_checks())
"""Every check by name. `check_names` returns the names that apply to a backend."""


def check_names(*, durable: bool = True, shared: bool = False, backup: bool = False) -> list[str]:
    """The checks that apply to such a backend; for `pytest.mark.parametrize`."""
    return [
        name
        for name, each in CHECKS.items()
        if (durable or not each.durable) and (shared or not each.shared) and (backup or not each.backup)
    ]


async def check_store(
    make_store: MakeStore,
    *,
    durable: bool = True,
    shared: bool = False,
    backup: Backup | None = None,
    only: Iterable[str] | None = None,
    seeds: Iterable[int] = (1, 2, 3),
    make_env: MakeEnv = real_env,
) -> None:
    """Check every guarantee of `kedge.store.contract` on a backend.

    Args:
        make_store: opens the store called `name` with the `Env` it is given, whose limits it must obey. Each
            check uses names of its own. Opened again by the same name, after `close` or after a kill, a durable
            store finds its data. For the kill check it is called in a child process too, so it must be
            picklable: a function at the top of a module, or a `functools.partial` of one.
        durable: whether the store outlives its process; if not, checks of reopening are left out.
        shared: whether one name can be opened several times at once, as with a server behind it.
        backup: copies an open store and returns a `make_store` that opens new stores from the
            copy; without it the check of restored backups is left out.
        only: names out of `CHECKS`, to run some checks alone.
        seeds: the random checks run once for each.
        make_env: builds the `Env`; the simulator passes its own. Must be picklable like `make_store`.

    Raises:
        AssertionError: names the check, the seed, and what the store did.
    """
    applicable = check_names(durable=durable, shared=shared, backup=backup is not None)
    names = list(only) if only is not None else applicable
    if unknown := [name for name in names if name not in applicable]:
        raise ValueError(f"not among this backend's checks: {', '.join(unknown)} (available: {', '.join(applicable)})")
    for name in names:
        check = CHECKS[name]
        for seed in list(seeds) if check.seeded else [1]:
            subject = Subject(name, make_store, make_env, durable, shared, backup, seed)
            try:
                async with asyncio.timeout(CHECK_S):
                    await check.run(subject)
            except TimeoutError as error:
                raise AssertionError(f"{name} (seed {seed}): did not end within {CHECK_S} s") from error
            except AssertionError as error:
                raise AssertionError(f"{name} (seed {seed}): {error}") from error
            finally:
                await subject.close()
