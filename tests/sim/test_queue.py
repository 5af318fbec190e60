"""Workers, random failures, wrong clocks: no key twice at once, no wake-up lost, no tenant starved, no storm."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from kedge.env import Env
from kedge.errors import Unavailable
from kedge.keys import Key
from kedge.limits import Limits
from kedge.runtime.queue import Item, ItemOutcome, Loop, LoopKind, QueueClosed, RunEffects, Wake, WorkQueue
from kedge.sim.kernel import NO_FAULTS, Simulation, run, simulate

Reconcile = Callable[[Item[Key]], Awaitable[tuple[ItemOutcome, RunEffects | None]]]


def key_of(tenant: str, n: int) -> Key:
    return Key("Pod", tenant, f"pod-{n}")


async def work(queue: WorkQueue[Key], reconcile: Reconcile) -> None:
    """A worker that runs until the queue is closed."""
    while True:
        try:
            item = await queue.get()
        except QueueClosed:
            return
        outcome, facts = await reconcile(item)
        queue.done(item, outcome, facts)


# -- safety and liveness


@dataclass
class VersionTable:
    """The current versions, the versions last reconciled (`seen`), and the keys in progress (`running`)."""

    sim: Simulation
    env: Env
    failing: bool = True
    versions: dict[Key, int] = field(default_factory=dict)
    seen: dict[Key, int] = field(default_factory=dict)
    running: set[Key] = field(default_factory=set)
    runs: int = 0

    async def reconcile(self, item: Item[Key]) -> tuple[ItemOutcome, RunEffects | None]:
        if item.key in self.running:
            self.sim.violate("no key runs twice at once", str(item.key))
        self.running.add(item.key)
        self.runs += 1
        try:
            version = self.versions[item.key]
            await asyncio.sleep(self.env.random.choice((0.0, 0.001, 0.05, 0.5)))
            if self.failing and self.env.random.random() < 0.3:
                return ItemOutcome.failure(Unavailable("drawn to fail")), None
            self.seen[item.key] = version
            if self.env.random.random() < 0.1:
                return ItemOutcome.requeue(delay_s=self.env.random.choice((0.0, 1.0))), None
            return ItemOutcome.success(), RunEffects(changed=True, wrote=frozenset({(item.key, version)}))
        finally:
            self.running.discard(item.key)


@simulate(seeds=60, marks=("woken while running", "refused", "a worker was cancelled"))
async def test_no_key_runs_twice_at_once_and_no_wake_up_is_lost(sim: Simulation) -> None:
    host = sim.host("controller")
    env = host.env(limits=Limits(queue_keys_max=25))
    table = VersionTable(sim, env)
    queue: WorkQueue[Key] = WorkQueue(env, "pods", workers=4, priority_of=lambda key: len(key.name) % 2)
    workers = [host.spawn(work(queue, table.reconcile), name=f"worker {n}") for n in range(4)]
    keys = [key_of(f"tenant-{n % 3}", n) for n in range(40)]

    async def resync_when_owed() -> None:
        with contextlib.suppress(QueueClosed):
            while True:
                await queue.wait_resync_owed()
                await queue.resync(list(table.versions), spread_s=2.0)

    async def change() -> None:
        for _ in range(200):
            key = env.random.choice(keys)
            table.versions[key] = table.versions.get(key, 0) + 1
            sim.sometimes("woken while running", key in table.running)
            taken = queue.add(key, Wake(str(key), "user"), delay_s=env.random.choice((0.0, 0.0, 0.3)))
            sim.sometimes("refused", not taken)
            await asyncio.sleep(env.random.choice((0.0, 0.0, 0.01, 0.2)))

    async def disturb() -> None:
        """Cancels idle workers at any moment; a wake-up must not be lost with them."""
        for _ in range(20):
            await asyncio.sleep(env.random.uniform(0.0, 1.0))
            idle = host.spawn(queue.get(), name="passer-by")
            await asyncio.sleep(env.random.choice((0.0, 0.001)))
            if idle.cancel():
                sim.sometimes("a worker was cancelled")
            try:
                item = await idle
            except asyncio.CancelledError:
                continue
            queue.done(item, ItemOutcome.requeue(delay_s=0.0))

    owner = host.spawn(resync_when_owed(), name="owner")
    await asyncio.gather(host.run(change()), host.run(disturb()))
    table.failing = False
    sim.heal()
    sim.check_eventually(lambda: len(queue) == 0, lambda: table.seen == table.versions)
    await sim.converge(within_s=300, stays_s=10)
    queue.close()
    await asyncio.gather(*workers, owner)


@simulate(seeds=5, faults=NO_FAULTS)
async def test_a_delay_ends_on_time_although_one_worker_is_busy_and_the_clock_is_slow(sim: Simulation) -> None:
    host = sim.host("controller")
    host.skew(rate=0.5)  # timers of the loop fire before the host's own clock has reached the time
    queue: WorkQueue[Key] = WorkQueue(host.env(), "pods")
    begun_s: list[float] = []

    async def reconcile(_: Item[Key]) -> tuple[ItemOutcome, RunEffects | None]:
        begun_s.append(sim.now_s)
        await asyncio.sleep(100)
        return ItemOutcome.success(), None

    workers = [host.spawn(work(queue, reconcile), name=f"worker {n}") for n in range(2)]
    await asyncio.sleep(0)
    queue.add(key_of("a", 1), "x", delay_s=3.3)
    queue.add(key_of("a", 0), "x", delay_s=1.1)  # sooner than the timer
    await asyncio.sleep(50)
    assert begun_s == [pytest.approx(2.2, abs=0.01), pytest.approx(6.6, abs=0.01)]
    queue.close()
    await asyncio.gather(*workers)


@simulate(seeds=30)
async def test_close_loses_no_item_in_flight(sim: Simulation) -> None:
    host = sim.host("controller")
    env = host.env()
    table = VersionTable(sim, env)
    queue: WorkQueue[Key] = WorkQueue(env, "pods", workers=3)
    for n in range(30):
        table.versions[key_of("a", n)] = 1
        queue.add(key_of("a", n), "x")
    workers = [host.spawn(work(queue, table.reconcile), name=f"worker {n}") for n in range(3)]
    await asyncio.sleep(env.random.uniform(0.0, 2.0))
    left = await host.run(queue.drain())
    assert not table.running
    assert {key for key in table.versions if key not in table.seen} <= set(left)
    await asyncio.gather(*workers)


def test_the_same_seed_gives_the_same_run() -> None:
    program = test_close_loses_no_item_in_flight.kedge_target.program  # type: ignore[attr-defined]
    first = run(program, 7)
    assert run(program, first.tape).hash == first.hash


# -- fairness


async def latencies(
    sim: Simulation, *, noisy_keys: int, fail_s: float, quiet_s: float, limits: Limits, workers: int
) -> list[float]:
    """From add to done of one tenant's single key, again and again, beside a tenant whose keys all fail."""
    host = sim.host("controller")
    env = host.env(limits=limits)
    queue: WorkQueue[Key] = WorkQueue(env, "pods", workers=workers)
    quiet = key_of("quiet", 0)
    ended = asyncio.Event()

    async def reconcile(item: Item[Key]) -> tuple[ItemOutcome, RunEffects | None]:
        if item.key == quiet:
            await asyncio.sleep(quiet_s)
            ended.set()
            return ItemOutcome.success(), None
        await asyncio.sleep(fail_s * env.random.uniform(0.5, 1.5))
        return ItemOutcome.failure(Unavailable("always")), None

    for n in range(noisy_keys):
        queue.add(key_of("noisy", n), "x")
    for n in range(workers):
        host.spawn(work(queue, reconcile), name=f"worker {n}")
    found = []
    for _ in range(100):
        await asyncio.sleep(env.random.uniform(0.1, 0.6))
        begun_s = sim.now_s
        ended.clear()
        queue.add(quiet, "a change")
        await ended.wait()
        found.append(sim.now_s - begun_s)
    queue.close()
    return found


