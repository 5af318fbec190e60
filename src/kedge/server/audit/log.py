"""The audit log of one server: entries wait in memory, bounded, and a thread writes and syncs them in groups.

`auditor` appends; `files` has the disk's part. The event loop never waits for the disk: a slow one costs memory up to
the bound and then entries, which are counted here and in the log itself.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

from kedge.env import Env
from kedge.errors import Terminal
from kedge.server.audit.events import encode_gap
from kedge.server.audit.files import AuditFiles

_log = logging.getLogger("kedge.server.audit")


class AuditLog:
    """Appends to the log in `directory`, which belongs to this process alone. `start`, then `close`."""

    def __init__(self, directory: Path, env: Env) -> None:
        """
        Raises:
            Terminal: the directory cannot be made. Correct its permissions, or choose another state folder.
        """
        self._env = env
        self._directory = directory
        try:
            self._files = AuditFiles(directory, env.limits)
        except OSError as error:
            raise Terminal(f"requests cannot be logged in {directory}: {error}; correct its permissions") from error
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._batch = b""
        """Lines on their way to the disk. After a failure they stay here, and are written again."""
        self._dropped = 0
        """Entries dropped since the last batch was taken. The next batch has their number."""
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._urgent = asyncio.Event()
        self.failing = False
        """Whether the last write failed."""
        self._show()

    @property
    def pending_bytes(self) -> int:
        return self._waiting_bytes + len(self._batch)

    @property
    def accepts(self) -> bool:
        """Whether entries of new requests are sure to fit: half of the memory is for requests that have begun."""
        return not self.failing and self.pending_bytes <= self._env.limits.audit_pending_bytes_max // 2

    def append(self, line: bytes) -> None:
        """Add an entry, which is one line with its end. Past the bound it is dropped and counted."""
        limit = self._env.limits.audit_pending_bytes_max
        size = self.pending_bytes + len(line)
        if size > limit:
            self._dropped += 1
            self._dropped_total.inc()
            return
        self._entries.inc()
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        if size > limit // 4:
            self._urgent.set()

    def start(self) -> None:
        self._task = self._env.spawn(self._run(), name="audit log")

    async def close(self) -> None:
        """Write every entry that waits, within `audit_close_s`; the rest is dropped and counted."""
        self._closing = True
        self._urgent.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=self._env.limits.audit_close_s)
        if not self._task or self._task.done():
            self._files.close()
        lost = len(self._waiting) + self._batch.count(b"\n")
        if lost:
            self._dropped_total.inc(lost)
            _log.warning("the audit log in %s ended without its last %d entries", self._directory, lost)

    async def _run(self) -> None:
        limits = self._env.limits
        while not self._closing:
            with suppress(TimeoutError):
                async with asyncio.timeout(limits.audit_sync_s):
                    await self._urgent.wait()
            self._urgent.clear()
            await self._write()
            if self.failing and not self._closing:
                await asyncio.sleep(limits.audit_sync_s)
        await self._write()
        if not self.failing:
            await self._write()  # entries that came during the last one

    async def _write(self) -> None:
        """Pass everything that waits to the disk. An error keeps it for the next time."""
        if not self._batch:
            self._take()
        if not self._batch:
            return
        began_s = self._env.monotonic()
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._files.write, self._batch)
        except OSError as error:
            self._errors.inc()
            if not self.failing:
                _log.warning("the audit log in %s cannot be written: %s", self._directory, error)
            self.failing = True
            return
        self._batch = b""
        self.failing = False
        self._write_s.observe(self._env.monotonic() - began_s)

    def _take(self) -> None:
        lines, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if self._dropped:
            lines.append(encode_gap(self._dropped, self._env.now()))
            self._dropped = 0
        self._batch = b"".join(lines)

    def _show(self) -> None:
        metrics = self._env.metrics
        self._entries = metrics.counter("kedge_audit_entries_total", "Entries of the audit log")
        self._dropped_total = metrics.counter(
            "kedge_audit_dropped_total", "Entries that the audit log lacks, because the disk was full or slow"
        )
        self._errors = metrics.counter("kedge_audit_errors_total", "Failed writes of the audit log; they are repeated")
        self._write_s = metrics.histogram(
            "kedge_audit_write_seconds", "Time to write and sync one group of entries of the audit log"
        )
        for series, help_text, read in (
            ("kedge_audit_pending_bytes", "Entries of the audit log not yet on disk", lambda: self.pending_bytes),
            ("kedge_audit_bytes", "Size of the audit log on disk", lambda: self._files.bytes),
            ("kedge_audit_files", "Files of the audit log", lambda: self._files.count),
        ):
            metrics.gauge(series, help_text).set_function(read)
        metrics.saturation("audit log", lambda: self.pending_bytes / self._env.limits.audit_pending_bytes_max)
