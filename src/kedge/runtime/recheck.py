"""Runs a recorded decision again: the caches rebuilt from what they had received, the recorded replies, the same draws.

The reconcile must ask for the same things in the same order and reach the same end. If it does not, the record lacks an
input, and that is an error: `ReplayDiverged` says where.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from kedge.api.intents import Intent, intent_of
from kedge.api.objects import Object
from kedge.api.requests import AnyRequest
from kedge.api.selectors import LabelSelector
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import Compacted, InvariantBroken, ReplayDiverged, Terminal, from_status
from kedge.keys import Key, Revision
from kedge.observe.records import Budget, CacheRead, Call, Clock, Decision, DecisionStep, Measured, NotStarted
from kedge.runtime.action import Action, Next, check_action
from kedge.runtime.cache import Cache, Index, Read, ReceivedLog, Stale
from kedge.runtime.calls import copy_body
from kedge.runtime.context import Context, Reconciler

_T = TypeVar("_T")
_Answer = TypeVar("_Answer")
_Failure = TypeVar("_Failure", ReplayDiverged, Compacted)


class Evidence(Protocol):
    """Where the caches of a decision come from."""

    def state_at(self, read: CacheRead) -> Mapping[Key, Object]:
        """What the cache held, or at least everything that the read could find.

        Raises:
            Compacted: it is no longer known.
        """


class ReceivedEvidence:
    """The received logs of the process that decided: each cache is built again as it stood."""

    def __init__(self, logs: Mapping[str, ReceivedLog]) -> None:
        self._logs = logs
        self._built: dict[str, tuple[int, Mapping[Key, Object]]] = {}

    @classmethod
    def of(cls, caches: Iterable[Cache]) -> ReceivedEvidence:
        return cls({cache.name: cache.received for cache in caches})

    def state_at(self, read: CacheRead) -> Mapping[Key, Object]:
        place, built = self._built.get(read.cache, (-1, {}))
        if place != read.place:
            log = self._logs.get(read.cache)
            if log is None:
                raise Compacted(f"no received log of {read.cache} is at hand", oldest=0)
            built, _ = log.state_at(read.place)
            self._built[read.cache] = read.place, built
        return built


class RecordedEvidence:
    """The record alone: what each read found. For records read from a durable log, whose process is gone."""

    def state_at(self, read: CacheRead) -> Mapping[Key, Object]:
        if len(read.objects) != (read.found if read.verb != "get" else bool(read.found)):
            raise Compacted(f"the record does not hold what was read of {read.cache}", oldest=0)
        return {each.key: each for each in read.objects}


async def recheck(decision: Decision, reconciler: Reconciler, evidence: Evidence, env: Env) -> None:
    """Run `decision` again, and compare.

    `env` gives limits, nothing else.

    Raises:
        ReplayDiverged: it went another way; says at which step, and how.
        Compacted: what it read is no longer known. Keep the record, or its log, for longer.
    """
    if decision.result == "cancelled" or any(isinstance(step, NotStarted) for step in decision.steps):
        return  # ended from outside, at a moment that no input decides; or never begun
    if decision.objects_dropped:
        raise Compacted(f"decision {decision.id} was too large to be kept with the objects it read", oldest=0)
    replay = _Replay(decision)
    ctx = _RecordedContext(replay, evidence, env)
    ended = await _run_again(decision, reconciler, ctx, replay)
    if replay.failure is not None:
        raise replay.failure  # also if the reconciler took it for an error of its own
    was = _Ending(decision.result, decision.delay_s, decision.condition, decision.reason)
    for field in ("result", "delay_s", "condition", "reason"):
        value, before = getattr(ended, field), getattr(was, field)
        if value != before:
            replay.diverge(f"it ended with {field} {value!r}, and not {before!r} ({ended.error})")
    if _without_address(ended.error) != _without_address(decision.error):
        replay.diverge(f"it failed with {ended.error!r}, and not {decision.error!r}")
    if decision.seed is not None and not ctx.drew:
        replay.diverge("it drew no random number, and the record has one")
    left = replay.peek()
    if left is not None:
        replay.diverge(f"it ended before {_describe(left)}")


class _Ending(NamedTuple):
    """How a decision ended."""

    result: str
    delay_s: float | None = None
    condition: str = ""
    reason: str = ""
    error: str = ""


async def _run_again(decision: Decision, reconciler: Reconciler, ctx: _RecordedContext, replay: _Replay) -> _Ending:
    """The reconcile itself, and its end as `Controller` would put it."""
    try:
        replay.budgets()
        action: Action = await reconciler.reconcile(ctx, decision.key)
        check_action(decision, action)
    except Terminal as failed:
        return _Ending("terminal", error=_words(failed))
    except _NotRecorded:
        return _Ending("failed", error=decision.error)
    except Exception as failed:  # noqa: BLE001  the reconciler's own error is its decision too
        return _Ending("failed", error=_words(failed))
    except asyncio.CancelledError as failed:
        if decision.result != "failed":
            raise
        return _Ending("failed", error=_words(failed))
    error = f"Terminal: {action.reason}" if action.next is Next.TERMINAL else ""
    return _Ending(action.next.value, action.delay_s, action.condition, action.reason, error)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _without_address(text: str) -> str:
    """Where an object lies in memory is part of many messages, and decides nothing."""
    return re.sub(r"\bat 0x[0-9a-f]+", "at 0x...", text)


class _NotRecorded(Exception):
    """A call failed with something that is no operating error: a record has only its words, where it ended the run."""


class _Replay:
    """The steps of a record, taken one after another."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.failure: ReplayDiverged | Compacted | None = None
        """The first thing that went another way, or that is no longer known."""
        self._place = 0

    def peek(self) -> DecisionStep | None:
        steps = self.decision.steps
        return steps[self._place] if self._place < len(steps) else None

    def take(self, kind: type[_T], asked: str) -> _T:
        step = self.peek()
        if step is None and self.decision.error.startswith("InvariantBroken: "):
            raise InvariantBroken(self.decision.error.partition(": ")[2])  # refused before there was anything to record
        if not isinstance(step, kind):
            self.diverge(f"it asked for {asked}, where the record has {_describe(step)}")
        self._place += 1
        return step

    def budgets(self) -> None:
        """The controller's own checks come first; a reconcile that failed one never began."""
        while isinstance(step := self.peek(), Budget) and step.declared:
            self._place += 1
            if not step.kept:
                raise self.stale(step)

    def stale(self, step: Budget) -> Stale:
        """As the cache put it, if that is what ended the run."""
        name, _, words = self.decision.error.partition(": ")
        words = words if name == Stale.__name__ else f"the cache of {step.cache} was too old"
        return Stale(words, age_s=step.age_s, budget_s=step.budget_s, freshness=_NOT_HERE)

    def diverge(self, how: str) -> NoReturn:
        what = f"decision {self.decision.id} about {self.decision.key}, step {self._place + 1}: {how}"
        raise self.fail(ReplayDiverged(what))

    def fail(self, error: _Failure) -> _Failure:
        if self.failure is None:
            self.failure = error
        return error


