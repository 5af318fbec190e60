"""The judge of cost: one more than a limit allows is a finding, which names the key and the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from tests.kit.raw_cluster import RawCluster, replica_set

from kedge.api.kinds import KINDS
from kedge.api.requests import ListOptions
from kedge.api.wellknown import EVENT_KIND, OPERATION_KIND
from kedge.client.contract import Client
from kedge.errors import Refused, to_status
from kedge.keys import FENCE, Key, Origin
from kedge.observe.records import Call, Decision, encode_intent
from kedge.sim.cluster import Cluster
from kedge.sim.cluster.decision_observers import ObservedRecorder
from kedge.sim.judges.costs import WINDOW_S, CostLimits
from kedge.sim.judges.endings import check_silence
from kedge.sim.judges.invariants import COSTS, Judge
from kedge.sim.kernel import NO_FAULTS, Simulation, run
from kedge.sim.kernel.violations import Violation
from kedge.store import Put

WEB = Key("ReplicaSet.apps", "default", "web")
POD = KINDS.of_key_kind("Pod")
AMPLE = CostLimits(**{each.name: 10**6 for each in fields(CostLimits)})
MOST = 3


@dataclass
class Spender:
    """Spends one unit of each cost."""

    raw: RawCluster
    client: Client
    recorder: ObservedRecorder
    spent: int = 0

    def decide(self, **more: Any) -> None:
        self.spent += 1
        self.recorder.take(
            Decision(
                id=f"replicaset:p:{self.spent}",
                controller="replicaset",
                process="p",
                key=WEB,
                tenant="default",
                priority=0,
                began=self.raw.cluster.store_host.now(),
                wakes=(("Pod/default/web-0", "endpoints"),),
                **more,
            )
        )

    async def write(self) -> None:
        self.spent += 1
        origin = Origin("operation", "replicaset:p:1")
        annotate = {"n": str(self.spent)}
        await self.raw.put(WEB, lambda found: found["metadata"].update(annotations=annotate), origin=origin)


async def decide(spender: Spender) -> None:
    spender.decide()


async def fail(spender: Spender) -> None:
    spender.decide(error="Conflict: it has changed")


async def be_refused(spender: Spender) -> None:
    error = Refused("no room", key=WEB, refusal="Resource", revision=1)
    call = Call("bind", WEB, encode_intent(None), "", "", 0.0, 0.0, "Refused", error=to_status(error))
    spender.decide(error="Refused: no room", steps=[call])


async def write(spender: Spender) -> None:
    await spender.write()


async def change_the_leader(spender: Spender) -> None:
    spender.spent += 1
    key = Key(FENCE, "kube-system", "replicaset-controller")
    await spender.raw.cluster.store.commit([], [Put(key, str(spender.spent).encode())])


async def list_pods(spender: Spender) -> None:
    await spender.client.list(POD, ListOptions(namespace="default"))


async def watch_pods(spender: Spender) -> None:
    stream = await spender.client.watch(POD)
    await stream.aclose()


SPENDINGS: list[tuple[str, Callable[[Spender], Awaitable[None]], str]] = [
    (
        "decisions_per_key_max",
        decide,
        "replicaset decided about ReplicaSet.apps/default/web, woken by Pod/default/web-0",
    ),
    ("failures_per_key_max", fail, "replicaset failed at ReplicaSet.apps/default/web with Conflict"),
    ("refusals_per_key_max", be_refused, "refused ReplicaSet.apps/default/web because of Resource"),
    ("writes_per_key_max", write, "replicaset wrote ReplicaSet.apps/default/web"),
    ("terms_per_lease_max", change_the_leader, "the lease of replicaset-controller got another holder"),
    ("lists_per_kind_max", list_pods, "spender listed Pod"),
    ("watches_per_kind_max", watch_pods, "spender watched Pod"),
]


def spend(limits: CostLimits, times: int, act: Callable[[Spender], Awaitable[None]], *, every_s: float = 0.1) -> Any:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, servers=1)
        await cluster.set_up()
        raw = RawCluster(cluster, Judge(cluster, costs=limits))
        await raw.add(replica_set(0), "rs-1")
        await asyncio.sleep(3 * WINDOW_S - sim.now_s)  # the commits of the setup allow more only in their own minutes
        host = sim.host("spender")
        recorder = ObservedRecorder(host.env(), host.name, cluster._decision_observers)
        spender = Spender(raw, cluster.client(host), recorder)
        for _ in range(times):
            await act(spender)
            await asyncio.sleep(every_s)

    return run(program, 1, faults=NO_FAULTS).violation


@pytest.mark.parametrize(("limit", "act", "text"), SPENDINGS, ids=[limit for limit, _, _ in SPENDINGS])
def test_a_minute_costs_as_much_as_its_limit_allows_and_no_more(
    limit: str, act: Callable[[Spender], Awaitable[None]], text: str
) -> None:
    limits = replace(AMPLE, **{limit: MOST})
    assert spend(limits, MOST, act) is None
    violation = spend(limits, MOST + 1, act)
    assert violation is not None
    assert violation.invariant == COSTS
    assert text in violation.message
    assert f"{MOST + 1} times" in violation.message


def test_the_next_minute_is_counted_again() -> None:
    limits = replace(AMPLE, decisions_per_key_max=MOST)
    assert spend(limits, 3 * MOST, decide, every_s=WINDOW_S / MOST) is None


def test_commits_of_others_allow_more_decisions_and_own_commits_do_not() -> None:
    async def with_changes(spender: Spender) -> None:
        if spender.spent < MOST:  # a commit of another component for each of them
            await spender.raw.put(WEB, lambda found: found["metadata"].update(annotations={"n": str(spender.spent)}))
        spender.decide()

    async def with_own_writes(spender: Spender) -> None:
        await spender.write()
        spender.decide()

    limits = replace(AMPLE, decisions_per_key_max=MOST)
    assert spend(limits, 2 * MOST, with_changes) is None
    assert isinstance(spend(limits, MOST + 1, with_own_writes), Violation)


def test_a_cluster_that_decides_much_and_changes_little_is_a_finding() -> None:
    limits = replace(AMPLE, idle_decisions_max=MOST, decisions_per_change_max=1.0)
    assert spend(limits, MOST, decide, every_s=WINDOW_S / MOST) is None
    violation = spend(limits, 4 * MOST, decide, every_s=WINDOW_S / MOST / 2)
    assert violation is not None
    assert "decisions in a minute" in violation.message
    assert "by replicaset about ReplicaSet.apps/default/web" in violation.message


async def write_an_event(spender: Spender) -> None:
    """A commit that is no work: Events and records allow no more of them."""
    spender.spent += 1
    key = Key(EVENT_KIND, "default", f"event-{spender.spent}")
    await spender.raw.cluster.store.commit([], [Put(key, b"{}")], origin=Origin("", "replicaset:p:1"))


async def renew(spender: Spender) -> None:
    spender.spent += 1
    key = Key("Lease.coordination.k8s.io", "kube-system", "replicaset-controller")
    await spender.raw.cluster.store.commit([], [Put(key, b"{}")], origin=Origin("", "replicaset:p:1"))


async def record_an_operation(spender: Spender) -> None:
    spender.spent += 1
    key = Key(OPERATION_KIND, "", f"operation-{spender.spent}")
    await spender.raw.cluster.store.commit([], [Put(key, b"{}")], origin=Origin("operation", "replicaset:p:1"))


@pytest.mark.parametrize(
    ("limit", "act", "text"),
    [
        ("history", write_an_event, "versions in a minute, with 0 commits in that minute and the one before; "),
        ("operations", record_an_operation, "operation records in a minute, with 0 commits"),
    ],
)
def test_history_and_operation_records_of_a_minute_are_bounded(
    limit: str, act: Callable[[Spender], Awaitable[None]], text: str
) -> None:
    most = {f"idle_{limit}_max": MOST, f"{limit}_per_change_max": 1.0}
    limits = replace(AMPLE, **most)  # type: ignore[arg-type]
    assert spend(limits, 2 * MOST, act, every_s=WINDOW_S / MOST) is None
    violation = spend(limits, 4 * MOST, act, every_s=WINDOW_S / MOST / 2)
    assert violation is not None
    assert violation.invariant == COSTS
    assert text in violation.message
    assert "by replicaset" in violation.message


def test_renewals_of_leases_add_nothing_to_the_history() -> None:
    limits = replace(AMPLE, idle_history_max=MOST, history_per_change_max=1.0)
    assert spend(limits, 4 * MOST, renew, every_s=WINDOW_S / MOST / 2) is None


def test_commits_allow_more_history_and_more_operation_records() -> None:
    async def work(spender: Spender) -> None:
        await spender.write()
        await record_an_operation(spender)

    few: dict[str, Any] = {"idle_history_max": 0, "idle_operations_max": 0}
    allowed = replace(AMPLE, **few, history_per_change_max=2.0, operations_per_change_max=1.0)
    assert spend(allowed, 4 * MOST, work, every_s=WINDOW_S / MOST / 2) is None
    for limit in ("history_per_change_max", "operations_per_change_max"):
        low: dict[str, Any] = {limit: 0.5}
        assert spend(replace(allowed, **low), 4 * MOST, work, every_s=WINDOW_S / MOST / 2) is not None


@pytest.mark.parametrize(
    ("key", "times", "found"),
    [
        (Key("Lease.coordination.k8s.io", "kube-node-lease", "node-a"), 2, False),
        (Key("Lease.coordination.k8s.io", "kube-node-lease", "node-a"), 40, True),
        (Key(FENCE, "kube-system", "replicaset-controller"), 1, False),
        (Key(FENCE, "kube-system", "replicaset-controller"), 2, True),
        (Key("Event", "default", "web.1"), 1, True),
    ],
)
def test_upkeep_of_a_settled_cluster_is_bounded(key: Key, times: int, found: bool) -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.set_up()
        silence = asyncio.ensure_future(check_silence(cluster, for_s=30.0))
        await asyncio.sleep(1)
        for n in range(times):
            await cluster.store.commit([], [Put(key, b'{"n": %d}' % n)], origin=Origin("operation", "events:p:1"))
        await silence

    violation = run(program, 1, faults=NO_FAULTS).violation
    assert (violation is not None) == found
    if violation is not None:
        assert violation.invariant == "then silence"
        assert f"{key} by events:p:1" in violation.message
