"""Log lines: the port through which components log, and the process's one output, as JSON or for people.

Components log through `Env.log`, and adapters through `logging`; both reach `LogOutput`. Fields have the names that
records, spans and metrics use. The simulator's port drops every line. A log explains a failure and never carries it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TextIO

import msgspec

from kedge.metrics import Counter, Metrics

DEBUG, INFO, WARNING = logging.DEBUG, logging.INFO, logging.WARNING
LEVELS: Final = {"debug": DEBUG, "info": INFO, "warning": WARNING}
TEXT, JSON = "text", "json"
FIELDS: Final = "kedge_fields"
"""The attribute of a log record that holds the fields of its line."""
DECISION: ContextVar[str] = ContextVar("kedge.decision", default="")
"""The decision that this task is making: lines of every layer below carry it."""
_BURST: Final = 5
"""Seconds whose lines may come at once."""
_encode: Final = msgspec.json.Encoder(enc_hook=str).encode


class Log(Protocol):
    """The port. Look at `enabled` before fields are gathered: most lines are not written."""

    def enabled(self, level: int) -> bool: ...

    def write(self, level: int, message: str, fields: Mapping[str, Any]) -> None: ...


class NoLog:
    """Drops every line: a simulated process has no output."""

    def enabled(self, level: int) -> bool:
        del level
        return False

    def write(self, level: int, message: str, fields: Mapping[str, Any]) -> None:
        """Do nothing."""


class SystemLog:
    """The port in production: the logger `kedge`."""

    def __init__(self, metrics: Metrics) -> None:
        self._logger = logging.getLogger("kedge")
        self.enabled: Callable[[int], bool] = self._logger.isEnabledFor
        output = installed_output()
        if output is not None:
            output.dropped_total = metrics.counter(
                "kedge_log_lines_dropped_total", "Log lines beyond the rate of this process"
            )

    def write(self, level: int, message: str, fields: Mapping[str, Any]) -> None:
        self._logger.log(level, message, extra={FIELDS: fields})


class LogOutput(logging.Handler):
    """Writes lines to a stream, at a bounded rate. Lines beyond it are counted, and a later line has their number."""

    def __init__(
        self, stream: Callable[[], TextIO], *, log_format: str, lines_per_s: int, monotonic: Callable[[], float]
    ) -> None:
        """`stream` is read for each line: it may be replaced while the process runs."""
        super().__init__()
        self._stream = stream
        self.log_format = log_format
        self._lines_per_s = lines_per_s
        self._monotonic = monotonic
        self._room = float(lines_per_s * _BURST)
        self._at_s = monotonic()
        self._unreported = 0
        self.dropped = 0
        self.dropped_total: Counter | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if not self._take_room():
            self.dropped += 1
            self._unreported += 1
            if self.dropped_total is not None:
                self.dropped_total.inc()
            return
        try:
            stream = self._stream()
            if self._unreported:
                dropped, self._unreported = self._unreported, 0
                text = f"{dropped} log lines were dropped: there were more than {self._lines_per_s} a second"
                stream.write(self._line(record.created, "warning", "kedge.logs", text, {"dropped": dropped}))
            stream.write(self._line(record.created, *_parts_of(record)))
            stream.flush()
        except Exception:  # noqa: BLE001  a full disk or a closed stream must not fail the work that is logged
            self.handleError(record)

    def _take_room(self) -> bool:
        now_s = self._monotonic()
        self._room = min(self._lines_per_s * _BURST, self._room + (now_s - self._at_s) * self._lines_per_s)
        self._at_s = now_s
        if self._room < 1.0:
            return False
        self._room -= 1.0
        return True

    def _line(self, created: float, level: str, logger: str, message: str, fields: Mapping[str, Any]) -> str:
        at = f"{datetime.fromtimestamp(created, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
        if self.log_format == JSON:
            line = {"time": at, "level": level, "logger": logger, "message": message, **fields}
            return _encode(line).decode() + "\n"
        pairs = "".join(f" {name}={_text(value)}" for name, value in fields.items() if value not in ("", None))
        return f"{at} {level:7} {message}{pairs}\n"


def _parts_of(record: logging.LogRecord) -> tuple[str, str, str, dict[str, Any]]:
    fields = dict(getattr(record, FIELDS, ()))
    decision = DECISION.get()
    if decision and "decision" not in fields:
        fields["decision"] = decision
    if record.exc_info and record.exc_info[0] is not None:
        fields["error"] = logging.Formatter().formatException(record.exc_info)
    return record.levelname.lower(), record.name, record.getMessage(), fields


def _text(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return _encode(text).decode() if any(each in ' "=\n' for each in text) else text


def install_output(output: LogOutput, level: int) -> None:
    """Make `output` the log of this process, instead of an earlier one."""
    root = logging.getLogger()
    root.handlers[:] = [*(each for each in root.handlers if not isinstance(each, LogOutput)), output]
    logging.getLogger().setLevel(WARNING)
    logging.getLogger("kedge").setLevel(level)


def installed_output() -> LogOutput | None:
    return next((each for each in logging.getLogger().handlers if isinstance(each, LogOutput)), None)
