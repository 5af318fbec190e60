"""Any order of calls, against a model queue of plain lists that are searched linearly."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.kit.runtime import QueueHarness, fails

from kedge.limits import Limits
from kedge.runtime.queue import REQUEUE, RETRY, SPIN, Item, ItemOutcome, KeyState, RunEffects, Wake

KEYS = tuple(f"{tenant}/{n}" for tenant in "abc" for n in range(3))
LIMITS = Limits(queue_keys_max=7, queue_aging_s=8.0, queue_wakes_max=3, queue_backoff_s=1.0, queue_backoff_s_max=8.0)
DELAYS = st.sampled_from((0.0, 0.0, 1.0, 2.0, 5.0))
PRIORITIES = st.sampled_from((None, None, 0, 1, 2))


@dataclass
class ModelEntry:
    """One key that is queued or running."""

    key: str
    base: int
    priority: int
    due: float
    order: int
    ready: bool = False
    running: Item[str] | None = None
    again: float | None = None
    failures: int = 0
    wakes: list[Wake] = field(default_factory=list)

    def wake(self, wake: Wake) -> None:
        if wake not in self.wakes and len(self.wakes) < LIMITS.queue_wakes_max:
            self.wakes.append(wake)


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.harness = QueueHarness(limits=LIMITS)
        self.model: dict[str, ModelEntry] = {}
        self.orders = 0
        self.last_added: dict[str, int] = {}
        self.last_begun: dict[str, int] = {}
        self.refused = False

    # -- the plain queue

    def next_order(self) -> int:
        self.orders += 1
        return self.orders

    def promote(self) -> None:
        due = [n for n in self.model.values() if n.running is None and not n.ready and n.due <= self.harness.now_s]
        for naive in sorted(due, key=lambda n: (n.due, n.order)):
            naive.ready = True
            naive.order = self.next_order()

    def plan(self, naive: ModelEntry, due: float) -> None:
        naive.due = due
        naive.order = self.next_order()
        naive.ready = due <= self.harness.now_s

    def ready(self) -> list[ModelEntry]:
        return sorted((n for n in self.model.values() if n.ready), key=lambda n: n.order)

    def out(self) -> list[ModelEntry]:
        return [n for n in self.model.values() if n.running is not None]

    # -- calls

    @rule(key=st.sampled_from(KEYS), why=st.sampled_from("wxyz"), delay_s=DELAYS, priority=PRIORITIES)
    def add(self, key: str, why: str, delay_s: float, priority: int | None) -> None:
        taken = self.harness.queue.add(key, why, delay_s=delay_s, priority=priority)
        naive = self.model.get(key)
        due = self.harness.now_s + delay_s
        if naive is None:
            if len(self.model) >= LIMITS.queue_keys_max:
                assert not taken
                self.refused = True
                return
            naive = self.model[key] = ModelEntry(key, priority or 0, priority or 0, due, 0)
            self.plan(naive, due)
        else:
            naive.base = naive.base if priority is None else priority
            if naive.running is not None and naive.again is None:
                naive.priority = naive.base
            elif naive.base > naive.priority:
                naive.priority = naive.base
                if naive.ready:
                    naive.order = self.next_order()
            if naive.running is not None:
                naive.again = due if naive.again is None else min(naive.again, due)
            elif not naive.ready and due < naive.due:
                self.plan(naive, due)
        assert taken
        naive.wake(Wake(why))
        self.last_added[key] = self.next_order()

    @rule(seconds=st.sampled_from((0.5, 1.0, 3.0, 9.0)))
    def wait(self, seconds: float) -> None:
        self.harness.now_s += seconds

    @rule()
    def get(self) -> None:
        self.promote()
        ready = self.ready()
        item = self.harness.queue.get_nowait()
        if not ready:
            assert item is None
            return
        assert item is not None
        naive = self.model[item.key]
        assert naive.ready, "it was not due, or it runs already"
        if item.aged:
            oldest_s = min(n.due for n in ready if n.priority == naive.priority)
            assert self.harness.now_s - oldest_s >= LIMITS.queue_aging_s
        else:
            assert naive.priority == max(n.priority for n in ready)
        line = [n for n in ready if n.priority == naive.priority and n.key[0] == naive.key[0]]
        assert line[0] is naive, "first come, first served inside a tenant"
        assert list(item.wakes) == naive.wakes
        assert item.attempt == naive.failures + 1
        naive.ready, naive.running, naive.wakes = False, item, []
        naive.priority = naive.base
        self.last_begun[item.key] = self.next_order()

    @precondition(lambda self: self.out())
    @rule(data=st.data(), outcome=st.sampled_from(("success", "failure", "requeue", "spin", "terminal")))
    def done(self, data: st.DataObject, outcome: str) -> None:
        naive = data.draw(st.sampled_from(self.out()))
        assert naive.running is not None
        self.finish(naive, naive.running, outcome)

    def finish(self, naive: ModelEntry, item: Item[str], outcome: str) -> None:
        delay_s = {"requeue": 2.0, "spin": 0.0}.get(outcome, 0.0)
        made = {
            "success": ItemOutcome.success(),
            "failure": fails(),
            "terminal": ItemOutcome.terminal(ValueError()),
        }.get(outcome) or ItemOutcome.requeue(delay_s=delay_s)
        self.harness.queue.done(item, made, RunEffects(changed=True))
        dues: list[tuple[float, Wake | None]] = [] if naive.again is None else [(naive.again, None)]
        naive.running, naive.again = None, None
        naive.failures = naive.failures + 1 if outcome == "failure" else 0
        if outcome in ("requeue", "spin"):
            dues.append((self.harness.now_s + delay_s, REQUEUE if outcome == "requeue" else SPIN))
        if outcome == "failure":
            whole_s = min(LIMITS.queue_backoff_s * 2 ** (naive.failures - 1), LIMITS.queue_backoff_s_max)
            report = self.harness.queue.explain(naive.key)
            assert report is not None
            assert report.next_run_s is not None
            if not dues or report.next_run_s < dues[0][0]:
                assert whole_s / 2 <= report.next_run_s - self.harness.now_s <= whole_s
                dues.append((report.next_run_s, RETRY))
        if not dues:
            del self.model[naive.key]
            return
        due, wake = min(dues, key=lambda each: each[0])
        if wake is not None:
            naive.wake(wake)
        self.plan(naive, due)

    # -- what must hold

    @invariant()
    def the_two_agree(self) -> None:
        self.promote()
        found = self.harness.queue.statistics()
        assert found.keys == len(self.model) <= LIMITS.queue_keys_max
        assert (found.ready, found.running) == (len(self.ready()), len(self.out()))
        assert found.waiting == found.keys - found.ready - found.running
        assert found.failing == sum(n.failures > 0 for n in self.model.values())
        assert found.resync_owed == self.refused
        by_tenant: dict[str, int] = {}
        by_priority: dict[int, int] = {}
        for naive in self.ready():
            by_tenant[naive.key[0]] = by_tenant.get(naive.key[0], 0) + 1
            by_priority[naive.priority] = by_priority.get(naive.priority, 0) + 1
        assert found.ready_by_tenant == by_tenant
        assert found.ready_by_priority == by_priority
        states = {report.key: report.state for report in self.harness.queue.reports()}
        assert states == {
            n.key: KeyState.RUNNING if n.running else KeyState.READY if n.ready else KeyState.WAITING
            for n in self.model.values()
        }

    def teardown(self) -> None:
        """With time and workers the queue empties, and every add was followed by a run."""
        for _ in range(200):
            for naive in self.out():
                assert naive.running is not None
                self.finish(naive, naive.running, "success")
            if not self.model:
                break
            self.harness.now_s += 5.0
            self.get()
        assert len(self.harness.queue) == 0
        assert self.harness.queue.get_nowait() is None
        for key, added in self.last_added.items():
            assert self.last_begun[key] > added
        assert self.harness.queue.order.tenants == {}, "an empty queue remembers no tenant"
        assert list(self.harness.queue.order.lanes()) == []


QueueMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestAQueueAndItsPlainTwin = QueueMachine.TestCase
