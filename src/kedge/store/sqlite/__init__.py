"""A durable store in one SQLite file: the embedded default."""

from kedge.store.sqlite.restore import restore_to_sqlite
from kedge.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "restore_to_sqlite"]
