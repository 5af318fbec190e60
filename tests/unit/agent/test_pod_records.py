"""Records of an agent: acts with pod uid, bind and node incarnation; versions lead to them; idle syncs have none."""

from __future__ import annotations

from dataclasses import replace

from tests.kit.agent import ONE_ATTEMPT, AgentHarness, with_agent
from tests.kit.controllers import until
from tests.objects import pod_key

from kedge.agent.core.driver import PullFailed
from kedge.api.requests import DeleteOptions
from kedge.keys import Key
from kedge.observe.recording.recorder import Recorder
from kedge.observe.records import Decision, PodAct

KEPT = replace(ONE_ATTEMPT, agent_restart_s=0.1, agent_restart_s_max=0.2, decisions_sample_every=1)
PROBE = {"exec": {"command": ["true"]}, "periodSeconds": 1, "failureThreshold": 1}


def records_of(recorder: Recorder) -> list[Decision]:
    return [*recorder.decisions()][::-1]


def acts(recorder: Recorder) -> list[str]:
    return [str(step) for each in records_of(recorder) for step in each.steps if isinstance(step, PodAct)]


@with_agent(KEPT)
async def test_a_start_is_recorded_with_uid_bind_and_incarnation_and_its_versions_lead_to_it(
    harness: AgentHarness,
) -> None:
    recorder = harness.recorder
    await harness.in_contact()
    found = await harness.bound_pod()
    proved = harness.cluster.find(Key("Node", "", "node-a"))
    assert proved is not None
    harness.worker(found)
    await until(lambda: harness.status().phase == "Running")
    await until(lambda: "start main" in acts(recorder))
    (made,) = (each for each in records_of(recorder) if any(str(step) == "start main" for step in each.steps))
    assert made.pod_run is not None
    assert (made.uid, made.key, made.pod_run.bind_revision) == (found.uid, found.key, proved.revision)
    assert (made.pod_run.node, made.pod_run.node_uid) == ("node-a", harness.node.uid)
    stored = harness.cluster.find(pod_key())
    assert stored is not None
    assert stored.origin.decision in {each.id for each in records_of(recorder)}
    assert stored.origin.decision.startswith("agent-node-a:")
    assert recorder.writer_of(stored.key, stored.revision) == stored.origin.decision


@with_agent(KEPT)
async def test_an_end_a_backoff_and_a_restart_are_recorded_once_each(harness: AgentHarness) -> None:
    recorder = harness.recorder
    await harness.in_contact()
    harness.worker(await harness.bound_pod())
    await until(lambda: harness.status().phase == "Running")
    for number in range(2):
        harness.driver.end(harness.driver.started[number][0], exit_code=3)
        await until(lambda number=number: f"restart main, attempt {number + 1}" in acts(recorder))  # type: ignore[misc]
    found = acts(recorder)
    assert [each for each in found if each.startswith("exit")] == [
        "exit main: exit code 3",
        "exit main, attempt 1: exit code 3",
    ]
    assert sum(each.startswith("back off main") for each in found) == 1


@with_agent(KEPT)
async def test_a_stop_is_recorded_with_its_reason_and_the_deletion_with_its_decision(harness: AgentHarness) -> None:
    recorder = harness.recorder
    await harness.in_contact()
    found = await harness.bound_pod()
    worker = harness.worker(found)
    await until(lambda: harness.status().phase == "Running")
    await harness.cluster.authority.delete(found.key, DeleteOptions(grace_s=5))
    worker.update(await harness.cluster.authority.get(found.key))
    await until(lambda: harness.cluster.find(found.key) is None)
    await until(lambda: any(each.outcome == "removed" for made in records_of(recorder) for each in made.calls))
    assert acts(recorder).count("stop main: it is being deleted") == 1


@with_agent(KEPT)
async def test_a_refused_start_is_recorded_with_its_reason(harness: AgentHarness) -> None:
    recorder = harness.recorder

    async def pull(image: str) -> None:
        raise PullFailed(f"no {image}")

    harness.driver.pull = pull  # type: ignore[method-assign]
    await harness.in_contact()
    harness.worker(await harness.bound_pod())
    await until(lambda: any("ImagePullBackOff" in each for each in acts(recorder)))
    failed = [each for each in records_of(recorder) if each.result == "failed"]
    assert failed
    assert failed[0].kept.startswith("failure")


@with_agent(KEPT)
async def test_a_sync_that_decides_nothing_new_has_no_record(harness: AgentHarness) -> None:
    recorder = harness.recorder
    await harness.in_contact()
    worker = harness.worker(await harness.bound_pod())
    await until(lambda: harness.status().phase == "Running")
    stored = harness.cluster.find(pod_key())
    assert stored is not None
    worker.update(stored)
    await until(lambda: not worker._wake.is_set())
    before = len(records_of(recorder))
    for _ in range(3):
        worker.wake()
        await until(lambda: not worker._wake.is_set())
    assert len(records_of(recorder)) == before
