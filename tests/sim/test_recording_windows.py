"""Recording windows of a process follow objects of the API, rollouts and changes of policies, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from tests.kit.records import decision

from kedge.api.kinds import KINDS
from kedge.api.timestamps import format_time
from kedge.api.wellknown import DEPLOYMENT_KIND, RECORDING_WINDOW_KIND, SCHEDULING_POLICY_KIND
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import Env
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe import Recorder
from kedge.runtime.cache import CacheSet
from kedge.runtime.recording_windows import ADMISSION_KINDS, RULED_KINDS, RecordingWindows
from kedge.server.service import Service
from kedge.sim.kernel import NO_FAULTS, Simulation, run
from kedge.store.memory import MemoryStore

TEMPLATE = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
MATCHED = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["deployments"]}
WEB = Key(DEPLOYMENT_KIND, "default", "web")


class Watched:
    """A service, and a recorder whose windows follow it."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.service = Service(MemoryStore(env), env)
        self.caches = CacheSet(Client(DirectTransport(self.service), env, component="test"), env)
        self.recorder = Recorder(env)

    async def start(self) -> None:
        self.windows = RecordingWindows(self.recorder, self.env)
        names = (RECORDING_WINDOW_KIND, *RULED_KINDS, *ADMISSION_KINDS)
        self.windows.follow(self.caches.cache(KINDS.of_key_kind(name)) for name in names)
        await asyncio.sleep(5)

    async def create(self, kind: str, name: str, spec: dict[str, Any], **more: Any) -> None:
        namespace = "default" if KINDS.of_key_kind(kind).namespaced else ""
        body = {"metadata": {"name": name, "namespace": namespace}, "spec": spec, **more}
        await self.service.create(KINDS.of_key_kind(kind), body)
        await asyncio.sleep(5)

    async def patch(self, key: Key, body: dict[str, Any], subresource: str = "") -> None:
        await self.service.patch(key, body, subresource=subresource)
        await asyncio.sleep(5)

    def kept(self, key: Key = WEB, tenant: str = "default") -> str:
        """The rule that would keep a decision about an object now."""
        return self.recorder.why_keep(decision("not in the sample", key=key, tenant=tenant))

    @property
    def open(self) -> set[str]:
        return {each.name for each in self.recorder.coverage().windows}


def in_virtual_time(program: Callable[[Watched], Awaitable[None]], **limits: float) -> None:
    async def simulated(sim: Simulation) -> None:
        env = sim.host("controllers").env(limits=Limits(decisions_sample_every=1 << 30, **limits))  # type: ignore[arg-type]
        here = Watched(env)
        await here.service.create(KINDS.of_key_kind("Namespace"), {"metadata": {"name": "default"}})
        await program(here)
        await here.caches.stop()

    outcome = run(simulated, 1, faults=NO_FAULTS)
    assert outcome.violation is None, str(outcome.violation)


def until(here: Watched, seconds: float) -> str:
    return format_time(here.env.now() + timedelta(seconds=seconds))


def test_an_object_opens_a_window_in_every_recorder_until_its_end() -> None:
    async def program(here: Watched) -> None:
        await here.create(RECORDING_WINDOW_KIND, "early", {"until": until(here, 600)})
        await here.start()
        assert here.open == {"early"}
        assert here.kept() == "window: early"
        await here.create(RECORDING_WINDOW_KIND, "over", {"until": until(here, -1)})
        await here.create(RECORDING_WINDOW_KIND, "by-hand", {"until": until(here, 60), "tenants": ["risk"]})
        assert here.open == {"early", "by-hand"}
        await here.service.delete(Key(RECORDING_WINDOW_KIND, "", "early"))
        await asyncio.sleep(5)
        assert (here.kept(), here.kept(tenant="risk")) == ("", "window: by-hand")
        await asyncio.sleep(60)
        assert here.open == set()
        assert here.kept(tenant="risk") == ""

    in_virtual_time(program)


def test_an_object_of_a_window_stands_for_everything_that_it_owns() -> None:
    async def program(here: Watched) -> None:
        await here.start()
        spec = {"until": until(here, 600), "objects": [{"kind": "Deployment", "namespace": "default", "name": "web"}]}
        await here.create(RECORDING_WINDOW_KIND, "web", spec)
        for name in ("web", "web-6b5d", "web-6b5d-0"):
            assert here.kept(Key("Pod", "default", name)) == "window: web"
        for other in (Key("Pod", "default", "webshop"), Key("Pod", "risk", "web-0")):
            assert here.kept(other) == ""

    in_virtual_time(program)


def test_an_end_that_is_changed_is_the_new_end_and_none_is_later_than_the_bound() -> None:
    async def program(here: Watched) -> None:
        await here.start()
        await here.create(RECORDING_WINDOW_KIND, "long", {"until": until(here, 10_000)})
        (window,) = here.recorder.coverage().windows
        assert window.until_s <= here.env.monotonic() + 1_000
        await here.patch(Key(RECORDING_WINDOW_KIND, "", "long"), {"spec": {"until": until(here, 20)}})
        await asyncio.sleep(20)
        assert here.open == set()

    in_virtual_time(program, decision_window_s_max=1_000)


