"""Clients whose calls are recorded for `tests.kit.linearizability`, and the load that they make.

The value of an object is the id of the operation that wrote it, which the store keeps beside each version: every write
has a value of its own. A lease has its holder and transitions too. A commit with a fence is also a proof of the fence.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, cast

import msgspec
from tests.kit.linearizability import (
    LeaseValue,
    Operation,
    Outcome,
    Rule,
    Verb,
    Violation,
    check_history,
    check_object,
    lease_rule,
)

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import Create, Delete, DeleteOptions, Get, ListOptions, Patch, Request, Update, WriteOptions
from kedge.api.wellknown import LEASE_KIND
from kedge.client.contract import Client, Transport
from kedge.env import Env
from kedge.errors import (
    AlreadyExists,
    Conflict,
    Fenced,
    NotFound,
    OperatingError,
    OutcomeUnknown,
    TooManyRequests,
    Unavailable,
)
from kedge.keys import Key, Origin, Revision, fence_key
from kedge.runtime.lease import LeaderElection, Leadership

CONFIG_MAP = KINDS.of_key_kind("ConfigMap")
LEASE = Key(LEASE_KIND, "default", "torture")
FENCED = Key("ConfigMap", "default", "fenced")
KEYS = tuple(Key("ConfigMap", "default", f"shared-{number}") for number in range(6))
_R = TypeVar("_R")


class History:
    """The calls of all clients, by object."""

    def __init__(self) -> None:
        self.operations: dict[str, list[Operation]] = defaultdict(list)
        self.created: dict[Key, str] = {}
        """Objects that only one client writes, once: acknowledged, with the operation id."""
        self.unknown = 0
        self.not_made = 0

    def add(self, key: Key, operation: Operation) -> None:
        self.operations[str(key)].append(operation)
        self.unknown += operation.outcome is Outcome.UNKNOWN

    @property
    def acknowledged(self) -> int:
        return sum(each.writes and each.outcome is Outcome.OK for each in self._every())

    @property
    def count(self) -> int:
        return sum(len(each) for each in self.operations.values())

    def _every(self) -> list[Operation]:
        return [each for operations in self.operations.values() for each in operations]

    def violations(self) -> list[Violation]:
        rules: Mapping[str, Rule] = {str(LEASE): lease_rule}
        fence = str(fence_key(LEASE))
        proofs = [*self.operations.get(fence, ()), *terms(self.operations.get(str(LEASE), ()))]
        broken = check_object(proofs, key=fence)
        objects = {key: each for key, each in self.operations.items() if key != fence}
        return [*check_history(objects, rules), *([broken] if broken is not None else [])]


def terms(leases: Sequence[Operation]) -> Iterator[Operation]:
    """The writes of the fence that writes of its lease imply: one for each that changes the holder or the term."""
    values = {each.revision: each.value for each in leases if each.outcome is Outcome.OK and each.revision}
    revisions = {value: revision for revision, value in values.items()}
    for each in leases:
        if not each.writes or each.outcome not in (Outcome.OK, Outcome.UNKNOWN):
            continue
        before, after = values.get(each.expected), each.value
        if isinstance(before, LeaseValue) and isinstance(after, LeaseValue) and before[:2] == after[:2]:
            continue  # a renewal
        revision = each.revision or revisions.get(after, 0)
        outcome = Outcome.OK if revision else each.outcome
        yield replace(each, expected=0, revision=revision, outcome=outcome)


class RecordedClient(Client):
    """A client that records its calls of get, create, update, patch and delete. Retries are inside a call."""

    def __init__(self, transport: Transport, env: Env, history: History, *, name: str) -> None:
        super().__init__(transport, env, component=name)
        self._history = history
        self._name = name
        self._new_uid = env.new_uid

    async def send(self, request: Request[_R]) -> _R:
        if not isinstance(request, Get | Create | Update | Patch | Delete):
            return await super().send(request)
        if not request.reads and not request.options.origin.operation:
            options: Any = msgspec.structs.replace(request.options, origin=Origin(operation=self._new_uid()))
            request = msgspec.structs.replace(cast("Request[_R]", request), options=options)
        invoked_s = time.monotonic()
        try:
            reply = await super().send(request)
        except BaseException as error:
            self._record(request, invoked_s, *_failure(error), error=error)
            raise
        self._record(request, invoked_s, Outcome.OK, _revision_of(request, reply), reply=reply)
        return reply

    def _record(
        self, request: Any, invoked_s: float, outcome: Outcome | None, revision: Revision, *,
        reply: Any = None, error: BaseException | None = None,
    ) -> None:  # fmt: skip
        verb = _VERBS[type(request)]
        if isinstance(error, Fenced):
            self._proved_fence(request, invoked_s, Outcome.CONFLICT, error.revision)
        if outcome is None or (verb is Verb.GET and outcome is Outcome.UNKNOWN):
            self._history.not_made += 1
            return
        times = {} if outcome is Outcome.UNKNOWN else {"returned_s": time.monotonic()}
        value = _read_value(reply) if verb is Verb.GET and reply is not None else _written_value(request)
        operation = Operation(
            verb, outcome, invoked_s, value=value, revision=revision, expected=_expected(request), client=self._name,
            **times,
        )  # fmt: skip
        self._history.add(request.target, operation)
        if outcome is Outcome.OK and verb is not Verb.GET:
            self._proved_fence(request, invoked_s, Outcome.OK, 0)

    def _proved_fence(self, request: Any, invoked_s: float, outcome: Outcome, revision: Revision) -> None:
        fence = getattr(request.options, "fence", None)
        if fence is not None:
            proof = Operation(
                Verb.CONFIRM, outcome, invoked_s, time.monotonic(), revision=revision, expected=fence.revision,
                client=self._name,
            )  # fmt: skip
            self._history.add(fence.key, proof)


_VERBS: dict[type, Verb] = {
    Get: Verb.GET, Create: Verb.CREATE, Update: Verb.UPDATE, Patch: Verb.UPDATE, Delete: Verb.DELETE,
}  # fmt: skip


def _failure(error: BaseException) -> tuple[Outcome | None, Revision]:
    """The outcome that an error stands for, None if nothing was done; and the revision that a conflict found."""
    match error:
        case Fenced() | Unavailable() | TooManyRequests():
            return None, 0
        case Conflict():
            return Outcome.CONFLICT, error.revision
        case AlreadyExists():
            return Outcome.EXISTS, 0
        case NotFound():
            return Outcome.MISSING, 0
        case OutcomeUnknown() | asyncio.CancelledError() | TimeoutError():
            return Outcome.UNKNOWN, 0
    raise AssertionError(f"no client gets {error!r} here") from error


def _revision_of(request: Any, reply: Any) -> Revision:
    if isinstance(request, Delete):
        return 0  # the reply is the last version, not the commit that removed it
    found: Revision = reply.revision if isinstance(reply, Object) else reply.object.revision
    return found


def _expected(request: Any) -> Revision:
    if isinstance(request, Delete):
        return request.options.revision
    if isinstance(request, Update):
        assert isinstance(request.body, Mapping)
        return int(request.body["metadata"].get("resourceVersion") or 0)
    return 0


def _written_value(request: Any) -> Hashable:
    operation: str = request.options.origin.operation
    if request.target.kind == LEASE_KIND and isinstance(request, Create | Update):
        assert isinstance(request.body, Mapping)
        return _lease_value(request.body["spec"], operation)
    return operation if not isinstance(request, Delete | Get) else None


def _read_value(found: Object) -> Hashable:
    if found.key.kind == LEASE_KIND:
        return _lease_value(found.edit()["spec"], found.origin.operation)
    return found.origin.operation


def _lease_value(spec: Mapping[str, Any], operation: str) -> LeaseValue:
    holder = spec.get("holderIdentity") or ""
    return LeaseValue(holder, spec.get("leaseTransitions", 0), spec.get("leaseDurationSeconds", 0), operation)


# -- the load ----------------------------------------------------------------------------------------


class Worker:
    """One client of the load: it reads, creates, updates, patches and deletes objects that others write too."""

    def __init__(self, client: RecordedClient, history: History, rng: random.Random, *, name: str) -> None:
        self._client, self._history, self._rng, self._name = client, history, rng, name
        self._seen: dict[Key, Revision] = {}
        self._made = 0

    async def run(self, pause_s: float) -> None:
        while True:
            with suppress(OperatingError, TimeoutError):
                await self._step()
            await asyncio.sleep(self._rng.random() * pause_s)

    async def _step(self) -> None:
        key, draw = self._rng.choice(KEYS), self._rng.random()
        seen = self._seen.get(key)
        if draw < 0.15:
            await self._create_own()
        elif draw < 0.5 or (seen is None and draw < 0.7):
            await self._read(key)
        elif seen is None:
            made = await self._client.create(CONFIG_MAP, self._body(key), namespace="default")
            self._seen[key] = made.object.revision
        elif draw < 0.8:
            body = self._body(key)
            body["metadata"]["resourceVersion"] = str(seen)
            del self._seen[key]  # another version is there, unless the reply has it
            self._seen[key] = (await self._client.update(key, body)).object.revision
        elif draw < 0.92:
            self._seen[key] = (
                await self._client.patch(key, {"data": {"by": self._name + self._next()}})
            ).object.revision
        else:
            del self._seen[key]
            await self._client.delete(key, DeleteOptions(revision=seen))

    async def _read(self, key: Key) -> None:
        self._seen.pop(key, None)
        self._seen[key] = (await self._client.get(key)).revision

    async def _create_own(self) -> None:
        """An object of this worker alone, for the count of lost writes."""
        key = Key("ConfigMap", "default", f"ack-{self._name}-{self._next()}")
        made = await self._client.create(CONFIG_MAP, self._body(key), namespace="default")
        self._history.created[key] = made.object.origin.operation

    def _next(self) -> str:
        self._made += 1
        return f"{self._made:06}"

    def _body(self, key: Key) -> dict[str, Any]:
        return {"metadata": {"name": key.name, "namespace": key.namespace}, "data": {"by": self._name + self._next()}}


async def lead(client: RecordedClient, env: Env, identity: str) -> None:
    """Compete for the lease, and write with its fence while it is held. Gives it up at times."""
    election = LeaderElection(client, env, LEASE, identity=identity)

    async def work(term: Leadership) -> None:
        options = WriteOptions(fence=term.fence)
        for number in range(env.random.randrange(10, 60)):
            body = {"data": {"by": f"{identity}-{term.fence.revision}-{number}"}}
            try:
                await client.patch(FENCED, body, options=options)
            except NotFound:
                body["metadata"] = {"name": FENCED.name}
                with suppress(AlreadyExists):
                    await client.create(CONFIG_MAP, body, namespace="default", options=options)
            except Fenced:
                raise
            except OperatingError:
                pass
            await asyncio.sleep(0.05)

    while True:
        with suppress(OperatingError):
            await election.run(work)
        await asyncio.sleep(env.random.random())


async def final_reads(client: RecordedClient, history: History) -> dict[Key, str]:
    """Read every shared object once more, so that a lost write shows; and return the writes of one client alone that
    are lost."""
    for key in (*KEYS, FENCED, LEASE):
        await client.find(key)
    listed = await client.list(CONFIG_MAP, ListOptions(namespace="default"))
    found = {each.key for each in listed.objects}
    return {key: operation for key, operation in history.created.items() if key not in found}
