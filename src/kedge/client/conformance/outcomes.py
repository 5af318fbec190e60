"""Honest outcomes: operation ids, lost replies, retries, fences and cancelled requests."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from kedge.api.requests import Create, Get, ListOptions, Patch, PatchType, Reply, Request, WriteOptions
from kedge.api.wellknown import LEASE_KIND
from kedge.client.conformance.subject import (
    CONFIG_MAP,
    LEASE,
    NAMESPACE,
    WAIT_S,
    ClientSubject,
    InterposedTransport,
    by,
    config_map,
    key,
)
from kedge.client.contract import Client
from kedge.errors import AlreadyExists, Fenced, NotFound, OperatingError, OutcomeUnknown, Unavailable
from kedge.expectations import expect, raises, same, within
from kedge.keys import Fence, Key, fence_key


async def check_a_repeat_gets_the_first_outcome(subject: ClientSubject) -> None:
    """A write that is sent again under its operation id returns what it returned first, and changes nothing."""
    client = subject.client
    first = await subject.config_map("a", options=by("create"), n="1")
    again = await subject.config_map("a", options=by("create"), n="1")
    same(again.revision, first.revision, "the revision of a repeated create")
    await raises(AlreadyExists, subject.config_map("a", options=by("another")), "a create under another id")
    append = [{"op": "add", "path": "/metadata/finalizers", "value": ["example.com/a"]}]
    patched = await client.patch(key("a"), append, patch_type=PatchType.JSON, options=by("patch"))
    await client.patch(key("a"), {"data": {"n": "2"}})
    repeated = await client.patch(key("a"), append, patch_type=PatchType.JSON, options=by("patch"))
    expect(repeated.object.revision >= patched.object.revision, "a repeated patch reports its own version or a newer")
    same((await client.get(key("a"))).edit()["data"], {"n": "2"}, "a later write after a repeated patch")


async def check_one_operation_of_two_clients_is_made_once(subject: ClientSubject) -> None:
    """Two processes that send one operation at once get one outcome: generated names show a second object."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "made-"}}
    for round_number in range(5):
        request = Create(CONFIG_MAP, body, NAMESPACE, by(f"op-{round_number}"))
        sent = (subject.transport.send(request), subject.other.send(request))
        first, second = await asyncio.gather(*sent)
        same(second.object.key, first.object.key, "the name that both were given")
    listed = await subject.client.list(CONFIG_MAP, ListOptions(namespace=NAMESPACE))
    same(len(listed.objects), 5, "the objects after five operations, each sent twice at once")


class LosesReplies(InterposedTransport):
    """Carries out every write, and loses the first replies."""

    def __init__(self, subject: ClientSubject, losses: int) -> None:
        super().__init__(subject.transport)
        self._losses = losses

    async def send(self, request: Request[Reply]) -> Reply:
        reply = await super().send(request)
        if not request.reads and self._losses:
            self._losses -= 1
            raise OutcomeUnknown("the reply was lost", key=request.written_key)
        return reply


class RefusesFirst(InterposedTransport):
    """Fails the first requests before they reach the service."""

    def __init__(self, subject: ClientSubject, *errors: OperatingError) -> None:
        super().__init__(subject.transport)
        self._errors = list(errors)

    async def send(self, request: Request[Reply]) -> Reply:
        if self._errors:
            self.sent.append(request)
            raise self._errors.pop(0)
        return await super().send(request)


async def check_a_lost_reply_is_read_back(subject: ClientSubject) -> None:
    """After an unknown outcome the client reads, finds its own write, and does not make it twice."""
    losing = LosesReplies(subject, 1)
    client = Client(losing, subject.env, component="conformance")
    written = await client.create(CONFIG_MAP, config_map("a", n="1"), namespace=NAMESPACE)
    same(written.object.key, key("a"), "the object of a create whose reply was lost")
    same([type(each) for each in losing.sent], [Create, Get], "the requests that it took")
    generated = LosesReplies(subject, 1)
    client = Client(generated, subject.env, component="conformance")
    body = {"metadata": {"generateName": "made-"}}
    await client.create(CONFIG_MAP, body, namespace=NAMESPACE)
    listed = await subject.client.list(CONFIG_MAP, ListOptions(namespace=NAMESPACE))
    same(len(listed.objects), 2, "the objects after a repeat with a generated name")


