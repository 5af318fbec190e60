"""The metrics of a store on SQLite."""

from __future__ import annotations

from collections.abc import Callable

from kedge.metrics import Metrics


class StoreMeters:
    """The series that the store itself updates."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.sync_seconds = metrics.histogram("kedge_store_sync_seconds", "Time to write and sync one group of commits")
        self.sync_ops = metrics.gauge("kedge_store_sync_ops", "Writes that shared the last sync")
        self.sync_bytes = metrics.gauge("kedge_store_sync_bytes", "Bytes that shared the last sync")
        self.checkpoint_seconds = metrics.histogram("kedge_store_checkpoint_seconds", "Duration of one checkpoint")
        self.wal_pages = metrics.gauge("kedge_store_wal_pages", "Pages in the write-ahead log at the last checkpoint")
        self.backup_seconds = metrics.histogram("kedge_store_backup_seconds", "Duration of a backup")

    def read(self, queue: Callable[[], int], ops: Callable[[], int], size: Callable[[], int]) -> None:
        """Show the commits that wait, and the operations and bytes of the largest commit."""
        metrics = self._metrics
        metrics.gauge("kedge_store_commit_queue", "Commits waiting for a sync").set_function(queue)
        metrics.gauge("kedge_store_commit_ops", "Operations in the largest commit").set_function(ops)
        metrics.gauge("kedge_store_commit_bytes", "Bytes in the largest commit").set_function(size)
