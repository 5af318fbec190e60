"""Commits that share one transaction and one sync, from their proofs to their answers. `store` decides each step."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from kedge.errors import OperatingError
from kedge.keys import Fence, Key, Origin, Revision
from kedge.store.contract import Change, Check, Write
from kedge.store.encryption import ValueCipher
from kedge.store.sqlite import file
from kedge.store.sqlite.checksums import StoredRow


class CommitRequest(msgspec.Struct, frozen=True):
    """A commit that waits for its sync."""

    checks: Sequence[Check]
    writes: Sequence[Write]
    fence: Fence | None
    origin: Origin
    size: int
    answer: asyncio.Future[Revision]


Applied = tuple[Revision, Sequence[Change], Collection[Key]]
"""A commit that is proven and not yet durable: revision, changes, `latest_only` keys."""


class CommitGroup:
    """The requests of one sync, and their outcomes in the same order."""

    __slots__ = ("applied", "began_s", "lost", "outcomes", "replaced", "requests", "rows", "size")

    def __init__(self, requests: Sequence[CommitRequest]) -> None:
        self.requests = requests
        self.outcomes: list[Revision | Exception] = []
        self.applied: list[Applied] = []
        self.lost = 0
        """Requests that lost against another commit."""
        self.rows: list[StoredRow] = []
        self.replaced: list[tuple[Any, ...]] = []
        self.size = sum([request.size for request in requests])
        self.began_s = 0.0

    def make_rows(self, cipher: ValueCipher | None) -> None:
        applied = self.applied
        self.rows = rows = [file.row_of(change, seq) for _, changes, _ in applied for seq, change in enumerate(changes)]
        if cipher is not None and cipher.sealed_kinds:
            file.seal_rows(rows, cipher)
        self.replaced = [
            (*file.place_of(change.previous), file.id_of(revision, seq))
            for revision, changes, latest_only in applied
            if latest_only
            for seq, change in enumerate(changes)
            if change.previous is not None and change.key in latest_only
        ]

    def insert(self, db: sqlite3.Connection) -> None:
        """Begin a transaction with the rows. It is not committed."""
        db.execute("BEGIN")
        db.executemany(file.INSERT_VERSION, self.rows)
        if self.replaced:
            db.executemany(file.INHERIT_PREVIOUS, self.replaced)
            db.executemany(file.DELETE_VERSION, [each[:5] for each in self.replaced])

    def answer(self) -> None:
        for request, outcome in zip(self.requests, self.outcomes, strict=True):
            answer = request.answer
            if answer.done():
                pass  # the caller was cancelled; its commit stands
            elif isinstance(outcome, int):
                answer.set_result(outcome)
            else:
                answer.set_exception(outcome)

    def fail(self, failure: OperatingError) -> None:
        """Give every caller the error, also those with conflicts: some are with commits of this group, which do not
        exist. Each gets one of its own: one raised by many tasks would accumulate all their tracebacks."""
        for request in self.requests:
            if not request.answer.done():
                request.answer.set_exception(type(failure)(failure.message))
