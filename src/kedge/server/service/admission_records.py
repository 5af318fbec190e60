"""Records of admission: which policy, at which revision, changed or refused a write.

Policies, limit ranges, quotas and priority classes note what they did on the `Proof` of the write; `core` records it
when the write is committed or refused. A write that none of them touched has no record.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from kedge.api.objects import Object
from kedge.api.requests import WriteOptions
from kedge.env import Env
from kedge.errors import Forbidden
from kedge.keys import NO_REVISION, Key, Revision
from kedge.observe.recording.recorder import Recorder
from kedge.observe.records import AdmissionAct, AdmittedWrite, Decision

CONTROLLER: Final = "admission"
REFUSED: Final = "refused"
_CALLER_LENGTH_MAX: Final = 256


class AdmissionRecords:
    """Numbers the records of one server. Equal refusals in quick succession are one record, with their number."""

    def __init__(self, env: Env, recorder: Recorder) -> None:
        self._env = env
        self._recorder = recorder
        self._process = env.new_uid()[:8]
        self._count = 0
        self._refused: OrderedDict[tuple[str, ...], tuple[float, int]] = OrderedDict()
        """By caller, owner and policies: when a refusal was recorded, and how many equal ones came since."""
        env.metrics.gauge(
            "kedge_service_admission_refusals", "Refusals whose repeats are counted instead of recorded"
        ).set_function(lambda: len(self._refused))

    def admitted(
        self, key: Key, subject: Object | None, acts: Sequence[AdmissionAct], revision: Revision, options: WriteOptions
    ) -> None:
        """Policies changed a write, and it was committed at `revision`."""
        self._recorder.take(self._record(key, subject, acts, revision, options))

    def refused(
        self, subject: Object | None, acts: Sequence[AdmissionAct], error: Forbidden, options: WriteOptions
    ) -> None:
        key = error.key or (None if subject is None else subject.key)
        if key is None:
            return
        caller = options.origin.caller[:_CALLER_LENGTH_MAX]
        repeats = self._repeats((caller, key.kind, key.namespace, _owner(subject) or key.name, *_names(acts)))
        if repeats is None:
            return
        record = self._record(key, subject, acts, NO_REVISION, options, repeats)
        record.result, record.error = "terminal", f"{type(error).__name__}: {error}"
        self._recorder.take(record)

    def _repeats(self, about: tuple[str, ...]) -> int | None:
        """How many equal refusals were not recorded since the last; None if this one is not to be recorded either."""
        limits, now_s = self._env.limits, self._env.monotonic()
        since_s, repeats = self._refused.get(about, (float("-inf"), 0))
        if now_s - since_s < limits.admission_repeat_s:
            self._refused[about] = since_s, repeats + 1
            return None
        self._refused[about] = now_s, 0
        self._refused.move_to_end(about)
        if len(self._refused) > limits.admission_refusals_max:
            self._refused.popitem(last=False)
        return repeats

    def _record(
        self,
        key: Key,
        subject: Object | None,
        acts: Sequence[AdmissionAct],
        revision: Revision,
        options: WriteOptions,
        repeats: int = 0,
    ) -> Decision:
        self._count += 1
        origin = options.origin
        return Decision(
            id=f"{CONTROLLER}:{self._process}:{self._count}",
            controller=CONTROLLER,
            process=self._process,
            key=key,
            tenant=key.namespace,
            priority=0,
            uid="" if subject is None else subject.uid,
            generation=0 if subject is None else subject.metadata.generation,
            began=self._env.now(),
            result="await change",
            steps=list(acts),
            admission=AdmittedWrite(origin.caller, origin.groups, origin.decision, revision, _owner(subject), repeats),
        )


def _owner(subject: Object | None) -> str:
    """The uid of the controller that owns the object; empty without one."""
    owners = () if subject is None else subject.metadata.owner_references
    return next((each.uid for each in owners if each.controller), "")


def _names(acts: Sequence[AdmissionAct]) -> list[str]:
    return [each.policy for each in acts if each.verb == REFUSED]
