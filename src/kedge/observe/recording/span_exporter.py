"""The span exporter of a process: kept decisions as spans, in batches, to one OTLP endpoint.

`recorder` offers decisions, `readers.spans` makes spans of them, and a transport that is passed in sends them. It never
delays or fails a decision: past the bound of its queue, and after the last retry, spans are dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kedge.backoff import Backoff
from kedge.env import Env
from kedge.errors import OperatingError, TooManyRequests, Unavailable
from kedge.observe.readers.otlp import encode_request
from kedge.observe.readers.spans import spans_of
from kedge.observe.recording.recorder import Recorder
from kedge.observe.records import Decision

SendSpans = Callable[[bytes], Awaitable[None]]
"""Sends one export request. `Unavailable` and `TooManyRequests` are tried again; other errors drop the batch."""
QUEUE_FULL, UNREACHABLE, REJECTED, STOPPED = "queue full", "unreachable", "rejected", "stopped"
"""Values of the label `why`: reasons for which decisions are dropped."""
_RETRY_FIRST_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterStatistics:
    offered: int
    """Decisions that the recorder kept."""
    sent: int
    dropped: int
    waiting: int
    last_error: str


class SpanExporter:
    """Exports the decisions that one recorder keeps, from now on. `run` sends them."""

    def __init__(self, env: Env, recorder: Recorder, send: SendSpans) -> None:
        self._env = env
        self._recorder = recorder
        self._send = send
        self._waiting: deque[Decision] = deque()
        self._offered = self._sent = self._dropped = 0
        self._last_error = ""
        limits = env.limits
        self._queue_max = limits.otlp_queue_max
        self._backoff = Backoff(_RETRY_FIRST_S, limits.otlp_retry_s_max)
        metrics = env.metrics
        metrics.gauge("kedge_otlp_waiting", "Kept decisions whose spans are not sent yet").set_function(
            lambda: len(self._waiting)
        )
        self._sent_total = metrics.counter("kedge_otlp_sent_total", "Decisions whose spans an OTLP endpoint has taken")
        self._dropped_total = metrics.counter(
            "kedge_otlp_dropped_total", "Decisions whose spans were dropped, by reason", ("why",)
        )
        self._failures_total = metrics.counter("kedge_otlp_failures_total", "Failed export requests")
        recorder.on_kept(self._offer)

    def statistics(self) -> ExporterStatistics:
        return ExporterStatistics(
            offered=self._offered,
            sent=self._sent,
            dropped=self._dropped,
            waiting=len(self._waiting),
            last_error=self._last_error,
        )

    async def run(self) -> None:
        """Send every `Limits.otlp_every_s`. When cancelled, send the rest, for a bounded time."""
        limits = self._env.limits
        try:
            while True:
                await asyncio.sleep(limits.otlp_every_s)
                await self._send_all()
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(limits.otlp_stop_s):
                    await self._send_all()
            self._drop(len(self._waiting), STOPPED)
            self._waiting.clear()

    def _offer(self, decision: Decision) -> None:
        self._offered += 1
        if len(self._waiting) >= self._queue_max:
            self._drop(1, QUEUE_FULL)
        else:
            self._waiting.append(decision)

    async def _send_all(self) -> None:
        self._recorder.catch_up()
        while self._waiting:
            await self._send_batch(min(len(self._waiting), self._env.limits.otlp_batch_max))

    async def _send_batch(self, size: int) -> None:
        """Send the oldest decisions. They stay in the queue until the outcome is known, so a stop still counts them."""
        parts = []
        for number in range(size):
            parts.append(encode_request(spans_of(self._waiting[number], self._recorder.writer_of)))
            await asyncio.sleep(0)  # decisions go on between two encodings
        why = await self._send_until(b"".join(parts))
        for _ in range(size):
            self._waiting.popleft()
        if why:
            self._drop(size, why)
        else:
            self._sent += size
            self._sent_total.inc(size)

    async def _send_until(self, body: bytes) -> str:
        """Send one request, again after failures that may pass. Returns why it was given up; empty if it was taken."""
        limits, failures = self._env.limits, 0
        began_s = self._env.monotonic()
        while True:
            try:
                async with asyncio.timeout(limits.otlp_request_s):
                    await self._send(body)
                return ""
            except (Unavailable, TooManyRequests, TimeoutError) as error:
                failures += 1
                self._failed(error)
                pause_s = self._backoff.pause_s(failures, self._env.random)
                if isinstance(error, TooManyRequests):
                    pause_s = max(pause_s, error.retry_after_s)
                if self._env.monotonic() + pause_s - began_s > limits.otlp_retry_s_max:
                    return UNREACHABLE
                await asyncio.sleep(pause_s)
            except OperatingError as error:
                self._failed(error)
                return REJECTED

    def _failed(self, error: Exception) -> None:
        self._last_error = f"{type(error).__name__}: {error}"
        self._failures_total.inc()

    def _drop(self, count: int, why: str) -> None:
        if count:
            self._dropped += count
            self._dropped_total.labels(why).inc(count)
