"""Runs a recorded decision again: on rebuilt caches, with the recorded replies and the same random draws.

The reconcile must make the same reads and requests in the same order and reach the same result. If it does not, the
record lacks an input, and that is an error: `ReplayDiverged` names the step.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

import msgspec

from kedge.api.field_notes import FieldNotes
from kedge.api.intents import Intent, intent_of
from kedge.api.objects import Object
from kedge.api.requests import AnyRequest
from kedge.api.selectors import LabelSelector
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import Compacted, InvariantBroken, KedgeError, ReplayDiverged, Terminal, from_status
from kedge.keys import Key, Revision
from kedge.observe.records import (
    PROCESS_ENDED,
    UNDER_WAY,
    AdmissionAct,
    Budget,
    CacheRead,
    Call,
    Clock,
    Decision,
    DecisionStep,
    Measured,
    NotStarted,
    PodAct,
    PodSync,
    encode_intent,
)
from kedge.runtime.action import Action, Next, check_action
from kedge.runtime.cache import Cache, Index, Read, ReceivedLog, Stale
from kedge.runtime.context import Context, Reconciler

_T = TypeVar("_T")
_Answer = TypeVar("_Answer")


class CutOff(KedgeError):
    """The process, or the recording, ended during the decision: its record has no result. The steps that it has agree.

    Read the objects to see which of its requests took effect.
    """


_Failure = TypeVar("_Failure", ReplayDiverged, Compacted, CutOff)


class Evidence(Protocol):
    """The source of the cache contents of a decision."""

    def state_at(self, read: CacheRead) -> Mapping[Key, Object]:
        """The content of the cache, or at least everything that the read could find.

        Raises:
            Compacted: it is no longer known.
        """


class ReceivedEvidence:
    """The received logs of the process that decided: each cache is rebuilt at the recorded place."""

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
                raise Compacted(f"there is no received log of {read.cache}", oldest=0)
            built, _ = log.state_at(read.place)
            self._built[read.cache] = read.place, built
        return built


class RecordedEvidence:
    """The record alone, with the objects of each read. For records from a durable log, whose process is gone."""

    def state_at(self, read: CacheRead) -> Mapping[Key, Object]:
        if len(read.objects) != (read.found if read.verb != "get" else bool(read.found)):
            raise Compacted(f"the record lacks the objects that were read from {read.cache}", oldest=0)
        return {each.key: each for each in read.objects}


async def recheck(decision: Decision, reconciler: Reconciler, evidence: Evidence, env: Env) -> None:
    """Run `decision` again, and compare.

    Only the limits of `env` are used.

    Raises:
        ReplayDiverged: the second run differs; the message names the step and the difference.
        Compacted: the objects it read are no longer known. Keep the record, or its log, for longer.
        CutOff: the record ends before the decision does, and agrees up to there.
    """
    if _can_run(decision):
        replay = _Replay(decision)
        await _compare(decision, reconciler, _RecordedContext(replay, evidence, env), replay)


async def touched_fields(
    decision: Decision, reconciler: Reconciler, evidence: Evidence, env: Env
) -> dict[str, tuple[str, ...]]:
    """The fields that a decision read, by kind: it is run again on noted objects.

    Raises:
        ReplayDiverged, Compacted, CutOff: as `recheck`.
    """
    notes = FieldNotes(env.limits.decision_objects_noted_max)
    if _can_run(decision):
        replay = _Replay(decision)
        await _compare(decision, reconciler, _RecordedContext(replay, evidence, env, notes), replay)
    notes.close()
    return notes.touched()


async def difference_on(decision: Decision, reconciler: Reconciler, changed: Evidence, env: Env) -> str:
    """Run `decision` on changed inputs. Returns the first request or result that differs; empty if none does.

    Raises:
        Compacted, CutOff: as `recheck`.
    """
    if not _can_run(decision):
        return ""
    replay = _TimelessReplay(decision)
    try:
        await _compare(decision, reconciler, _ChangedContext(replay, changed, env), replay)
    except ReplayDiverged as error:
        return str(error).partition(": ")[2]
    return ""


def _can_run(decision: Decision) -> bool:
    """Whether inputs determine the decision: not if it was cancelled from outside, or never begun.

    Raises:
        Compacted: the record lacks its inputs.
    """
    if decision.result == "cancelled" or any(isinstance(step, NotStarted) for step in decision.steps):
        return False
    if decision.objects_dropped:
        raise Compacted(f"decision {decision.id} was too large to be kept with the objects it read", oldest=0)
    return True


async def _compare(decision: Decision, reconciler: Reconciler, ctx: _RecordedContext, replay: _Replay) -> None:
    ended = await _run_again(decision, reconciler, ctx, replay)
    if replay.failure is not None:
        raise replay.failure  # also if the reconciler caught it
    if not decision.result and replay.peek() is None:
        raise replay.cut_off()
    was = _Result(decision.result, decision.delay_s, decision.condition, decision.reason)
    for field in ("result", "delay_s", "condition", "reason"):
        value, before = getattr(ended, field), getattr(was, field)
        if value != before:
            replay.diverge(f"it ended with {field} {value!r}, not {before!r} ({ended.error})")
    if _without_address(ended.error) != _without_address(decision.error):
        replay.diverge(f"it failed with {ended.error!r}, not {decision.error!r}")
    if decision.seed is not None and not ctx.drew:
        replay.diverge("it drew no random number, but the record has one")
    left = replay.peek()
    if left is not None:
        replay.diverge(f"it ended before {_describe(left)}")


class _Result(NamedTuple):
    """The result of a decision."""

    result: str
    delay_s: float | None = None
    condition: str = ""
    reason: str = ""
    error: str = ""


async def _run_again(decision: Decision, reconciler: Reconciler, ctx: _RecordedContext, replay: _Replay) -> _Result:
    """The reconcile itself, and its result as `Controller` would record it."""
    try:
        replay.budgets()
        action: Action = await reconciler.reconcile(ctx, decision.key)
        check_action(decision, action)
    except Terminal as failed:
        return _Result("terminal", error=_error_text(failed))
    except _NotRecorded:
        return _Result("failed", error=decision.error)
    except Exception as failed:  # noqa: BLE001  an error of the reconciler is a result too
        return _Result("failed", error=_error_text(failed))
    except asyncio.CancelledError as failed:
        if decision.result != "failed":
            raise
        return _Result("failed", error=_error_text(failed))
    error = f"Terminal: {action.reason}" if action.next is Next.TERMINAL else ""
    return _Result(action.next.value, action.delay_s, action.condition, action.reason, error)


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _without_address(text: str) -> str:
    """Memory addresses in messages differ between runs and are ignored."""
    return re.sub(r"\bat 0x[0-9a-f]+", "at 0x...", text)


class _NotRecorded(Exception):
    """A call failed with an error that is not an `OperatingError`: the record has only its text."""


class _Replay:
    """The steps of a record, taken one after another."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.failure: ReplayDiverged | Compacted | CutOff | None = None
        """The first divergence, the first input that is no longer known, or the end of a record that was cut off."""
        self._place = 0

    def peek(self) -> DecisionStep | None:
        steps = self.decision.steps
        return steps[self._place] if self._place < len(steps) else None

    def take(self, kind: type[_T], requested: str) -> _T:
        step = self.peek()
        if step is None and not self.decision.result:
            raise self.fail(self.cut_off())
        if step is None and self.decision.error.startswith("InvariantBroken: "):
            raise InvariantBroken(self.decision.error.partition(": ")[2])  # raised before there was anything to record
        if not isinstance(step, kind):
            self.diverge(f"it requested {requested}, but the record has {_describe(step)}")
        self._place += 1
        return step

    def budgets(self) -> None:
        """The checks of the controller come first; if one failed, the reconcile never began."""
        while isinstance(step := self.peek(), Budget) and step.declared:
            self._place += 1
            if not step.kept:
                raise self.stale(step)

    def stale(self, step: Budget) -> Stale:
        """The recorded error of the cache, if it ended the run."""
        name, _, text = self.decision.error.partition(": ")
        text = text if name == Stale.__name__ else f"the cache of {step.cache} was too old"
        return Stale(text, age_s=step.age_s, budget_s=step.budget_s, freshness=_NOT_HERE)

    def diverge(self, how: str) -> NoReturn:
        what = f"decision {self.decision.id} about {self.decision.key}, step {self._place + 1}: {how}"
        raise self.fail(ReplayDiverged(what))

    def cut_off(self) -> CutOff:
        decision = self.decision
        why = decision.cut_off or PROCESS_ENDED
        return CutOff(f"decision {decision.id} about {decision.key} was cut off after step {self._place}: {why}")

    def fail(self, error: _Failure) -> _Failure:
        if self.failure is None:
            self.failure = error
        return error


