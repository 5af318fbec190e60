"""Every bound, by name: its default, the reason for it, and the metric that shows how near it is.

Limits come with `Env`, so each host can have its own. A bound that is not here does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

_N = TypeVar("_N", int, float)


def bound(default: _N, reason: str, *, metric: str) -> _N:
    """Declare one limit. `metric` is the name of the series to watch beside it."""
    value: _N = field(default=default, metadata={"reason": reason, "metric": metric})
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Units and qualifiers come last in each name. Replace single ones with `dataclasses.replace`."""

    # -- store
    commit_ops_max: int = bound(
        120, "etcd refuses a transaction of more than 128 operations", metric="kedge_store_commit_ops"
    )
    commit_bytes_max: int = bound(
        1_400_000, "etcd refuses a request of more than 1.5 MiB", metric="kedge_store_commit_bytes"
    )
    commit_queue_max: int = bound(
        10_000, "commits waiting for one sync; past this they are shed", metric="kedge_store_commit_queue"
    )
    history_commits_max: int = bound(
        100_000, "old versions live in memory beside the new ones", metric="kedge_store_history_commits"
    )
    history_s: float = bound(
        300.0, "a watcher that was away longer lists again, as in Kubernetes", metric="kedge_store_history_age_seconds"
    )
    compact_every_s: float = bound(
        5.0, "little and often, so that no compaction is long", metric="kedge_store_compaction_seconds"
    )
    compact_rows_max: int = bound(
        500,
        "rows one slice of a compaction may delete before the loop runs on",
        metric="kedge_store_compaction_seconds",
    )
    sync_hold_s_alarm: float = bound(
        0.1, "a sync holds the event loop; lease renewals wait behind it", metric="kedge_store_sync_seconds"
    )
    watch_backlog_max: int = bound(
        10_000, "changes a watcher may be behind before it is cut off", metric="kedge_store_watch_backlog"
    )
    watch_batch_max: int = bound(
        1_000,
        "changes handed to a watcher at once, so that one does not hold the loop",
        metric="kedge_store_watch_batch",
    )
    watch_progress_s: float = bound(
        1.0, "an idle watcher hears how far history has moved this often", metric="kedge_store_watch_progress_total"
    )
    watch_future_wait_s: float = bound(
        3.0,
        "a watch or read past the newest revision waits this long, then fails",
        metric="kedge_store_future_waits_total",
    )
    store_request_s: float = bound(
        5.0, "a remote store that has not answered by then has an unknown outcome", metric="kedge_store_request_seconds"
    )
