"""Signals of pods and generations: counted once, by the changes of a cache."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from tests.kit.moved_clock import MovedClock

from kedge.api.codec import encode_json
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import EventType, WatchEvent
from kedge.api.timestamps import format_time
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.controllers.shared.generation_signals import GenerationSignals
from kedge.controllers.shared.pod_signals import PodSignals
from kedge.keys import Key, Origin
from kedge.limits import Limits
from kedge.runtime.cache import Cache, CacheSet
from kedge.server.service import Service
from kedge.store.memory import MemoryStore

POD, DEPLOYMENT = KINDS.of_key_kind("Pod"), KINDS.of_key_kind("Deployment.apps")
BOUND, READY = "time-to-bound", "time-to-ready"


class FedCaches:
    """Caches that a test feeds with events, as watchers do."""

    def __init__(self) -> None:
        self.clock = MovedClock(Limits(slo_time_to_bound_s=10.0, slo_time_to_ready_s=60.0))
        env = self.clock.env
        self.client = Client(DirectTransport(Service(MemoryStore(env), env)), env, component="test")
        self.pods = Cache(self.client, env, POD)
        self.revision = 0

    def give(self, cache: Cache, body: dict[str, Any], *, decision: str = "", deleted: bool = False) -> None:
        self.revision += 1
        name = body["metadata"]["name"]
        key = Key(cache.kind.key_kind, "default", name)
        found = Object(cache.kind, key, encode_json(body), revision=self.revision, origin=Origin(decision=decision))
        cache.apply(WatchEvent(EventType.DELETED if deleted else EventType.MODIFIED, found, self.revision))

    def pod(self, name: str, *, decision: str = "", deleted: bool = False, age_s: float = 0.0, **parts: Any) -> None:
        created = format_time(self.clock.now() - timedelta(seconds=age_s))
        metadata = {"name": name, "uid": parts.pop("uid", f"uid of {name}"), "creationTimestamp": created}
        self.give(self.pods, {"metadata": metadata, **parts}, decision=decision, deleted=deleted)

    def events(self, slo: str) -> tuple[float | None, float | None]:
        read = self.clock.metric
        # The gauge is read first, as on a scrape: it counts the pods whose time is up.
        self.clock.metric("kedge_pods", stage="queued")
        return tuple(read("kedge_slo_events_total", slo=slo, outcome=each) for each in ("good", "bad"))  # type: ignore[return-value]

    def stages(self) -> dict[str, float]:
        names = ("admitted", "queued", "scheduled", "bound", "starting", "ready", "unknown")
        found = {name: self.clock.metric("kedge_pods", stage=name) for name in names}
        return {name: count for name, count in found.items() if count}


ON_NODE: dict[str, Any] = {"spec": {"nodeName": "node-1"}}
IS_READY: dict[str, Any] = {
    **ON_NODE,
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}


def test_a_pod_is_counted_at_each_stage_and_its_times_carry_the_decision() -> None:
    fed = FedCaches()
    PodSignals(fed.clock.env, fed.pods)
    fed.pod("a")
    assert fed.stages() == {"queued": 1}
    fed.clock.pass_s(3)
    fed.pod("a", decision="scheduler:p:1", **ON_NODE)
    assert fed.stages() == {"bound": 1}
    fed.clock.pass_s(4)
    fed.pod("a", **IS_READY)
    assert fed.stages() == {"ready": 1}
    assert (fed.events(BOUND), fed.events(READY)) == ((1, 0), (1, 0))
    sums = {stage: fed.clock.metric("kedge_pod_stage_seconds_sum", stage=stage) for stage in ("queued", "bound")}
    assert sums == {"queued": 3.0, "bound": 4.0}
    page = fed.clock.env.metrics.page("application/openmetrics-text")[0].decode()
    assert 'kedge_pod_stage_seconds_bucket{le="5.0",stage="queued"} 1.0 # {decision="scheduler:p:1"} 3.0' in page
    fed.pod("a", deleted=True)
    assert fed.stages() == {}


def test_a_pod_that_was_replaced_while_no_event_came_is_counted_once() -> None:
    """A list shows only the successor: pods of a StatefulSet keep their names."""
    fed = FedCaches()
    signals = PodSignals(fed.clock.env, fed.pods)
    for number in range(20):
        fed.pod("a", uid=f"uid {number}", **IS_READY)
    assert fed.stages() == {"ready": 1}
    assert list(signals._pods) == ["uid 19"]


def test_deadlines_of_pods_do_not_wait_for_a_scrape() -> None:
    fed = FedCaches()
    signals = PodSignals(fed.clock.env, fed.pods)
    for number in range(50):
        fed.pod(f"p{number}")
        fed.pod(f"p{number}", deleted=True)
        fed.clock.pass_s(30)
    assert len(signals._deadlines) <= 4


def test_a_pod_that_waits_is_bad_once_when_its_time_is_up() -> None:
    fed = FedCaches()
    PodSignals(fed.clock.env, fed.pods)
    fed.pod("a")
    fed.clock.pass_s(9)
    assert fed.events(BOUND) == (0, 0)
    fed.clock.pass_s(2)
    assert fed.events(BOUND) == (0, 1)
    fed.clock.pass_s(20)
    fed.pod("a", **ON_NODE)
    assert fed.events(BOUND) == (0, 1)
    assert fed.events(READY) == (0, 0)
    fed.pod("a", **IS_READY)
    assert fed.events(READY) == (1, 0)


def test_time_behind_a_scheduling_gate_does_not_count() -> None:
    fed = FedCaches()
    PodSignals(fed.clock.env, fed.pods)
    fed.pod("a", spec={"schedulingGates": [{"name": "wait"}]})
    assert fed.stages() == {"admitted": 1}
    fed.clock.pass_s(100)
    assert fed.events(BOUND) == (0, 0)
    fed.pod("a", age_s=100)
    fed.clock.pass_s(5)
    fed.pod("a", **ON_NODE)
    assert fed.events(BOUND) == (1, 0)


def test_a_process_that_starts_counts_only_the_outcomes_that_are_still_open() -> None:
    fed = FedCaches()
    fed.pod("done", age_s=1_000, **IS_READY)
    fed.pod("bound", age_s=30, **ON_NODE)
    fed.pod("stuck", age_s=30)
    PodSignals(fed.clock.env, fed.pods)
    assert fed.stages() == {"ready": 1, "bound": 1, "queued": 1}
    assert fed.events(BOUND) == (0, 1)
    assert fed.events(READY) == (0, 0)
    fed.clock.pass_s(31)
    assert fed.events(READY) == (0, 2)


def test_a_pod_that_ended_is_judged_by_its_end_and_a_deleted_one_is_not_counted() -> None:
    fed = FedCaches()
    PodSignals(fed.clock.env, fed.pods)
    for name, phase in (("job", "Succeeded"), ("crash", "Failed")):
        fed.pod(name, **ON_NODE)
        fed.pod(name, spec={"nodeName": "node-1"}, status={"phase": phase})
    fed.pod("gone")
    fed.pod("gone", deleted=True)
    assert (fed.events(BOUND), fed.events(READY)) == ((2, 0), (1, 1))
    fed.clock.pass_s(1_000)
    assert (fed.events(BOUND), fed.events(READY), fed.stages()) == ((2, 0), (1, 1), {})


def test_a_generation_ahead_of_the_status_is_counted_until_the_status_follows() -> None:
    async def main() -> None:
        fed = FedCaches()
        caches = CacheSet(fed.client, fed.clock.env)
        GenerationSignals(fed.clock.env, caches)
        cache = caches.cache(DEPLOYMENT)

        def change(name: str, generation: int, observed: int, *, deleted: bool = False) -> None:
            metadata = {"name": name, "uid": name, "generation": generation}
            fed.give(cache, {"metadata": metadata, "status": {"observedGeneration": observed}}, deleted=deleted)

        def shown() -> tuple[float | None, float | None]:
            read, kind = fed.clock.metric, "Deployment"
            return read("kedge_generations_ahead", kind=kind), read("kedge_generation_ahead_seconds", kind=kind)

        change("a", 1, 1)
        assert shown() == (0, 0)
        change("a", 2, 1)
        fed.clock.pass_s(5)
        change("b", 3, 1)
        fed.clock.pass_s(5)
        change("a", 3, 1)  # still behind: the time goes on
        assert shown() == (2, 10)
        change("a", 3, 3)
        assert shown() == (1, 5)
        change("b", 3, 1, deleted=True)
        assert shown() == (0, 0)
        await caches.stop()

    asyncio.run(main())


def test_an_objective_is_past_its_alert_once_pods_have_waited_too_long_without_a_scrape() -> None:
    fed = FedCaches()
    signals = PodSignals(fed.clock.env, fed.pods)
    for number in range(5):
        fed.pod(f"slow-{number}", spec={})
    assert signals.past_alert() == []
    fed.clock.pass_s(11)
    assert signals.past_alert() == [BOUND]
