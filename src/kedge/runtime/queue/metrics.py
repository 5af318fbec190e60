"""The metrics of a queue. Most are read from the queue at collection time, so that they cost nothing per item.

Tenants are not a label: their number has no bound. `statistics()` has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic

from kedge.env import Env
from kedge.metrics import Counter
from kedge.runtime.queue.items import K, OutcomeKind

if TYPE_CHECKING:
    from kedge.runtime.queue.queue import WorkQueue


class QueueMetrics(Generic[K]):
    def __init__(self, env: Env, queue: WorkQueue[K]) -> None:
        name, metrics = queue.name, env.metrics
        self._queue = queue
        self.priorities: set[int] = set()
        # Made first, so collected first: it moves the counts of the queue into the counters before these are collected.
        metrics.gauge("kedge_queue_keys", "Keys queued or running", ("queue",)).labels(name).set_function(self._collect)
        self._depth = metrics.gauge("kedge_queue_depth", "Keys ready for a worker", ("queue", "priority"))
        done = metrics.counter("kedge_queue_done_total", "Runs, by outcome", ("queue", "outcome"))
        self.done = {kind: done.labels(name, kind.value) for kind in OutcomeKind}
        self._copied: list[tuple[Counter, Callable[[], float]]] = [
            (metrics.counter(series, help_text, ("queue",)).labels(name), read)
            for series, help_text, read in (
                ("kedge_queue_adds_total", "Wake-ups of keys", lambda: queue.adds),
                ("kedge_queue_refused_total", "Adds rejected by a full queue; a resync is due", lambda: queue.refused),
                (
                    "kedge_queue_aged_total",
                    "Items handed out early because of their age",
                    lambda: queue.aged,
                ),
                ("kedge_queue_service_seconds_total", "Time from get to done, of all runs", lambda: queue.service_s),
            )
        ]
        self._copied.append((self.done[OutcomeKind.SUCCESS], lambda: queue.successes))
        self._copied_before = [0.0] * len(self._copied)
        self.wakes_dropped = metrics.counter(
            "kedge_queue_wakes_dropped_total", "Distinct wake-ups of a run dropped at the bound", ("queue",)
        ).labels(name)
        self.wait_s = metrics.histogram("kedge_queue_wait_seconds", "Time from ready to a worker", ("queue",)).labels(
            name
        )
        self.backoff_s = metrics.histogram(
            "kedge_queue_backoff_seconds", "Backoff after failed runs", ("queue",)
        ).labels(name)
        self.loops = metrics.counter(
            "kedge_queue_loops_total", "Keys found running in a loop, by kind", ("queue", "kind")
        )
        self.holds = metrics.counter(
            "kedge_queue_holds_total", "Runs after which a looping key was held back", ("queue",)
        ).labels(name)
        self.resyncs = metrics.counter("kedge_queue_resyncs_total", "Keys added by a resync", ("queue",)).labels(name)
        order, detector = queue.order, queue.detector
        for series, help_text, read in (
            ("kedge_queue_waiting", "Keys not yet due", lambda: queue.waiting),
            ("kedge_queue_running", "Keys with a worker", lambda: queue.running),
            ("kedge_queue_failing", "Keys whose last run failed", lambda: queue.failing),
            ("kedge_queue_oldest_seconds", "Wait of the key that has been ready longest", lambda: queue.oldest_ready_s),
            ("kedge_queue_slow_running", "Runs of tenants whose runs are long", lambda: order.slow_in_flight),
            ("kedge_queue_resync_owed", "1 while adds were rejected and not resynced", lambda: queue.resync_owed),
            ("kedge_queue_histories", "Keys whose last runs are remembered", lambda: len(detector)),
            (
                "kedge_queue_looping",
                "Keys throttled for running in a loop",
                lambda: sum(1 for _ in detector.loops()),
            ),
        ):
            metrics.gauge(series, help_text, ("queue",)).labels(name).set_function(read)

    def _collect(self) -> float:
        for n, (counter, read) in enumerate(self._copied):
            count = read()
            counter.inc(count - self._copied_before[n])
            self._copied_before[n] = count
        return len(self._queue)

    def show_priority(self, priority: int) -> None:
        """Begin to export the depth of a priority that has not been seen before."""
        if priority not in self.priorities:
            self.priorities.add(priority)
            order = self._queue.order
            self._depth.labels(self._queue.name, str(priority)).set_function(lambda: order.ready_at(priority))
