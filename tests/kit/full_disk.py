"""Shared by tests of a scheduler on a full disk: short backoffs, and a wait in real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kedge.api.kinds import KINDS
from kedge.limits import Limits

LIMITS = Limits(
    client_attempts_max=1, scheduler_backoff_s=0.01, scheduler_backoff_s_max=0.05, client_backoff_s=0.01,
    client_backoff_s_max=0.05, breaker_open_s=0.05,
)  # fmt: skip
NAMESPACE, LEDGER = KINDS.of_key_kind("Namespace"), KINDS.of_key_kind("NodeAllocation.kedge.dev")


async def eventually(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
