"""Tests written as coroutines, each on a real event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

_P = ParamSpec("_P")


def on_loop(test: Callable[_P, Coroutine[Any, Any, None]]) -> Callable[_P, None]:
    """Run the test with `asyncio.run`."""

    @wraps(test)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def eventually(true: Callable[[], bool | Awaitable[bool]], *, within_s: float = 20.0) -> None:
    """Wait until a condition holds. The bound is for a machine that is busy, not for the program."""
    async with asyncio.timeout(within_s):
        while True:
            found = true()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.01)
