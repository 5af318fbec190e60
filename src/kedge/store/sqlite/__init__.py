"""A durable store in one SQLite file: the embedded default."""

from kedge.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