class _TimelessReplay(_Replay):
    """The steps of a record without its times: to look at the clock once more or less decides nothing."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision)
        self._now = decision.began

    def peek(self) -> DecisionStep | None:
        while isinstance(step := super().peek(), Clock):
            self._now = step.now
            self._place += 1
        return step

    def now(self) -> datetime:
        step = super().peek()
        if isinstance(step, Clock):
            self._now = step.now
            self._place += 1
        return self._now


class _RecordedContext(Context):
    """Answers from the record. It has no client, no caches and no clock."""

    def __init__(self, replay: _Replay, evidence: Evidence, env: Env, notes: FieldNotes | None = None) -> None:
        decision = replay.decision
        self._replay = replay
        self._evidence = evidence
        self._env = env
        self._client: Client = _NOT_HERE
        self._notes = notes
        self._random = None
        self.events = []  # not compared: they follow from the steps
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
            self._replay.diverge(f"it requested {what}, but the record has {_describe(step)}")
        value: _T = step.value
        return value

    def _draw_seed(self) -> int:
        seed = self._replay.decision.seed
        if seed is None and not self._replay.decision.result and self._replay.peek() is None:
            raise self._replay.fail(self._replay.cut_off())
        if seed is None:
            self._replay.diverge("it drew a random number, but the record has none")
        return seed

    def check_fresh(self, kind: Any, *, max_age_s: float) -> None:
        step = self._replay.take(Budget, f"{kind.key_kind} at most {max_age_s} s old")
        if step.budget_s != max_age_s:
            self._replay.diverge(f"it allowed {max_age_s} s, not {step.budget_s} s")
        if step.cache.partition("[")[0] != kind.key_kind:
            self._replay.diverge(f"it requested the age of {kind.key_kind}, not of {step.cache}")
        if not step.kept:
            raise self._replay.stale(step)

    def _cached(self, kind: str, verb: str, about: tuple[str, ...], read: Callable[[Any], Read[_T]]) -> _T:
        requested = f"{verb} of {kind} {' '.join(about)}"
        step = self._replay.take(CacheRead, requested)
        if (step.cache.partition("[")[0], step.verb, step.about) != (kind, verb, about):
            self._replay.diverge(f"it requested {requested}, but the record has {_describe(step)}")
        try:
            held = self._evidence.state_at(step)
        except Compacted as error:
            raise self._replay.fail(error) from None
        value = read(_Rebuilt(held, step)).value
        objects: Any = () if value is None else (value,) if verb == "get" else value
        self._check_found(requested, objects, step)
        return value

    def _check_found(self, requested: str, objects: Iterable[Object], step: CacheRead) -> None:
        found, was = _versions(objects), _versions(step.objects)
        if found != was:
            self._replay.diverge(f"{requested} finds {found} in the rebuilt cache, but found {was}")

    async def _call(self, request: AnyRequest, _send: Any, _read: Any, *, ensures: bool = False) -> tuple[Object, ...]:
        intent = intent_of(request, ensures=ensures)
        step = self._replay.take(Call, f"{intent.verb} {intent.key or ''}")
        was = Intent(step.verb, step.key, step.intent, step.check)
        intent = intent._replace(body=msgspec.json.decode(encode_intent(intent.body)))
        for field, now, then in zip(Intent._fields, intent, was, strict=True):
            if now != then:
                self._replay.diverge(f"its {step.verb} of {step.key} has {field} {now!r}, but had {then!r}")
        if step.outcome == UNDER_WAY:
            raise self._replay.fail(self._replay.cut_off())
        if step.error is not None:
            raise from_status(step.error)
        if step.outcome == "cancelled":
            # The reconcile had a timeout of its own. Only the length of the wait is not known here.
            raise TimeoutError
        if step.outcome == "failed":
            raise _NotRecorded
        return step.reply


class _ChangedContext(_RecordedContext):
    """As it is recorded, but for cached reads: these find other objects, on purpose."""

    _replay: _TimelessReplay

    def now(self) -> datetime:
        return self._replay.now()

    def _check_found(self, requested: str, objects: Iterable[Object], step: CacheRead) -> None:
        pass


class _Rebuilt:
    """A rebuilt cache, for one read."""

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
        case PodAct() | AdmissionAct():
            return str(step)
        case PodSync():
            return f"the {step.what} of an agent"


_NOT_HERE: Any = None
"""In the place of the client and the freshness of a live run: neither is used here."""