class _RecordedContext(Context):
    """Answers from the record. It has no client, no caches and no clock."""

    def __init__(self, replay: _Replay, evidence: Evidence, env: Env) -> None:
        decision = replay.decision
        self._replay = replay
        self._evidence = evidence
        self._env = env
        self._client: Client = _NOT_HERE
        self._random = None
        self._decision = Decision(
            id=decision.id,
            controller=decision.controller,
            process=decision.process,
            key=decision.key,
            tenant=decision.tenant,
            priority=decision.priority,
            began=decision.began,
        )

    @property
    def drew(self) -> bool:
        return self._random is not None

    def now(self) -> datetime:
        return self._replay.take(Clock, "the time").now

    def measured(self, what: str, _measure: Callable[[], _T], /) -> _T:
        step = self._replay.take(Measured, what)
        if step.what != what:
            self._replay.diverge(f"it asked for {what}, where the record has {_describe(step)}")
        value: _T = step.value
        return value

    def _draw_seed(self) -> int:
        seed = self._replay.decision.seed
        if seed is None:
            self._replay.diverge("it drew a random number, and the record has none")
        return seed

    def check_fresh(self, kind: Any, *, max_age_s: float) -> None:
        step = self._replay.take(Budget, f"{kind.key_kind} at most {max_age_s} s old")
        if step.budget_s != max_age_s:
            self._replay.diverge(f"it allowed {max_age_s} s, and not {step.budget_s} s")
        if step.cache.partition("[")[0] != kind.key_kind:
            self._replay.diverge(f"it asked for the age of {kind.key_kind}, and not of {step.cache}")
        if not step.kept:
            raise self._replay.stale(step)

    def _cached(self, kind: str, verb: str, about: tuple[str, ...], ask: Callable[[Any], Read[_T]]) -> _T:
        asked = f"{verb} of {kind} {' '.join(about)}"
        step = self._replay.take(CacheRead, asked)
        if (step.cache.partition("[")[0], step.verb, step.about) != (kind, verb, about):
            self._replay.diverge(f"it asked for {asked}, where the record has {_describe(step)}")
        try:
            held = self._evidence.state_at(step)
        except Compacted as error:
            raise self._replay.fail(error) from None
        value = ask(_Rebuilt(held, step)).value
        objects: Any = () if value is None else (value,) if verb == "get" else value
        found, was = _versions(objects), _versions(step.objects)
        if found != was:
            self._replay.diverge(f"{asked} finds {found} in the cache as rebuilt, and found {was}")
        return value

    async def _call(self, request: AnyRequest, _send: Any, _read: Any, *, ensures: bool = False) -> tuple[Object, ...]:
        intent = intent_of(request, ensures=ensures)
        step = self._replay.take(Call, f"{intent.verb} {intent.key or ''}")
        was = Intent(step.verb, step.key, step.intent, step.check)
        intent = intent._replace(body=copy_body(intent.body))
        for field, now, then in zip(Intent._fields, intent, was, strict=True):
            if now != then:
                self._replay.diverge(f"its {step.verb} of {step.key} has {field} {now!r}, and had {then!r}")
        if step.error is not None:
            raise from_status(step.error)
        if step.outcome == "cancelled":
            # A timeout of its own: what is not known here is only how long it waited.
            raise TimeoutError
        if step.outcome == "failed":
            raise _NotRecorded
        return step.reply


