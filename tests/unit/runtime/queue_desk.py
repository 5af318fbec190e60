"""A queue on a clock that only the test moves."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from kedge.env import Env, TaskSpawner, uid_from
from kedge.limits import Limits
from kedge.runtime.queue import Item, ItemOutcome, Loop, RunEffects, Wake, WorkQueue


class Desk:
    """One queue of string keys; the tenant is what stands before the slash, if anything does."""

    def __init__(self, *, seed: int = 0, workers: int = 0, limits: Limits | None = None, **named: Any) -> None:
        self.now_s = 1000.0
        source = random.Random(seed)
        self.env = Env(
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now_s),
            monotonic=lambda: self.now_s,
            random=source,
            new_uid=lambda: uid_from(source),
            spawn=TaskSpawner(),
            limits=limits or Limits(),
        )
        self.loops: list[Loop[str]] = []
        named.setdefault("tenant_of", lambda key: key.partition("/")[0] if "/" in key else "")
        self.queue: WorkQueue[str] = WorkQueue(self.env, "test", workers=workers, on_loop=self.loops.append, **named)

    def take(self) -> Item[str]:
        item = self.queue.get_nowait()
        assert item is not None, "nothing is ready"
        return item

    def taken(self, count: int, *, service_s: float = 0.0) -> list[str]:
        """Run so many items one after another."""
        keys = []
        for _ in range(count):
            item = self.take()
            self.now_s += service_s
            self.queue.done(item)
            keys.append(item.key)
        return keys

    def run(
        self, key: str, why: str | Wake, outcome: ItemOutcome | None = None, facts: RunEffects | None = None
    ) -> float:
        """Wake a key, let it run as soon as it may, and tell how long that took."""
        assert self.queue.add(key, why)
        begun_s = self.now_s
        report = self.queue.explain(key)
        assert report is not None
        assert report.next_run_s is not None
        self.now_s = max(self.now_s, report.next_run_s)
        item = self.take()
        assert item.key == key
        self.queue.done(item, outcome or ItemOutcome.success(), facts)
        return self.now_s - begun_s

    def sample(self, name: str, **labels: str) -> float:
        value = self.env.metrics.registry.get_sample_value(name, {"queue": "test", **labels})
        assert value is not None, f"no series {name}"
        return value


def fails(text: str = "no") -> ItemOutcome:
    return ItemOutcome.failure(RuntimeError(text))