def fairness_ratio(
    seed: int, *, fail_s: float, quiet_s: float = 0.05, limits: Limits | None = None, workers: int = 4
) -> float:
    """The worst latency beside a thousand failing keys, against the worst alone."""

    def measured(noisy_keys: int) -> float:
        async def program(sim: Simulation) -> list[float]:
            return await latencies(
                sim,
                noisy_keys=noisy_keys,
                fail_s=fail_s,
                quiet_s=quiet_s,
                limits=limits or Limits(),
                workers=workers,
            )

        outcome = run(program, seed, faults=NO_FAULTS)
        assert outcome.violation is None, str(outcome.violation)
        return float(max(outcome.result))

    return measured(1000) / measured(0)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("fail_s", [0.002, 0.02, 0.1, 1.0, 20.0])
def test_a_thousand_failing_keys_of_one_tenant_do_not_starve_anothers_single_key(fail_s: float, workers: int) -> None:
    ratio = max(fairness_ratio(seed, fail_s=fail_s, workers=workers) for seed in range(2))
    print(f"failing after {fail_s} s, {workers} workers: the worst latency is {ratio:.2f} times the lonely one")
    assert ratio <= 3.0


def test_a_key_with_medium_runs_does_not_wait_for_keys_with_far_longer_runs() -> None:
    assert fairness_ratio(0, fail_s=20.0, quiet_s=1.0) <= 3.0


def test_the_fairness_comes_from_reserved_workers_when_failures_are_slow() -> None:
    assert fairness_ratio(0, fail_s=20.0, limits=Limits(queue_slow_share_max=1.0)) > 3.0


# -- loops


