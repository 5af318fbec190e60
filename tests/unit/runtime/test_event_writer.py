"""Events of controllers: one object for all occurrences of a reason, with its decision, at a bounded rate."""

from __future__ import annotations

from typing import Any

from tests.kit.controllers import POD
from tests.kit.loops import eventually
from tests.objects import World, asynchronous, make_world, node, pod, pod_key

from kedge.api.event_bodies import MESSAGE_BYTES_MAX
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions
from kedge.api.wellknown import DECISION_ANNOTATION, EVENT_KIND
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.keys import Fence, Key
from kedge.limits import Limits
from kedge.runtime.event_writer import EventNote, EventWriter


class Recorded:
    """An event writer on a real service."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.writer = self.another()

    def another(self) -> EventWriter:
        """A writer of another process."""
        client = Client(DirectTransport(self.world.service), self.world.env, component="test")
        return EventWriter(client, self.world.env, "replicaset")

    def note(self, about: Object, reason: str, text: str, *, subject: str = "", decision: str = "d-1") -> None:
        self.writer.note(EventNote(about, "Normal", reason, text, subject), decision=decision, fence=None)

    async def settled(self) -> list[dict[str, Any]]:
        await eventually(lambda: self.writer._task is None or self.writer._task.done())
        return [each.edit() for each in await self.stored()]

    async def stored(self) -> list[Object]:
        listing = await self.world.store.list(EVENT_KIND)
        return [self.world.service._core.object_of(each) for each in listing.entries]

    def dropped(self, why: str) -> float:
        labels = {"controller": "replicaset", "why": why}
        return self.world.env.metrics.registry.get_sample_value("kedge_events_dropped_total", labels) or 0.0


async def recorded(**limits: Any) -> Recorded:
    return Recorded(await make_world(limits=Limits(**limits)))


@asynchronous
async def test_notes_of_one_decision_are_one_event_that_names_their_subjects() -> None:
    harness = await recorded()
    about = await harness.world.create(pod())
    for number in range(7):
        harness.note(about, "SuccessfulCreate", "Created pod", subject=f"web-{number}")
    (event,) = await harness.settled()
    assert event["message"] == "Created pod: web-0, web-1, web-2, web-3, web-4 and 2 more"
    assert (event["count"], event["type"], event["reason"]) == (7, "Normal", "SuccessfulCreate")
    assert event["metadata"]["annotations"][DECISION_ANNOTATION] == "d-1"
    assert event["involvedObject"]["uid"] == about.uid
    assert event["source"] == {"component": "replicaset"}
    assert (await harness.stored())[0].origin.decision == "d-1"


@asynchronous
async def test_a_repeat_counts_and_moves_the_last_time_and_the_decision() -> None:
    harness = await recorded()
    about = await harness.world.create(pod())
    harness.note(about, "FailedCreate", "no quota")
    (first,) = await harness.settled()
    harness.world.clock.advance(60)
    harness.note(about, "FailedCreate", "still no quota", decision="d-2")
    (event,) = await harness.settled()
    assert (event["count"], event["message"]) == (2, "still no quota")
    assert event["firstTimestamp"] == first["firstTimestamp"] < event["lastTimestamp"]
    assert event["metadata"]["annotations"][DECISION_ANNOTATION] == "d-2"


@asynchronous
async def test_the_writer_of_a_new_process_goes_on_with_the_count() -> None:
    harness = await recorded()
    about = await harness.world.create(pod())
    for _ in range(3):
        harness.note(about, "FailedCreate", "no quota")
    await harness.settled()
    harness.writer = harness.another()
    harness.note(about, "FailedCreate", "no quota")
    (event,) = await harness.settled()
    assert event["count"] == 4


@asynchronous
async def test_an_event_that_has_expired_begins_again() -> None:
    harness = await recorded()
    about = await harness.world.create(pod())
    harness.note(about, "FailedCreate", "no quota")
    await harness.settled()
    (found,) = await harness.stored()
    await harness.world.service.delete(found.key, DeleteOptions())
    harness.note(about, "FailedCreate", "no quota")
    (event,) = await harness.settled()
    assert event["count"] == 1


@asynchronous
async def test_one_object_has_a_burst_and_then_a_rate() -> None:
    harness = await recorded(event_burst=3, event_refill_s=60.0)
    noisy, other = await harness.world.create(pod()), await harness.world.create(pod(name="other"))
    for number in range(5):
        harness.note(noisy, f"Reason{number}", "again")
        await harness.settled()
    assert (len(await harness.settled()), harness.dropped("rate")) == (3, 2)
    harness.note(other, "Reason", "its own burst")
    assert len(await harness.settled()) == 4
    harness.world.clock.advance(60)
    harness.note(noisy, "Reason4", "again")
    assert (len(await harness.settled()), harness.dropped("rate")) == (5, 2)


@asynchronous
async def test_events_that_wait_have_a_bound() -> None:
    harness = await recorded(events_pending_max=2)
    about = await harness.world.create(pod())
    for number in range(5):
        harness.note(about, f"Reason{number}", "text")
    assert (len(await harness.settled()), harness.dropped("queue full")) == (2, 3)


@asynchronous
async def test_an_event_that_cannot_be_written_fails_nothing() -> None:
    """Its namespace does not exist, or the leader that noted it was deposed."""
    harness = await recorded()
    about = await harness.world.create(pod())
    nowhere = Object(POD, Key("Pod", "nowhere", "a"), about.value, revision=1)
    harness.note(nowhere, "Reason", "text")
    deposed = Fence(Key("Fence.kedge.dev", "default", "lease"), 77)
    harness.writer.note(EventNote(about, "Normal", "Late", "text"), decision="d-1", fence=deposed)
    harness.note(about, "Reason", "text")
    assert [each["reason"] for each in await harness.settled()] == ["Reason"]
    assert (harness.dropped("failed"), harness.dropped("fenced")) == (1, 1)


@asynchronous
async def test_events_about_objects_without_a_namespace_are_in_default_and_long_messages_are_cut() -> None:
    harness = await recorded()
    about = await harness.world.create(node())
    harness.note(about, "NodeNotReady", "é" * MESSAGE_BYTES_MAX)
    (event,) = await harness.settled()
    assert event["metadata"]["namespace"] == "default"
    assert len(event["message"].encode()) <= MESSAGE_BYTES_MAX
    assert event["message"].endswith("é...")


@asynchronous
async def test_a_stopped_writer_counts_what_it_did_not_write() -> None:
    harness = await recorded()
    about = await harness.world.create(pod())
    harness.note(about, "Reason", "text")
    harness.note(about, "Other", "text")
    await harness.writer.stop()
    assert harness.dropped("stopped") + len(await harness.stored()) == 2
    assert await harness.world.get(pod_key())