async def check_a_write_stays_unknown_where_repeats_are_unsafe(subject: ClientSubject) -> None:
    """On a server without operation ids a write that cannot be found again is reported as unknown, never repeated."""
    losing = LosesReplies(subject, 1)
    losing.repeats_safely = False
    client = Client(losing, subject.env, component="conformance")
    generated = client.create(CONFIG_MAP, {"metadata": {"generateName": "made-"}}, namespace=NAMESPACE)
    await raises(OutcomeUnknown, generated, "a create whose object cannot be found by name")
    same(len([each for each in losing.sent if not each.reads]), 1, "the attempts to write")


async def check_retries_are_bounded(subject: ClientSubject) -> None:
    """A request that was not carried out is sent again, a bounded number of times."""
    refusing = RefusesFirst(subject, Unavailable("not now"))
    client = Client(refusing, subject.env, component="conformance")
    await client.create(CONFIG_MAP, config_map("a"), namespace=NAMESPACE)
    ids = {each.options.origin.operation for each in refusing.sent}
    same((len(refusing.sent), len(ids)), (2, 1), "attempts, and operation ids among them")
    most = subject.env.limits.client_attempts_max
    failing = RefusesFirst(subject, *(Unavailable("not now") for _ in range(most * 2)))
    await raises(
        Unavailable, Client(failing, subject.env, component="conformance").get(key("a")), "a get that always fails"
    )
    expect(len(failing.sent) <= most, f"{len(failing.sent)} attempts were made, {most} are allowed")


async def check_fences_stop_a_former_leader(subject: ClientSubject) -> None:
    """A write with a fence is made while the lease has its holder, and is Fenced afterwards, nothing written."""
    client = subject.client
    lease = Key(LEASE_KIND, NAMESPACE, "leader")
    spec = {"holderIdentity": "first", "leaseDurationSeconds": 10, "leaseTransitions": 1}
    held = (await client.create(LEASE, {"metadata": {"name": "leader"}, "spec": spec}, namespace=NAMESPACE)).object
    fenced = WriteOptions(fence=Fence(fence_key(lease), held.revision))
    await subject.config_map("while-leading", options=fenced)
    await client.patch(lease, {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
    await client.patch(key("while-leading"), {"data": {"a": "1"}}, options=fenced)
    taken = (await client.patch(lease, {"spec": {"holderIdentity": "second", "leaseTransitions": 2}})).object
    late = await raises(Fenced, subject.config_map("too-late", options=fenced), "a write of the former leader")
    same(late.revision, taken.revision, "the token of the new holder")
    await raises(NotFound, client.get(key("too-late")), "a get of what it tried to write")


async def check_cancelled_requests_do_no_harm(subject: ClientSubject) -> None:
    """A request that is cancelled at any point leaves no reply to the next one, and a write whole or absent."""
    for number in range(4):
        await subject.config_map(f"c{number}", n=str(number))
    for pauses in range(12):
        written = key(f"new{pauses}")
        tasks = [
            asyncio.ensure_future(subject.transport.send(Get(key("c0")))),
            asyncio.ensure_future(
                subject.transport.send(Create(CONFIG_MAP, config_map(written.name, n="1"), NAMESPACE, by(written.name)))
            ),
            asyncio.ensure_future(subject.transport.send(Patch(key("c1"), {"data": {"p": str(pauses)}}))),
        ]
        for _ in range(pauses):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with within(WAIT_S, "requests after a cancelled one"):
            for number in range(4):
                found = await subject.transport.send(Get(key(f"c{number}")))
                same(found.edit()["data"]["n"], str(number), f"the object c{number} after a cancelled request")
            with suppress(NotFound):
                found = await subject.client.get(written)
                same(found.edit()["data"], {"n": "1"}, "an object whose create was cancelled")
