"""The agent's plan for a pod: what starts, what stops, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.agent import NOW, pod_view, process_of

from kedge.agent.core.driver import ContainerProcess
from kedge.agent.core.plan import Ending, Health, PodObservation, PodPlan, plan_pod, restart_pause_s
from kedge.agent.core.status import pod_status
from kedge.api.views import PodView
from kedge.limits import Limits

LIMITS = Limits()


def plan(view: PodView | None, *processes: ContainerProcess, now_s: float = 0.0, **observed: Any) -> PodPlan:
    return plan_pod(PodObservation(pod=view, processes=processes, now_s=now_s, **observed), LIMITS)


def started(found: PodPlan) -> list[tuple[str, int]]:
    return [(each.container.name, each.attempt) for each in found.start]


def phase(view: PodView, *processes: ContainerProcess, **observed: Any) -> str:
    seen = PodObservation(pod=view, processes=processes, now_s=0.0, **observed)
    status = pod_status(
        view, seen, plan_pod(seen, LIMITS), now=NOW, address="10.0.0.1", node_address="192.0.2.1", waiting={}
    )
    return str(status["phase"])


def test_a_bound_pod_is_started_once() -> None:
    assert started(plan(pod_view())) == [("main", 0)]
    assert plan(pod_view(), process_of()) == PodPlan()


def test_init_containers_run_in_turn_and_before_the_others() -> None:
    view = pod_view(initContainers=[{"name": "one", "image": "i"}, {"name": "two", "image": "i"}])
    assert started(plan(view)) == [("one", 0)]
    assert started(plan(view, process_of("one"))) == []
    assert started(plan(view, process_of("one", running=False))) == [("two", 0)]
    done = (process_of("one", running=False), process_of("two", running=False))
    assert started(plan(view, *done)) == [("main", 0)]


def test_a_sidecar_is_started_before_the_others_and_stopped_after_them() -> None:
    view = pod_view(initContainers=[{"name": "proxy", "image": "i", "restartPolicy": "Always"}], restartPolicy="Never")
    assert started(plan(view)) == [("proxy", 0)]
    assert started(plan(view, process_of("proxy"))) == [("main", 0)]
    over = plan(view, process_of("proxy"), process_of(running=False))
    assert [each.process.identity.container for each in over.stop] == ["proxy"]
    assert over.ending is Ending.NO
    assert plan(view, process_of("proxy", running=False), process_of(running=False)).ending is Ending.RECORD


def test_a_failed_init_container_fails_a_pod_that_is_never_restarted() -> None:
    view = pod_view(initContainers=[{"name": "one", "image": "i"}], restartPolicy="Never")
    assert plan(view, process_of("one", running=False, exit_code=3)).ending is Ending.RECORD
    assert phase(view, process_of("one", running=False, exit_code=3)) == "Failed"


@pytest.mark.parametrize(
    ("policy", "exit_code", "restarts"),
    [("Always", 0, True), ("Always", 1, True), ("OnFailure", 0, False), ("OnFailure", 1, True), ("Never", 1, False)],
)
def test_a_container_is_restarted_by_its_restart_policy(policy: str, exit_code: int, restarts: bool) -> None:
    ended = process_of(running=False, exit_code=exit_code)
    found = plan(pod_view(restartPolicy=policy), ended)
    assert started(found) == ([("main", 1)] if restarts else [])
    assert (found.ending is Ending.RECORD) is not restarts
    if not restarts:
        assert phase(pod_view(restartPolicy=policy), ended) == ("Succeeded" if exit_code == 0 else "Failed")


def test_restarts_wait_longer_each_time() -> None:
    ended = process_of(attempt=2, running=False, exit_code=1, since_s=100.0)
    waiting = plan(pod_view(), ended, now_s=101.0)
    assert started(waiting) == []
    assert waiting.resync_s == restart_pause_s(2, LIMITS) - 1.0
    assert started(plan(pod_view(), ended, now_s=100.0 + restart_pause_s(2, LIMITS))) == [("main", 3)]
    pauses = [restart_pause_s(n, LIMITS) for n in range(40)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LIMITS.agent_restart_s_max


def test_a_process_whose_probe_fails_is_stopped_and_then_restarted() -> None:
    sick = plan(pod_view(), process_of(), health={"main": Health(sick="Liveness probe failed: no answer")})
    assert [each.why for each in sick.stop] == ["a probe failed"]
    assert [each.cause for each in sick.stop] == ["Liveness probe failed: no answer; the container was killed"]
    assert started(sick) == []


def test_a_pod_that_is_being_deleted_is_stopped_within_its_grace_and_then_removed() -> None:
    leaving = pod_view(metadata={"deletionTimestamp": "2030-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30})
    assert [each.grace_s for each in plan(leaving, process_of(), leaving_s=10.0).stop] == [20.0]
    assert plan(leaving, process_of(running=False)).ending is Ending.REMOVE
    assert started(plan(leaving)) == []


def test_a_pod_that_is_gone_is_killed_at_once_and_confirmed_when_nothing_runs() -> None:
    assert [each.grace_s for each in plan(None, process_of()).stop] == [0.0]
    assert plan(None, process_of()).ending is Ending.NO
    assert plan(None, process_of(running=False)).ending is Ending.CONFIRM


def test_a_finished_pod_never_runs_again() -> None:
    ended = pod_view(status={"phase": "Failed"})
    assert started(plan(ended)) == []
    assert len(plan(ended, process_of()).stop) == 1
    assert plan(ended).ending is Ending.CONFIRM


def test_a_finished_pod_that_still_waits_for_its_agent_is_removed() -> None:
    """Its end was recorded, and the request to remove it was lost: only the agent repeats it."""
    waiting = pod_view(
        status={"phase": "Failed"},
        metadata={"deletionTimestamp": "2030-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30},
    )
    assert plan(waiting).ending is Ending.REMOVE


def test_a_pod_bound_to_an_earlier_incarnation_of_the_node_has_failed() -> None:
    found = plan(pod_view(), disowned=True)
    assert (started(found), found.ending, found.failed) == ([], Ending.RECORD, "NodeReplaced")
    assert plan(pod_view(), process_of(), disowned=True).ending is Ending.NO


def test_a_process_that_the_driver_lost_counts_as_a_restart_and_fails_a_pod_without_restarts() -> None:
    reported = {
        "phase": "Running",
        "containerStatuses": [{"name": "main", "restartCount": 2, "state": {"running": {}}}],
    }
    assert started(plan(pod_view(status=reported))) == [("main", 3)]
    once = pod_view(status=reported, restartPolicy="Never")
    assert (started(plan(once)), plan(once).ending) == ([], Ending.RECORD)
    assert phase(once) == "Failed"


def test_a_deadline_ends_a_healthy_pod() -> None:
    view = pod_view(activeDeadlineSeconds=60)
    assert plan(view, process_of(), age_s=20.0).resync_s == 40.0
    assert len(plan(view, process_of(), age_s=60.0).stop) == 1
    over = plan(view, process_of(running=False), age_s=61.0)
    assert (over.ending, over.failed) == (Ending.RECORD, "DeadlineExceeded")


processes = st.builds(
    process_of,
    st.sampled_from(["main", "side"]),
    attempt=st.integers(0, 3),
    running=st.booleans(),
    exit_code=st.integers(0, 2),
    since_s=st.floats(0, 500),
)


@given(
    st.lists(processes, max_size=5, unique_by=lambda each: each.identity[1:3]),
    st.sampled_from(["Always", "OnFailure", "Never"]),
    st.floats(0, 1000),
    st.booleans(),
)
def test_no_attempt_is_started_twice(found: list[ContainerProcess], policy: str, now_s: float, leaving: bool) -> None:
    metadata = {"deletionTimestamp": "2030-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30} if leaving else {}
    view = pod_view(
        containers=[{"name": "main", "image": "i"}, {"name": "side", "image": "i"}],
        restartPolicy=policy,
        metadata=metadata,
    )
    made = plan(view, *found, now_s=now_s)
    # Only the newest process of a container runs: an older one has ended before the newer was started.
    known = {(each.identity.container, each.identity.attempt) for each in found}
    assert not known & set(started(made))
    for container, attempt in started(made):
        newest = max((a for name, a in known if name == container), default=-1)
        assert attempt == newest + 1
    if made.ending is not Ending.NO:
        assert not any(each.running for each in found)


SIDECARS = [{"name": name, "image": "i", "restartPolicy": "Always"} for name in ("log", "proxy")]


def test_sidecars_of_a_deleted_pod_stop_after_the_others_the_last_one_first() -> None:
    metadata = {"deletionTimestamp": "2030-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}
    view = pod_view(initContainers=SIDECARS, metadata=metadata)

    def stopped(*running: str, leaving_s: float = 0.0) -> list[tuple[str, float]]:
        processes = [process_of(name, running=name in running) for name in ("log", "proxy", "main")]
        return [(s.process.identity.container, s.grace_s) for s in plan(view, *processes, leaving_s=leaving_s).stop]

    assert stopped("log", "proxy", "main") == [("main", 30.0)]
    assert stopped("log", "proxy", leaving_s=10) == [("proxy", 20.0)]
    assert stopped("log", leaving_s=12) == [("log", 18.0)]
    assert stopped("log", "proxy", "main", leaving_s=30) == [("log", 0.0), ("proxy", 0.0), ("main", 0.0)]


def test_a_probe_may_have_a_grace_of_its_own() -> None:
    probe = {"exec": {"command": ["x"]}, "terminationGracePeriodSeconds": 3}
    view = pod_view(containers=[{"name": "main", "image": "i", "livenessProbe": probe}])
    (stop,) = plan(view, process_of(), health={"main": Health(sick="Liveness probe failed: no answer")}).stop
    assert stop.grace_s == 3.0


def test_a_container_in_backoff_that_the_driver_no_longer_lists_gets_the_next_attempt() -> None:
    """Its attempt has run: the same identity must not run twice, even after the machine was restarted."""
    ended = {"exitCode": 1, "reason": "Error"}
    reported = {
        "name": "main", "restartCount": 4,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended},
    }  # fmt: skip
    view = pod_view(status={"containerStatuses": [reported]})
    assert started(plan(view)) == [("main", 5)]
