"""Removes safeguards of the runtime, so that a test can show that it fails without them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from kedge.errors import Compacted, OperatingError
from kedge.runtime.watch_states import ConnectingState, Transition, WatchReason
from kedge.runtime.watcher import Watcher


@contextmanager
def replaced(target: object, name: str, value: object) -> Iterator[None]:
    """Replace an attribute, usually a method that is a safeguard, within the block."""
    saved = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, saved)


def resume_past_compaction(self: Watcher, error: OperatingError) -> Transition:
    """In place of `Watcher._after_failure`: resume after compacted history instead of listing."""
    if isinstance(error, Compacted):
        return self._pause(ConnectingState(error.oldest), WatchReason.COMPACTED, error)
    return self._resume(WatchReason.UNAVAILABLE, error)


async def no_guard(self: Watcher, _: object) -> WatchReason:  # noqa: ARG001
    """In place of `Watcher._guard`: a stream is never probed or given up."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("it never ends")
