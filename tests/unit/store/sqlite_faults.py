"""SQLite connections that count statements and fail or call back at chosen ones, for tests of the store."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kedge.env import Env, system_env
from kedge.limits import Limits
from kedge.store.sqlite import SqliteStore


class Clock:
    """A monotonic clock that only `advance` moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def env_with(clock: Clock | None = None, **limits: float) -> Env:
    env = system_env(limits=replace(Limits(), **limits))  # type: ignore[arg-type]
    if clock is None:
        return env
    return replace(env, monotonic=clock, now=lambda: datetime(2026, 1, 1, tzinfo=UTC))


async def until(condition: Callable[[], object]) -> None:
    """Run the loop until the condition holds; fail if it never does."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  what is waited for has no event to wait on
            await asyncio.sleep(0.001)


def sqlite_error(code: int, message: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(message)
    error.sqlite_errorcode = code
    return error


class Probe:
    """The statements of a store's connection, and the actions for some of them."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.before: dict[str, Callable[[], None]] = {}
        self.after: dict[str, Callable[[], None]] = {}
        self.connections: list[sqlite3.Connection] = []
        probe = self

        class Probed(sqlite3.Connection):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                probe.connections.append(self)

            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                probe.run(probe.before, sql)
                cursor = super().execute(sql, parameters)
                probe.statements.append(sql)
                probe.run(probe.after, sql)
                return cursor

            def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
                probe.run(probe.before, sql)
                cursor = super().executemany(sql, parameters)
                probe.statements.append(sql)
                probe.run(probe.after, sql)
                return cursor

        self.connection: type[sqlite3.Connection] = Probed

    def run(self, actions: dict[str, Callable[[], None]], sql: str) -> None:
        for start, action in tuple(actions.items()):
            if sql.startswith(start):
                action()

    def fail(self, start: str, code: int, *, after: bool = False) -> None:
        """Fail statements with this prefix: without running them, or after they ran."""

        def action() -> None:
            raise sqlite_error(code, "injected")

        (self.after if after else self.before)[start] = action

    def end_partition(self) -> None:
        self.before.clear()
        self.after.clear()

    def count(self, start: str) -> int:
        return sum(sql.startswith(start) for sql in self.statements)

    async def open(self, path: Path, env: Env | None = None) -> SqliteStore:
        return await SqliteStore.open(path, env or env_with(), connection=self.connection)


def rows_in(path: Path, sql: str = "SELECT * FROM versions ORDER BY id") -> Sequence[tuple[Any, ...]]:
    """Read a closed store's file with plain SQLite."""
    db = sqlite3.connect(path)
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()
