"""A durable store in one SQLite file: the embedded default."""

from kedge.store.sqlite.restore import restore_to_sqlite
from kedge.store.sqlite.salvage import ExaminedFile, StoreFinding, examine_file, salvage_file
from kedge.store.sqlite.store import SqliteStore

__all__ = ["ExaminedFile", "SqliteStore", "StoreFinding", "examine_file", "restore_to_sqlite", "salvage_file"]
