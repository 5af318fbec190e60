"""Everything a reconcile may use: cached reads, requests, time and randomness, through one object that records it all.

Cached reads are synchronous and may be stale; requests go to the API server and are awaited. `runtime.recheck` gives
the same reconcile a context that answers from a record instead.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from kedge.api.event_bodies import NORMAL, WARNING
from kedge.api.field_notes import FieldNotes, plain_object
from kedge.api.holds import active_hold
from kedge.api.intents import Intent, intent_of
from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import (
    AnyRequest,
    Bind,
    Binding,
    ConfirmEnded,
    Create,
    Delete,
    DeleteOptions,
    Evict,
    Get,
    List,
    ListOptions,
    Patch,
    Reply,
    Request,
    Written,
)
from kedge.api.selectors import LabelSelector, parse_label_selector
from kedge.api.wellknown import HOLD_PREFIX
from kedge.client.contract import Client
from kedge.env import Env, uid_from
from kedge.errors import Conflict, InvariantBroken, OperatingError, OutcomeUnknown, Refused, check, to_status
from kedge.keys import NO_REVISION, Fence, Key, Origin, Revision
from kedge.limits import Limits
from kedge.observe.recording.aggregate import ControllerCounts
from kedge.observe.records import (
    UNDER_WAY,
    Budget,
    CacheRead,
    Call,
    Clock,
    Decision,
    DecisionStep,
    Measured,
    NotStarted,
    encode_intent,
)
from kedge.runtime.cache import BY_CONTROLLER, Cache, Index, Read, WriteFloors
from kedge.runtime.calls import NO_REPLY, CallReply, get_reply, list_reply, write_reply
from kedge.runtime.event_writer import EventNote
from kedge.runtime.fingerprints import content_fingerprint, input_fingerprints
from kedge.runtime.queue import RunEffects
from kedge.runtime.spec import check_right
from kedge.runtime.status import plan_status

_T = TypeVar("_T")
_Answer = TypeVar("_Answer")
_Sent = TypeVar("_Sent", bound=AnyRequest)
WriteRequest = Create | Patch | Delete | Evict | ConfirmEnded | Bind


class Reconciler(Protocol):
    async def reconcile(self, ctx: Context, key: Key) -> Any:
        """Read the object of `key` as it is now, take one bounded step, and return an `Action`."""


class Held(OperatingError):
    """The object has a hold against this controller. Nothing was written; try again when the hold has ended."""


class Context:
    """One decision: its reads, writes, times and random draws."""

    def __init__(
        self,
        client: Client,
        env: Env,
        caches: Mapping[str, Cache],
        floors: WriteFloors,
        decision: Decision,
        *,
        fence: Fence | None = None,
        counts: ControllerCounts | None = None,
        notes: FieldNotes | None = None,
        rights: frozenset[tuple[str, str, str]] | None = None,
    ) -> None:
        self._rights = rights
        self._client = client
        self._env = env
        self._caches = caches
        self._floors = floors
        self._decision = decision
        self._counts = counts
        """Where its reads and calls are counted; None if nothing is recorded."""
        self._steps: list[DecisionStep] | None = decision.steps if counts is not None else None
        self.calls_made: tuple[Call, ...] = ()
        self.objects_listed = 0
        """For the recorder: the calls among the steps, and the number of objects that its lists returned."""
        self._notes = notes
        """Where the fields that the decision reads are noted; None if they are not."""
        self._fence = fence
        self._began_s = env.monotonic()
        self._calls = 0
        self._under_way: dict[str, tuple[Intent, bytes, float]] = {}
        """Requests without a reply, by operation id: intent, its body in bytes, and when it was sent. Empty if nothing
        is recorded."""
        self._random: random.Random | None = None
        self._own = f"{decision.controller}:"
        self._saw = 0
        self._wrote: list[tuple[Key | None, int]] = []
        self.events: list[EventNote] = []
        """Events that the controller writes when the decision has ended."""
        self._ended = False

    @property
    def decision(self) -> str:
        """The decision id. Every version that this decision writes carries it in its origin."""
        return self._decision.id

    @property
    def fence(self) -> Fence | None:
        """The token of the leader that decides; None for a controller without a lease."""
        return self._fence

    @property
    def limits(self) -> Limits:
        return self._env.limits

    @property
    def random(self) -> random.Random:
        """Random numbers that a recheck draws again."""
        if self._random is None:
            self._random = random.Random(self._draw_seed())
        return self._random

    def new_uid(self) -> str:
        return uid_from(self.random)

    def now(self) -> datetime:
        """The wall clock, for timestamps and for people."""
        now = self._env.now()
        if self._steps is not None:
            self._steps.append(Clock(now))
        return now

    def measured(self, what: str, measure: Callable[[], _T], /) -> _T:
        """An observation that only this process can make, such as the age of a heartbeat; as plain JSON.

        It is recorded, so that the decision can be run again: a reconcile must not obtain it in any other way.
        """
        value = measure()
        if self._steps is not None:
            self._steps.append(Measured(what, deepcopy(value)))  # a copy: the caller may go on to change it
        return value

    # -- cached reads ------------------------------------------------------------------------------

    def get(self, key: Key) -> Object | None:
        """One object from the cache; None if the cache has none."""
        found = self._cached(key.kind, "get", (key.namespace, key.name), lambda cache: cache.get(key))
        if key == self._decision.key and found is not None and not self._decision.uid:
            self._decision.uid, self._decision.generation = found.uid, found.metadata.generation
        return found if self._notes is None or found is None else self._notes.wrap(found)

    def list(
        self, kind: Kind, *, namespace: str = "", selector: LabelSelector | str | None = None
    ) -> tuple[Object, ...]:
        """Objects from the cache, in key order: all, those of one namespace, or those a selector matches."""
        chosen = parse_label_selector(selector) if isinstance(selector, str) else selector
        about = (namespace, "nothing" if chosen is not None and chosen.never else str(chosen or ""))
        found = self._cached(
            kind.key_kind, "list", about, lambda cache: cache.list(namespace=namespace, selector=chosen)
        )
        if self._notes is None:
            return found
        noted = self._notes.wrap_all(found)
        if noted and chosen is not None:
            chosen.matches(noted[0].metadata.labels)  # notes the labels that the selector compares
        return noted

    def by_index(self, kind: Kind, index: Index, value: str) -> tuple[Object, ...]:
        """Objects with `value` in an index that the controller declared, in key order."""
        found = self._cached(kind.key_kind, "index", (index.name, value), lambda cache: cache.by_index(index, value))
        if self._notes is None:
            return found
        noted = self._notes.wrap_all(found)
        if noted:
            tuple(index.values_of(noted[0]))  # notes the fields that the index is made of
        return noted

    def owned(self, kind: Kind, owner: Object) -> tuple[Object, ...]:
        """Objects of `kind` that `owner` controls: this incarnation, not an earlier object of the same name."""
        return self.by_index(kind, BY_CONTROLLER, owner.uid)

    def has_seen(self, kind: Kind, revision: Revision) -> bool | None:
        """Whether the cache of `kind` holds everything up to `revision`, which may be that of another kind's object.

        Two caches are not at one revision: an object that one cache refers to may not be in the other yet. None where
        each kind has a history of its own, so that revisions cannot be compared: then read with `fresh`.
        """
        return self.measured(f"{kind.key_kind} up to {revision}", lambda: self._seen(kind, revision))

    def check_fresh(self, kind: Kind, *, max_age_s: float) -> None:
        """Check the staleness of a cache before a decision that depends on it.

        Raises:
            Stale: it is older. Let it end the reconcile: the key is tried again later.
        """
        self._check_fresh(kind, max_age_s, declared=False)

    # -- requests ----------------------------------------------------------------------------------

    async def fresh(self, key: Key) -> Object | None:
        """One object read from the API server, past the cache. Use it before an action that cannot be undone."""
        found = await self._call(Get(key), self._find, get_reply)
        return self._noted(found)[0] if found else None

    async def fresh_list(self, kind: Kind, *, namespace: str = "", label_selector: str = "") -> Sequence[Object]:
        options = ListOptions(namespace=namespace, label_selector=label_selector)
        return self._noted(await self._call(List(kind, options), self._send, list_reply))

    async def create(self, kind: Kind, body: Mapping[str, Any], *, namespace: str = "") -> Object:
        """Create an object. Use `ensure` where a repeat after a lost reply must find the same object."""
        return await self._write(Create(kind, body, namespace))

    async def ensure(self, kind: Kind, body: Mapping[str, Any], *, namespace: str = "") -> Object:
        """Create an object, or confirm that it exists with this owner. Safe to repeat, even after an unknown outcome.

        Raises:
            AlreadyExists: an object of another owner has the name, or ours is being deleted.
        """
        (found,) = await self._call(Create(kind, body, namespace), self._ensure, write_reply, ensures=True)
        return found

    async def patch(
        self, found: Object | Key, body: Mapping[str, Any], *, subresource: str = "", any_version: bool = False
    ) -> Object:
        """Merge `body` into an object, if it is still the version that was read.

        Pass a key, or `any_version`, for a change that does not depend on the rest of the object.

        Raises:
            Conflict: it has changed. Let it end the reconcile: the next one reads first.
        """
        found = found if isinstance(found, Key) else plain_object(found)
        key = found if isinstance(found, Key) else found.key
        patch = dict(body)
        if isinstance(found, Object):
            if subresource != "status":
                self._check_held(found)
            metadata = {"uid": found.uid} if any_version else {"resourceVersion": str(found.revision)}
            patch["metadata"] = {**patch.get("metadata", {}), **metadata}
        return await self._write(Patch(key, patch, subresource=subresource))

    async def write_status(self, found: Object, status: Mapping[str, Any]) -> Object:
        """Write `status` to the version that was read, if it changes anything. A change of times alone does not count.

        Fields not named stay; conditions are set by type; `observedGeneration` is the generation of `found`.

        Raises:
            Conflict: the object has changed. Let it end the reconcile: the next one reads first.
        """
        patch = plan_status(plain_object(found), status, self.now())
        if patch is None:
            return found
        return await self._write(Patch(found.key, patch, subresource="status"))

    async def delete(
        self, found: Object, *, any_version: bool = False, grace_s: int | None = None, propagation: str = ""
    ) -> Object:
        """Delete the version that was read; with `any_version`, any version of that incarnation.

        Raises:
            Conflict: the object has changed. Nothing was deleted.
        """
        self._check_held(found)
        revision = NO_REVISION if any_version else found.revision
        options = DeleteOptions(uid=found.uid, revision=revision, grace_s=grace_s, propagation=propagation)
        return await self._write(Delete(found.key, options))

    async def evict(self, found: Object) -> Object:
        """Delete a pod if its disruption budgets allow it.

        Raises:
            TooManyRequests: they do not allow it now. Try again later.
        """
        self._check_held(found)
        return await self._write(Evict(found.key, DeleteOptions(uid=found.uid)))

    async def confirm_ended(self, ledger: Object, pod_uid: str) -> Object:
        """Free the claim of a pod that is gone or has ended. Call it only with proof that no process of it runs.

        Raises:
            Conflict: the pod still exists, or the ledger belongs to another incarnation of the node.
        """
        return await self._write(ConfirmEnded(ledger.key.name, ledger.view.spec.node_uid, pod_uid))

    async def bind(self, binding: Binding) -> Object:
        """Bind a pod to a node, if the placement is still valid at the commit."""
        return await self._write(Bind(binding))

    def event(self, about: Object, reason: str, text: str, *, subject: str = "", warning: bool = False) -> None:
        """Note a transition for the users of an object. It is written after the decision, if at all.

        Repeats of a reason are one Event with a count; `subject` is the name that differs between them. Call it for
        transitions, not for states: a repeat costs a commit.
        """
        self.events.append(EventNote(about, WARNING if warning else NORMAL, reason, text, subject))

    def _check_held(self, found: Object) -> None:
        """A safety net below every controller: an object on hold is not changed, whatever the plan was."""
        found = plain_object(found)
        if any(name.startswith(HOLD_PREFIX) for name in found.metadata.annotations):
            hold = active_hold(found.metadata, self._decision.controller, self.now())
            if hold is not None:
                raise Held(f"{found.key}: {hold}", key=found.key)

    def hold_back(self, error: OperatingError) -> None:
        """Used by the controller: the reconcile does not begin, because of `error`."""
        self._note(NotStarted(f"{type(error).__name__}: {error}"))
        raise error

    def check_declared(self, kind: Kind, *, max_age_s: float) -> None:
        """Used by the controller: check the staleness bound that its spec declares for every decision."""
        self._check_fresh(kind, max_age_s, declared=True)

    def record_so_far(self) -> Decision:
        """Used by the controller: the record of a decision that has not ended, with the requests under way."""
        sent = [
            Call(intent.verb, intent.key, body, intent.check, operation, began_s - self._began_s, 0.0, UNDER_WAY)
            for operation, (intent, body, began_s) in self._under_way.items()
        ]
        return replace(self._decision, steps=[*self._decision.steps, *sent])

    def end(self) -> RunEffects:
        """Used by the controller: end the decision. Returns the effects of the run, for the loop detector."""
        self._ended = True
        if self._notes is not None:
            self._decision.touched = self._notes.touched()
            self._notes.close()
        return RunEffects(bool(self._wrote), frozenset(self._wrote), self._saw)

    # -- recording ---------------------------------------------------------------------------------

    def _draw_seed(self) -> int:
        self._decision.seed = self._env.random.getrandbits(63)
        return self._decision.seed

    def _noted(self, found: tuple[Object, ...]) -> tuple[Object, ...]:
        return found if self._notes is None else self._notes.wrap_all(found)

    def _note(self, step: DecisionStep) -> None:
        if self._steps is not None:
            self._steps.append(step)

    def _check_fresh(self, kind: Kind, max_age_s: float, *, declared: bool) -> None:
        cache = self._cache(kind.key_kind)
        age_s = cache.age_s
        self._note(Budget(cache.name, age_s, max_age_s, age_s <= max_age_s, declared))
        cache.check_fresh(max_age_s=max_age_s)

    def _seen(self, kind: Kind, revision: Revision) -> bool | None:
        return self._cache(kind.key_kind).reached(revision) if self._client.one_history else None

    def _cache(self, kind: str) -> Cache:
        found = self._caches.get(kind)
        if found is None:
            raise InvariantBroken(f"{self._decision.controller} reads {kind} without declaring it: add it to `watches`")
        return found

    def _cached(self, kind: str, verb: str, about: tuple[str, ...], read: Callable[[Cache], Read[_T]]) -> _T:
        cache = self._cache(kind)
        value, revision, age_s, place = read(cache)
        if verb == "get":
            objects: tuple[Object, ...] = () if value is None else (value,)  # type: ignore[assignment]
            found = objects[0].revision if objects else 0
        else:
            objects = value  # type: ignore[assignment]
            found = len(objects)
            self.objects_listed += found
        own = self._own
        # Own writes are not new input: a loop would look like work.
        others = [each for each in objects if not each.origin.decision.startswith(own)]
        self._saw = hash((self._saw, about, *input_fingerprints(others)))
        if (counts := self._counts) is not None:
            self._decision.steps.append(CacheRead(cache.name, verb, about, place, revision, age_s, found, objects))
            try:
                counts.reads[cache.name][verb] += 1  # as `count_read`, without the call
            except KeyError:
                counts.count_read(cache.name, verb)
        return value

    async def _write(self, request: WriteRequest) -> Object:
        (written,) = await self._call(request, self._send, write_reply)
        return written

    async def _call(
        self,
        request: _Sent,
        send: Callable[[_Sent], Awaitable[_Answer]],
        read: Callable[[_Answer, str], CallReply],
        *,
        ensures: bool = False,
    ) -> tuple[Object, ...]:
        """Send one request under an operation id of its own, and record its outcome."""
        check(not self._ended, f"decision {self._decision.id} has ended: it sends no more requests")
        if self._rights is not None:
            check_right(request, self._rights, self._decision.controller)
        intent = intent_of(request, ensures=ensures)
        self._calls += 1
        operation = f"{self._decision.id}#{self._calls}"
        began_s = self._env.monotonic()
        reply = NO_REPLY
        error: OperatingError | None = None
        body = b""
        if self._counts is not None:
            self._counts.count_call(intent.verb, request.target.kind, intent.body)
            body = encode_intent(intent.body)  # a copy: the caller may change it and use it for its next call
            self._under_way[operation] = (intent, body, began_s)
        try:
            reply = read(await send(self._stamped(request, operation)), operation)
        except OperatingError as failed:
            error = failed
            reply = CallReply(type(failed).__name__)
            raise
        except asyncio.CancelledError:
            reply = CallReply("cancelled")
            raise
        finally:
            self._settle(request, intent.key, reply, error)
            if self._steps is not None:
                del self._under_way[operation]
                made = Call(
                    intent.verb,
                    intent.key,
                    body,
                    intent.check,
                    operation,
                    began_s - self._began_s,
                    self._env.monotonic() - began_s,
                    reply.outcome,
                    reply.revision,
                    None if error is None else to_status(error),
                    reply.objects,
                    reply.unanswered_s,
                )
                self._steps.append(made)
                self.calls_made += (made,)
        return reply.objects

    def _stamped(self, request: _Sent, operation: str) -> _Sent:
        """The request with its operation id; a write also with the fence of this leader."""
        origin = Origin(operation, self._decision.id)
        if request.reads:
            return replace(request, options=replace(request.options, origin=origin))
        return replace(request, options=replace(request.options, origin=origin, fence=self._fence))

    def _send(self, request: Request[Reply]) -> Awaitable[Reply]:
        return self._client.send(request)

    def _find(self, request: Get) -> Awaitable[Object | None]:
        return self._client.find(request.key)

    def _ensure(self, request: Create) -> Awaitable[Written]:
        return self._client.ensure(request.kind, request.body, namespace=request.namespace, options=request.options)

    def _settle(
        self, request: AnyRequest, wrote_key: Key | None, reply: CallReply, error: OperatingError | None
    ) -> None:
        """Note the revisions that the caches must reach before the key runs again."""
        key = self._decision.key
        if request.reads:
            return
        if reply.outcome == "cancelled" or isinstance(error, OutcomeUnknown):
            self._floors.note_unknown(key, wrote_key or Key(request.target.kind, "", ""))
        elif isinstance(error, Conflict | Refused):
            # It was decided on an older version. Without the newer one the next run would fail in the same way.
            if error.key is not None and error.revision:
                self._floors.note(key, error.key.kind, error.revision, wrote=error.key)
        elif reply.objects:
            wrote = reply.objects[0].key
            if reply.outcome == "removed" and not reply.certain:
                self._floors.note_unknown(key, wrote)  # it is gone, at a revision that is not known
            else:
                self._floors.note(key, wrote.kind, reply.revision, wrote=wrote)
            if reply.outcome != "unchanged":
                self._wrote.append((wrote, content_fingerprint(reply.objects[0])))