class _Rebuilt:
    """A cache as it was, for one read."""

    def __init__(self, objects: Mapping[Key, Object], read: CacheRead) -> None:
        self._objects = objects
        self._recorded = read

    def get(self, key: Key) -> Read[Object | None]:
        return self._read(self._objects.get(key))

    def list(self, *, namespace: str = "", selector: LabelSelector | None = None) -> Read[tuple[Object, ...]]:
        return self._read(
            tuple(
                self._objects[key]
                for key in sorted(self._objects)
                if namespace in ("", key.namespace)
                and (selector is None or selector.matches(self._objects[key].metadata.labels))
            )
        )

    def by_index(self, index: Index, value: str) -> Read[tuple[Object, ...]]:
        found = (self._objects[key] for key in sorted(self._objects))
        return self._read(tuple(each for each in found if value in index.values_of(each)))

    def _read(self, value: _T) -> Read[_T]:
        return Read(value, self._recorded.revision, self._recorded.age_s, self._recorded.place)


def _versions(objects: Iterable[Object]) -> list[tuple[str, Revision]]:
    return [(str(each.key), each.revision) for each in objects]


def _describe(step: DecisionStep | None) -> str:
    match step:
        case None:
            return "its end"
        case CacheRead():
            return f"{step.verb} of {step.cache} {' '.join(step.about)}"
        case Call():
            return f"{step.verb} {step.key or ''}"
        case Clock():
            return "the time"
        case Budget():
            return f"the age of {step.cache}"
        case Measured():
            return step.what
        case NotStarted():
            return "nothing, because it never began"


_NOT_HERE: Any = None
"""Stands where a live run has a client, or a freshness: nothing here asks for either."""