def test_a_rollout_in_progress_opens_a_window_for_its_workload_and_a_while_longer() -> None:
    async def program(here: Watched) -> None:
        await here.start()
        spec = {"replicas": 2, "selector": {"matchLabels": {"app": "x"}}, "template": TEMPLATE}
        await here.create(DEPLOYMENT_KIND, "web", spec)
        assert here.open == {"rollout Deployment.apps/default/web"}
        assert here.kept(Key("Pod", "default", "web-1-0")) == "window: rollout Deployment.apps/default/web"
        assert here.kept(Key("Pod", "default", "other-1-0")) == ""
        done = {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}
        await here.patch(WEB, {"status": done}, subresource="status")
        assert here.kept() == "window: rollout Deployment.apps/default/web"
        await asyncio.sleep(100)
        assert here.open == set()
        await here.patch(WEB, {"status": {"readyReplicas": 1}}, subresource="status")
        assert here.open == set(), "a pod that fails is no rollout"
        await here.patch(WEB, {"spec": {"template": {"metadata": {"labels": {"version": "2"}}}}})
        assert here.open == {"rollout Deployment.apps/default/web"}

    in_virtual_time(program, decision_window_after_s=60)


def test_a_change_of_a_policy_opens_a_window_for_its_tenants_and_a_status_does_not() -> None:
    async def program(here: Watched) -> None:
        await here.create(SCHEDULING_POLICY_KIND, "spread", {"version": "v1"})
        await asyncio.sleep(1_000)
        await here.start()
        assert here.open == set(), "a policy that was there before is no change"
        key = Key(SCHEDULING_POLICY_KIND, "", "spread")
        await here.patch(key, {"status": {"activeVersion": "v1"}}, subresource="status")
        assert here.open == set()
        await here.patch(key, {"spec": {"version": "v2", "scope": {"tenants": ["risk"]}}})
        assert (here.kept(tenant="risk"), here.kept()) == ("window: policy spread", "")
        await asyncio.sleep(100)
        assert here.open == set()
        await here.service.delete(key)
        await here.create(SCHEDULING_POLICY_KIND, "new", {"version": "v1"})
        assert here.open == {"policy spread", "policy new"}

    in_virtual_time(program, decision_window_after_s=60)


def test_a_change_of_an_admission_policy_or_binding_opens_a_window_for_everything() -> None:
    policy, binding = ADMISSION_KINDS[:2]
    spec = {"validations": [{"expression": "true"}], "matchConstraints": {"resourceRules": [MATCHED]}}

    async def program(here: Watched) -> None:
        await here.create(policy, "freeze", spec)
        await asyncio.sleep(1_000)
        await here.start()
        assert here.open == set(), "a policy that was there before is no change"
        await here.patch(Key(policy, "", "freeze"), {"spec": {"failurePolicy": "Ignore"}})
        assert here.open == {"admission ValidatingAdmissionPolicy freeze"}
        assert here.kept() == here.kept(tenant="risk") == "window: admission ValidatingAdmissionPolicy freeze"
        await asyncio.sleep(100)
        assert here.open == set()
        await here.create(binding, "now", {"policyName": "freeze", "validationActions": ["Deny"]})
        assert here.open == {"admission ValidatingAdmissionPolicyBinding now"}
        await asyncio.sleep(100)
        await here.service.delete(Key(binding, "", "now"))
        await asyncio.sleep(5)
        assert here.open == {"admission ValidatingAdmissionPolicyBinding now"}

    in_virtual_time(program, decision_window_after_s=60)


def test_a_burn_past_the_bounds_of_its_alert_opens_a_window_that_ends_after_it_and_at_a_bound() -> None:
    async def program(here: Watched) -> None:
        await here.start()
        burning: list[str] = []
        following = here.env.spawn(here.windows.run_burns(lambda: burning), name="burn windows")
        await asyncio.sleep(30)
        assert here.open == set()
        burning.append("time-to-bound")
        await asyncio.sleep(16)
        assert here.kept() == "window: burn time-to-bound"
        burning.clear()
        await asyncio.sleep(40)
        assert here.open == {"burn time-to-bound"}, "it stays open for a while"
        await asyncio.sleep(40)
        assert here.kept() == ""
        burning.append("time-to-bound")
        await asyncio.sleep(160)
        assert here.kept() == "window: burn time-to-bound"
        await asyncio.sleep(80)
        assert here.kept() == "", "a burn without an end is recorded for a bounded time"
        burning.clear()
        await asyncio.sleep(40)
        burning.append("time-to-bound")
        await asyncio.sleep(40)
        assert here.kept() == "", "a rate that moves around its bound is one burn"
        burning.clear()
        await asyncio.sleep(320)
        burning.append("time-to-bound")
        await asyncio.sleep(16)
        assert here.kept() == "window: burn time-to-bound", "it was below the bound for long enough"
        following.cancel()

    in_virtual_time(program, decision_window_after_s=60, decision_burn_window_s_max=300)


def test_more_windows_than_the_bound_are_refused_and_counted() -> None:
    async def program(here: Watched) -> None:
        await here.start()
        for n in range(3):
            await here.create(RECORDING_WINDOW_KIND, f"w-{n}", {"until": until(here, 600)})
        assert here.open == {"w-0", "w-1"}
        refused = here.env.metrics.registry.get_sample_value("kedge_decisions_windows_refused_total")
        assert refused == 1

    in_virtual_time(program, decision_windows_max=2)
