"""Expectations of the conformance suites: an `AssertionError` that explains the failure, without pytest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import NoReturn, TypeVar

from kedge.errors import OperatingError

_E = TypeVar("_E", bound=OperatingError)


def fail(message: str) -> NoReturn:
    raise AssertionError(message)


def expect(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def same(got: object, want: object, what: str) -> None:
    if got != want:
        raise AssertionError(f"{what}: got {got!r}, want {want!r}")


async def raises(error: type[_E], work: Awaitable[object], what: str) -> _E:
    """Run `work`, which must fail with `error`."""
    try:
        result = await work
    except error as caught:
        return caught
    except OperatingError as caught:
        raise AssertionError(f"{what}: raised {type(caught).__name__} ({caught}), want {error.__name__}") from caught
    raise AssertionError(f"{what}: returned {result!r}, want {error.__name__}")


@asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """Fail, rather than hang, when an expected event does not happen."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise AssertionError(f"{what}: did not happen within {seconds} s") from error