@dataclass
class SharedField:
    """One field of one object that two controllers write."""

    value: str = ""
    writes: int = 0
    queues: dict[str, WorkQueue[Key]] = field(default_factory=dict)

    def write(self, writer: str, value: str) -> None:
        self.value = value
        self.writes += 1
        for queue in self.queues.values():
            queue.add(key_of("shop", 0), Wake("Pod/shop/pod-0", writer))


@simulate(seeds=10, faults=NO_FAULTS)
async def test_two_controllers_that_undo_each_other_are_nearly_stopped(sim: Simulation) -> None:
    shared = SharedField()
    reported: list[tuple[str, Loop[Key]]] = []

    def start(name: str) -> None:
        host = sim.host(name)

        async def reconcile(_: Item[Key]) -> tuple[ItemOutcome, RunEffects | None]:
            await asyncio.sleep(0.01)
            if shared.value == name:
                return ItemOutcome.success(), RunEffects(changed=False)
            shared.write(name, name)
            return ItemOutcome.success(), RunEffects(changed=True, wrote=frozenset({("Pod/shop/pod-0", name)}))

        shared.queues[name] = WorkQueue(host.env(), name, on_loop=lambda loop: reported.append((name, loop)))
        host.spawn(work(shared.queues[name], reconcile), name=f"worker of {name}")

    start("blue")
    start("red")
    shared.write("alice", "")
    await asyncio.sleep(600)
    assert shared.writes < 120, f"{shared.writes} writes in ten minutes: at full speed it would be tens of thousands"
    rivals = {"blue": "red", "red": "blue"}
    for name, rival in rivals.items():
        assert (LoopKind.OSCILLATION, rival) in [
            (loop.kind, loop.woken_by.writer) for queue, loop in reported if queue == name
        ]
        (loop,) = shared.queues[name].statistics().loops
        assert loop.woken_by == Wake("Pod/shop/pod-0", rival)


@simulate(seeds=10, faults=NO_FAULTS)
async def test_a_status_that_contains_the_time_is_not_written_in_a_loop(sim: Simulation) -> None:
    host = sim.host("controller")
    env = host.env()
    reported: list[Loop[Key]] = []
    queue: WorkQueue[Key] = WorkQueue(env, "notebooks", on_loop=reported.append)
    writes = 0

    async def reconcile(item: Item[Key]) -> tuple[ItemOutcome, RunEffects | None]:
        nonlocal writes
        await asyncio.sleep(0.01)
        writes += 1
        queue.add(item.key, Wake("status", queue.name))
        return ItemOutcome.success(), RunEffects(changed=True, wrote=frozenset({("status", env.now().isoformat())}))

    host.spawn(work(queue, reconcile), name="worker")
    queue.add(key_of("shop", 0), Wake("spec", "alice"))
    await asyncio.sleep(600)
    assert writes < 80
    assert [loop.kind for loop in reported] == [LoopKind.ECHO]


@simulate(seeds=10)
async def test_fan_out_and_fan_in_are_not_throttled(sim: Simulation) -> None:
    host = sim.host("controller")
    env = host.env()
    reported: list[Loop[Key]] = []
    queue: WorkQueue[Key] = WorkQueue(env, "pods", workers=4, on_loop=reported.append)
    runs: dict[Key, int] = {}

    async def reconcile(item: Item[Key]) -> tuple[ItemOutcome, RunEffects | None]:
        runs[item.key] = runs.get(item.key, 0) + 1
        await asyncio.sleep(0.001)
        return ItemOutcome.success(), RunEffects(changed=False)

    for n in range(4):
        host.spawn(work(queue, reconcile), name=f"worker {n}")
    parent = key_of("shop", -1)
    for n in range(300):
        queue.add(key_of("shop", n), Wake("ConfigMap/shop/settings", "alice"))  # one change, many keys
        queue.add(parent, Wake(f"Pod/shop/pod-{n}", "agent"))  # many changes, one key
        await asyncio.sleep(0.005)
    sim.heal()
    await asyncio.sleep(30)
    assert reported == []
    assert len(queue) == 0
    assert all(runs[key_of("shop", n)] == 1 for n in range(300))


# -- storms


@simulate(seeds=10)
async def test_a_resync_of_everything_is_spread_out(sim: Simulation) -> None:
    host = sim.host("controller")
    env = host.env()
    queue: WorkQueue[Key] = WorkQueue(env, "pods", workers=2)
    ran: set[Key] = set()

    async def reconcile(item: Item[Key]) -> tuple[ItemOutcome, RunEffects | None]:
        await asyncio.sleep(0.01)
        ran.add(item.key)
        return ItemOutcome.success(), None

    for n in range(2):
        host.spawn(work(queue, reconcile), name=f"worker {n}")
    sim.heal()  # no clock skew: a rate is measured below
    await host.run(queue.resync([key_of("shop", n) for n in range(600)]))
    deepest = 0
    while len(queue):
        deepest = max(deepest, queue.statistics().ready)
        await asyncio.sleep(0.1)
    assert len(ran) == 600
    assert deepest <= 20
