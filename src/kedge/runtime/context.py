"""What a reconcile may touch: cached reads, requests, time and chance, through one object, all of it recorded.

Reads of caches are synchronous and may be old; requests go to the authority and are awaited. `runtime.recheck` gives
the same reconcile a context that answers from a record instead.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from kedge.api.holds import active_hold
from kedge.api.intents import intent_of
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
from kedge.errors import (
    Compacted,
    Conflict,
    InvariantBroken,
    OperatingError,
    OutcomeUnknown,
    Refused,
    check,
    to_status,
)
from kedge.keys import NO_REVISION, Fence, Key, Origin, Revision
from kedge.limits import Limits
from kedge.observe.records import (
    Budget,
    CacheMark,
    CacheRead,
    Call,
    Clock,
    Decision,
    DecisionStep,
    Measured,
    NotStarted,
)
from kedge.runtime.action import Action
from kedge.runtime.cache import BY_CONTROLLER, Cache, Index, Read, WriteFloors, marks_of
from kedge.runtime.queue import RunEffects
from kedge.runtime.status import plan_status

_T = TypeVar("_T")
_Answer = TypeVar("_Answer")
_Sent = TypeVar("_Sent", bound=AnyRequest)
WriteRequest = Create | Patch | Delete | Evict | ConfirmEnded | Bind

_COMPARED_MAX = 100
"""Objects of one answer that are compared by content to find a fight; a longer answer is news whenever one changed."""


class Reconciler(Protocol):
    async def reconcile(self, ctx: Context, key: Key) -> Any:
        """Look at the object behind `key` as it is now, take one bounded step, and return an `Action`."""


class Held(OperatingError):
    """A person holds the object, and this controller is to leave it alone. Nothing was written; the hold will end."""


class Context:
    """One decision: its reads, its writes, its time and its chance."""

    def __init__(
        self,
        client: Client,
        env: Env,
        caches: Mapping[str, Cache],
        floors: WriteFloors,
        decision: Decision,
        *,
        fence: Fence | None = None,
        recorded: bool = True,
    ) -> None:
        self._client = client
        self._env = env
        self._caches = caches
        self._floors = floors
        self._decision = decision
        self._steps: list[DecisionStep] | None = decision.steps if recorded else None
        self._fence = fence
        self._began_s = env.monotonic()
        self._calls = 0
        self._random: random.Random | None = None
        self._own = f"{decision.controller}:"
        self._saw = 0
        self._wrote: list[tuple[Key | None, int]] = []
        self._ended = False

    @property
    def decision(self) -> str:
        """The id that every version written by this decision carries beside it."""
        return self._decision.id

    @property
    def limits(self) -> Limits:
        return self._env.limits

    @property
    def random(self) -> random.Random:
        """Chance that the record can give again."""
        if self._random is None:
            self._random = random.Random(self._draw_seed())
        return self._random

    def new_uid(self) -> str:
        return uid_from(self.random)

    def now(self) -> datetime:
        """Wall clock, for people and timestamps."""
        now = self._env.now()
        if self._steps is not None:
            self._steps.append(Clock(now))
        return now

    def measured(self, what: str, measure: Callable[[], _T], /) -> _T:
        """An observation that only this process can make, such as how long it has heard nothing; as plain JSON.

        It is recorded, so that the decision can be run again: a reconcile asks for it here and nowhere else.
        """
        value = measure()
        if self._steps is not None:
            self._steps.append(Measured(what, deepcopy(value)))  # as it is now: whoever made it may go on changing it
        return value

    # -- cached reads ------------------------------------------------------------------------------

    def get(self, key: Key) -> Object | None:
        """One object as the cache has it; None if it knows of none."""
        found = self._cached(key.kind, "get", (key.namespace, key.name), lambda cache: cache.get(key))
        if key == self._decision.key and found is not None and not self._decision.uid:
            self._decision.uid, self._decision.generation = found.uid, found.metadata.generation
        return found

    def list(
        self, kind: Kind, *, namespace: str = "", selector: LabelSelector | str | None = None
    ) -> tuple[Object, ...]:
        """Objects as the cache has them, in key order: all, of one namespace, with some labels."""
        chosen = parse_label_selector(selector) if isinstance(selector, str) else selector
        about = (namespace, "nothing" if chosen is not None and chosen.never else str(chosen or ""))
        return self._cached(
            kind.key_kind, "list", about, lambda cache: cache.list(namespace=namespace, selector=chosen)
        )

    def by_index(self, kind: Kind, index: Index, value: str) -> tuple[Object, ...]:
        """Objects that have `value` in an index that the controller declared, in key order."""
        return self._cached(kind.key_kind, "index", (index.name, value), lambda cache: cache.by_index(index, value))

    def owned(self, kind: Kind, owner: Object) -> tuple[Object, ...]:
        """Objects of `kind` that `owner` controls: this owner, not one that had its name."""
        return self.by_index(kind, BY_CONTROLLER, owner.uid)

    def has_seen(self, kind: Kind, revision: Revision) -> bool | None:
        """Whether the cache of `kind` holds all that was committed up to `revision`, of another kind's object perhaps.

        Two caches are not of one moment: what one object says of another may not show there yet. None if nobody can
        say, because each kind has a history of its own: then only the authority tells.
        """
        return self.measured(f"{kind.key_kind} up to {revision}", lambda: self._seen(kind, revision))

    def check_fresh(self, kind: Kind, *, max_age_s: float) -> None:
        """Hold a cache to a staleness budget before a decision that needs one.

        Raises:
            Stale: it is older. Let it end the reconcile: the key is tried again later.
        """
        self._check_fresh(kind, max_age_s, declared=False)

    # -- the authority -----------------------------------------------------------------------------

    async def fresh(self, key: Key) -> Object | None:
        """One object as it is at the authority: before what cannot be taken back."""
        found = await self._call(Get(key), self._find, _read_one)
        return found[0] if found else None

    async def fresh_list(self, kind: Kind, *, namespace: str = "", label_selector: str = "") -> Sequence[Object]:
        options = ListOptions(namespace=namespace, label_selector=label_selector)
        return await self._call(List(kind, options), self._send, _read_list)

    async def create(self, kind: Kind, body: Mapping[str, Any], *, namespace: str = "") -> Object:
        """Create. If the name must be right whatever is lost on the way, use `ensure`."""
        return await self._write(Create(kind, body, namespace))

    async def ensure(self, kind: Kind, body: Mapping[str, Any], *, namespace: str = "") -> Object:
        """Create, or confirm that it is there and is ours. Safe to repeat, also after an unknown outcome.

        Raises:
            AlreadyExists: something of another owner has the name, or ours is being deleted.
        """
        (found,) = await self._call(Create(kind, body, namespace), self._ensure, _wrote, ensures=True)
        return found

    async def patch(
        self, found: Object | Key, body: Mapping[str, Any], *, subresource: str = "", any_version: bool = False
    ) -> Object:
        """Merge `body` into an object, if it is still the version that was read.

        Give a key, or `any_version`, for a change that is right whatever else was written meanwhile.

        Raises:
            Conflict: it has changed. Let it end the reconcile: the next one reads first.
        """
        key = found if isinstance(found, Key) else found.key
        patch = dict(body)
        if isinstance(found, Object):
            if subresource != "status":
                self._check_held(found)
            metadata = {"uid": found.uid} if any_version else {"resourceVersion": str(found.revision)}
            patch["metadata"] = {**patch.get("metadata", {}), **metadata}
        return await self._write(Patch(key, patch, subresource=subresource))

    async def write_status(self, found: Object, status: Mapping[str, Any]) -> Object:
        """Say `status` of the version that was read, if that says anything new. Times alone are nothing new.

        Fields not named stay; conditions are set by type; `observedGeneration` is the generation of `found`.

        Raises:
            Conflict: the object has changed. Let it end the reconcile: the next one reads first.
        """
        patch = plan_status(found, status, self.now())
        if patch is None:
            return found
        return await self._write(Patch(found.key, patch, subresource="status"))

    async def delete(
        self, found: Object, *, any_version: bool = False, grace_s: int | None = None, propagation: str = ""
    ) -> Object:
        """Delete the very version that was read; with `any_version`, that incarnation whatever it says now.

        Raises:
            Conflict: it is another by now. Nothing was deleted.
        """
        self._check_held(found)
        revision = NO_REVISION if any_version else found.revision
        options = DeleteOptions(uid=found.uid, revision=revision, grace_s=grace_s, propagation=propagation)
        return await self._write(Delete(found.key, options))

    async def evict(self, found: Object) -> Object:
        """Delete a pod if its disruption budgets allow it.

        Raises:
            TooManyRequests: they do not, for now.
        """
        self._check_held(found)
        return await self._write(Evict(found.key, DeleteOptions(uid=found.uid)))

    async def confirm_ended(self, ledger: Object, pod_uid: str) -> Object:
        """Free the claim of a pod that is gone or has ended, on the word of whoever knows that nothing of it runs.

        Raises:
            Conflict: the pod still exists, or the ledger is that of another incarnation by now.
        """
        return await self._write(ConfirmEnded(ledger.key.name, ledger.view.spec.node_uid, pod_uid))

    async def bind(self, binding: Binding) -> Object:
        """Put a pod on a node, if that is still right when it is committed."""
        return await self._write(Bind(binding))

    def _check_held(self, found: Object) -> None:
        """The net below every controller: what a person holds off it is not changed, whatever it planned."""
        if any(name.startswith(HOLD_PREFIX) for name in found.metadata.annotations):
            hold = active_hold(found.metadata, self._decision.controller, self.now())
            if hold is not None:
                raise Held(f"{found.key}: {hold}", key=found.key)

    def hold_back(self, error: OperatingError) -> None:
        """Used by the controller: the reconcile does not begin, because of this."""
        self._note(NotStarted(f"{type(error).__name__}: {error}"))
        raise error

    def check_declared(self, kind: Kind, *, max_age_s: float) -> None:
        """Used by the controller: hold a cache to the budget that was declared for every decision."""
        self._check_fresh(kind, max_age_s, declared=True)

    def end(self) -> RunEffects:
        """Used by the controller: the decision is over. What the run did, so that a loop can be told from work."""
        self._ended = True
        return RunEffects(bool(self._wrote), frozenset(self._wrote), self._saw)

    # -- what is recorded --------------------------------------------------------------------------

    def _draw_seed(self) -> int:
        self._decision.seed = self._env.random.getrandbits(63)
        return self._decision.seed

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

    def _cached(self, kind: str, verb: str, about: tuple[str, ...], ask: Callable[[Cache], Read[_T]]) -> _T:
        cache = self._cache(kind)
        value, revision, age_s, place = ask(cache)
        objects: tuple[Object, ...]
        if verb == "get":
            objects = () if value is None else (value,)  # type: ignore[assignment]
            found = objects[0].revision if objects else 0
        else:
            objects = value  # type: ignore[assignment]
            found = len(objects)
        own = self._own
        # What this controller wrote itself is no news to it: a loop would look like work.
        others = [each for each in objects if not each.origin.decision.startswith(own)]
        self._saw = hash((self._saw, about, *_news_in(others)))
        if self._steps is not None:
            self._steps.append(CacheRead(cache.name, verb, about, place, revision, age_s, found, objects))
        return value

    async def _write(self, request: WriteRequest) -> Object:
        (written,) = await self._call(request, self._send, _wrote)
        return written

    async def _call(
        self,
        request: _Sent,
        send: Callable[[_Sent], Awaitable[_Answer]],
        read: Callable[[_Answer, str], _Reply],
        *,
        ensures: bool = False,
    ) -> tuple[Object, ...]:
        """Send one request under an operation id of its own, and record its outcome."""
        check(not self._ended, f"decision {self._decision.id} has ended: it sends no more requests")
        intent = intent_of(request, ensures=ensures)
        self._calls += 1
        operation = f"{self._decision.id}#{self._calls}"
        began_s = self._env.monotonic()
        reply = _NOTHING
        error: OperatingError | None = None
        # As it is now: the caller may go on to change what it gave, and use it for the next call.
        asked = None if self._steps is None else as_asked(intent.body)
        try:
            reply = read(await send(self._stamped(request, operation)), operation)
        except OperatingError as failed:
            error = failed
            reply = _Reply(type(failed).__name__)
            raise
        except asyncio.CancelledError:
            reply = _Reply("cancelled")
            raise
        finally:
            self._settle(request, intent.key, reply, error)
            if self._steps is not None:
                now_s = self._env.monotonic()
                self._steps.append(
                    Call(
                        intent.verb,
                        intent.key,
                        asked,
                        intent.check,
                        operation,
                        began_s - self._began_s,
                        now_s - began_s,
                        reply.outcome,
                        reply.revision,
                        None if error is None else to_status(error),
                        reply.objects,
                        marks_of(self._caches.values(), now_s),
                    )
                )
        return reply.objects

    def _stamped(self, request: _Sent, operation: str) -> _Sent:
        """The request with its operation id; a write also with the fence of this leader."""
        replace = msgspec.structs.replace
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

    def _settle(self, request: AnyRequest, wrote_key: Key | None, reply: _Reply, error: OperatingError | None) -> None:
        """Note what the key must see before it runs again."""
        key = self._decision.key
        if request.reads:
            return
        if reply.outcome == "cancelled" or isinstance(error, OutcomeUnknown):
            self._floors.note_unknown(key, wrote_key or Key(request.target.kind, "", ""))
        elif isinstance(error, Conflict | Refused):
            # It was decided on something older. What is there now must be seen first, or the next run is refused too.
            if error.key is not None and error.revision:
                self._floors.note(key, error.key.kind, error.revision, wrote=error.key)
        elif reply.objects:
            wrote = reply.objects[0].key
            if reply.outcome == "removed" and not reply.certain:
                self._floors.note_unknown(key, wrote)  # it is gone, but who knows since when
            else:
                self._floors.note(key, wrote.kind, reply.revision, wrote=wrote)
            if reply.outcome != "unchanged":
                self._wrote.append((wrote, _content(reply.objects[0])))


class _Reply(NamedTuple):
    """What an answer comes to."""

    outcome: str
    objects: tuple[Object, ...] = ()
    revision: Revision = NO_REVISION
    certain: bool = True


_NOTHING = _Reply("failed")


def _wrote(written: Written, operation: str) -> _Reply:
    found = written.object
    ours = found.origin.operation == operation
    outcome = "removed" if written.removed else "done" if ours else "unchanged"
    return _Reply(outcome, (found,), found.revision, ours)


def _read_one(found: Object | None, _: str) -> _Reply:
    return _Reply("absent") if found is None else _Reply("read", (found,), found.revision)


def _read_list(found: Any, _: str) -> _Reply:
    return _Reply("read", tuple(found.objects), found.revision)


def pin_all(caches: Iterable[Cache], marks: Iterable[CacheMark]) -> list[Callable[[], None]]:
    """Have every cache keep what it received since its mark, so that the decision can be run again. How to let go."""
    releases: list[Callable[[], None]] = []
    for cache, mark in zip(caches, marks, strict=True):
        with suppress(Compacted):  # it ran for so long that the log has moved on
            releases.append(cache.received.pin(mark.place).release)
    return releases


def check_action(decision: Decision, action: object) -> None:
    """Hold a reconciler to its contract."""
    if not isinstance(action, Action):
        raise InvariantBroken(f"{decision.controller} returned {action!r} for {decision.key}: return an Action")


def as_asked(body: Any) -> Any:
    """A copy of a request's body, as a record keeps it: plain data, the same when it is read back."""
    try:
        return msgspec.json.decode(msgspec.json.encode(body))
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        return f"what cannot be sent: {error}"


def _news_in(objects: Sequence[Object]) -> Iterator[int]:
    """What tells whether anything is new. A version that a controller wrote is new if what it says is.

    1. A rival undoes what was written here. 2. Its version is a new one, each time. 3. What it says is what it said
    the last time: to call that news would be to call the fight work. Of a version that no decision stands behind
    nothing more is known than that somebody wanted it.
    """
    if len(objects) > _COMPARED_MAX:
        return (each.revision for each in objects)
    return (_content(each) if each.origin.decision else each.revision for each in objects)


def _content(found: Object) -> int:
    """A fingerprint of what an object says: without its generation, and without the times in it."""
    value = found.value
    generation = value.find(_GENERATION)
    if generation >= 0:
        start = generation + len(_GENERATION)
        value = value[:start] + value[start:].lstrip(b"0123456789")
    first, *rest = value.split(_TIME)
    return hash((found.key, first, *[part[part.find(b'"') :] for part in rest]))


_GENERATION = b'"generation":'
_TIME = b'Time":"'
