"""The file of an open store, by device and inode: whether the path still names it.

A process keeps a deleted file open, so every write to it succeeds and is gone when the process ends.
"""

from __future__ import annotations

from pathlib import Path

from kedge.env import Env
from kedge.store.sqlite.file import log_of
from kedge.store.sqlite.locked_file import identity


class HeldFile:
    """Looks at most once every `Limits.store_file_check_s`."""

    def __init__(self, env: Env, path: Path, held: tuple[int, int]) -> None:
        self._env = env
        self._held: dict[Path, tuple[int, int]] = {path: held}
        self._log = log_of(path)
        self._looked_s = env.monotonic()
        self._checks = env.metrics.counter("kedge_store_file_checks_total", "Looks for the file of an open store")

    def moved(self) -> str:
        """The fate of the file or its log; empty if both are in their places or it is too early to look."""
        now_s = self._env.monotonic()
        if now_s - self._looked_s < self._env.limits.store_file_check_s:
            return ""
        self._looked_s = now_s
        self._checks.inc()
        for path, held in self._held.items():
            try:
                found = identity(path)
            except OSError as error:
                return f"{path} was deleted or moved while the store had it open ({error.strerror})"
            if found != held:
                return f"{path} was replaced by another file while the store had it open"
        if self._log not in self._held and self._log.exists():  # SQLite creates it with the first write
            self._held[self._log] = identity(self._log)
        return ""
