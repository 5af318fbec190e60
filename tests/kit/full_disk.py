"""Shared by tests with a full disk: a file system of its own, short backoffs, and a wait in real time."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kedge.api.kinds import KINDS
from kedge.limits import Limits

LIMITS = Limits(
    client_attempts_max=1, scheduler_backoff_s=0.01, scheduler_backoff_s_max=0.05, client_backoff_s=0.01,
    client_backoff_s_max=0.05, breaker_open_s=0.05,
)  # fmt: skip
_LIBC = ctypes.CDLL(None, use_errno=True)
NAMESPACE, LEDGER = KINDS.of_key_kind("Namespace"), KINDS.of_key_kind("NodeAllocation.kedge.dev")


async def eventually(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own, of a few kilobytes."""
    folder.mkdir()
    if _LIBC.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, f"size={size}".encode()) != 0:
        pytest.skip("a file system can be mounted by root alone")
    try:
        yield folder
    finally:
        _LIBC.umount2(str(folder).encode(), 2)
