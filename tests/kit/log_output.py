"""The log of this process, into memory, for one test."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.kit.records import Time

from kedge.logs import INFO, JSON, LogOutput, install_output


class CapturedLog:
    """The installed output, and the lines that it has written."""

    def __init__(self, log_format: str, level: int, lines_per_s: int) -> None:
        self.time = Time()
        self.stream = io.StringIO()
        self.output = LogOutput(
            lambda: self.stream, log_format=log_format, lines_per_s=lines_per_s, monotonic=self.time.monotonic
        )
        install_output(self.output, level)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@contextmanager
def kept_loggers() -> Iterator[None]:
    """At its end the loggers of this process are as before."""
    root, own = logging.getLogger(), logging.getLogger("kedge")
    before = list(root.handlers), root.level, own.level
    try:
        yield
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        own.setLevel(before[2])


@contextmanager
def captured_log(log_format: str = JSON, level: int = INFO, lines_per_s: int = 1000) -> Iterator[CapturedLog]:
    with kept_loggers():
        yield CapturedLog(log_format, level, lines_per_s)
