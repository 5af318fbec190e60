"""The decision record: every input and every request of one reconcile, in order, so that it can be run again.

`runtime.context` writes it, `runtime.recheck` runs it again, `readers` explain it. It is plain data: an object in it is
the version that was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from kedge.api.objects import Object
from kedge.keys import NO_REVISION, Key, Revision
from kedge.observe.records.attempt import SchedulingAttempt

if TYPE_CHECKING:
    Objects = tuple[Object, ...]
else:
    Objects = tuple[Any, ...]  # in bytes, the numbers of their versions: `codec` replaces them


def encode_plain(value: Any) -> Any:
    """For msgspec: a body or a measured value may hold mappings that are not dicts."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a record cannot hold a {type(value).__name__}")


_encode_json: Final = msgspec.json.Encoder(enc_hook=encode_plain).encode
_decode_json: Final = msgspec.json.Decoder().decode


SNAPSHOT: Final = "snapshot"
"""The verb of a scheduling attempt's reads."""
UNDER_WAY: Final = "under way"
"""The outcome of a call that had no reply yet when its decision was cut off."""
CUT_OFF: Final = "cut off"
"""The rule in `Decision.kept` of a decision that has not ended, because its process or its recording did."""
PROCESS_ENDED, RECORDING_ENDED = "its process ended", "the recording ended"
"""Why a decision was cut off."""


class CacheMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The position of one cache at one moment."""

    cache: str
    place: int
    """In its received log."""
    revision: Revision
    age_s: float


class CacheRead(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="read"):
    """One read from a cache, which may lag behind the store."""

    cache: str
    verb: str
    """`get`, `list`, `index` or, of a scheduling attempt, `snapshot`."""
    about: tuple[str, ...]
    """For `get` the namespace and name, for `list` the namespace and selector, for `index` its name and the value."""
    place: int
    revision: Revision
    age_s: float
    found: int
    """For `get` the revision, 0 if there was no object; else the number of objects."""
    objects: Objects = ()
    """The objects themselves, so that a record can be rechecked without its received log."""


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="call"):
    """One request to the API server, and its reply."""

    verb: str
    key: Key | None
    """None where the server generates the name."""
    intent_json: bytes
    """A body, a patch, or options, as `encode_intent` made it: smaller than the objects it is read into."""
    check: str
    """The precondition of the request."""
    operation: str
    began_s: float
    """Since the decision began."""
    took_s: float
    outcome: str
    """`done`, `unchanged`, `removed`, `read`, `absent`, `cancelled`, `under way`, or the name of an error."""
    revision: Revision = NO_REVISION
    """The revision that it wrote or read."""
    error: dict[str, Any] | None = None
    """The error as a `Status`."""
    reply: Objects = ()
    unanswered_s: float = 0.0
    """How long it had no answer, if the reply was lost and a read or a repeat by the client found the write; else 0."""

    @property
    def intent(self) -> Any:
        """The body as plain data. Each access decodes it."""
        return _decode_json(self.intent_json)


def encode_intent(body: Any) -> bytes:
    """A copy of a request's body for `Call.intent_json`: its sender may change the body afterwards."""
    try:
        return _encode_json(body)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        return _encode_json(f"not serializable: {error}")


class Clock(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="now"):
    """One reading of the wall clock."""

    now: datetime


class Budget(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="budget"):
    """A check of the age of a cache, and its result."""

    cache: str
    age_s: float
    budget_s: float
    kept: bool
    declared: bool = False
    """Declared by the controller for every decision, and checked before the reconcile began."""


class Measured(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="measured"):
    """A value that only the process itself had, such as a measurement. A recheck takes it from here."""

    what: str
    value: Any
    """As JSON."""


class NotStarted(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="not started"):
    """The reconcile did not begin: the caches did not show its own earlier writes in time."""

    error: str


class PodAct(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="act"):
    """An act of an agent on a pod, or an observation that its next act follows from."""

    verb: str
    """`start`, `restart`, `stop`, `back off`, `refuse`, `fail`, `exit`, `probe` or `hook`."""
    container: str
    """Empty if it is about the whole pod."""
    why: str = ""
    attempt: int = 0
    """The attempt number of the container's process."""
    delay_s: float = 0.0
    """The pause before the next start."""

    def __str__(self) -> str:
        what = f"{self.verb} {self.container}".rstrip()
        again = f", attempt {self.attempt}" if self.attempt else ""
        pause = f", {self.delay_s:.0f} s" if self.delay_s else ""
        return f"{what}{again}{pause}" + (f": {self.why}" if self.why else "")


class PodSync(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="sight"):
    """One look of an agent at a pod and its processes, and what it decided on that."""

    what: str
    """`plan` or `status`."""
    objects: Objects
    """The pod as the agent saw it; empty if it was gone."""
    inputs: Any
    """As JSON: of a plan what the driver listed, the results of probes and the clock; of a status the rest of it."""
    outcome: Any
    """The plan; of a status whether it differed from the one of the pod."""


class PodRun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The run of a pod that an agent decided about: it starts a process for this run alone."""

    node: str
    node_uid: str
    """The incarnation of the node; empty before it is registered."""
    bind_revision: Revision
    """The revision of the node that the bind proved; 0 for a pod that no scheduler bound."""


class AdmissionAct(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="admission"):
    """A change or a refusal of a write by one policy."""

    policy: str
    """The name of a policy, or the key of the object that sets it, such as a LimitRange or a ResourceQuota."""
    revision: Revision
    """The revision of that object; 0 for a built-in policy."""
    verb: str
    """`changed` or `refused`."""
    detail: str
    """The paths that it changed, or its reason."""

    def __str__(self) -> str:
        at = f" at revision {self.revision}" if self.revision else ""
        refused = "" if self.verb == "changed" else "it: "
        return f"{self.policy}{at} {self.verb} {refused}{self.detail}"


class AdmittedWrite(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The write that an admission decision is about."""

    caller: str
    groups: tuple[str, ...]
    decision: str
    """The decision that led to the request; empty for a person's."""
    revision: Revision
    """The revision that it was committed at; 0 if it was refused."""
    owner_uid: str
    """The uid of the controller that owns the object: a refused object has no version that would name it."""
    repeats: int = 0
    """Equal refusals since the last record of one: those are only counted."""


DecisionStep: TypeAlias = CacheRead | Call | Clock | Budget | Measured | NotStarted | PodAct | PodSync | AdmissionAct


class Decision(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """One reconcile of one key."""

    id: str
    """Every version it wrote carries it."""
    controller: str
    process: str
    """The run of the process. Places in received logs are those of this run."""
    key: Key
    tenant: str
    priority: int
    uid: str = ""
    generation: int = 0
    """The generation of the object as it was first read; 0 if it did not exist."""
    fence: Revision = NO_REVISION
    """The fencing token of its writes; 0 for a controller without a lease."""
    wakes: tuple[tuple[str, str], ...] = ()
    """The events that woke the key, each with the controller that caused it, oldest first."""
    wakes_dropped: int = 0
    attempt: int = 1
    place: int = 0
    """Its place in the order in which keys left the queue."""
    delayed_s: float = 0.0
    """The delay before a retry."""
    waited_s: float = 0.0
    """Time in the queue, ready, until a worker took it."""
    began: datetime
    took_s: float = 0.0
    marks: tuple[CacheMark, ...] = ()
    """The caches when it began."""
    steps: list[DecisionStep] = []
    seed: int | None = None
    """The seed of its random numbers; None if it drew none."""
    result: str = ""
    """`await change`, `requeue`, `terminal`, `failed`, or `cancelled`; empty if it was cut off."""
    delay_s: float | None = None
    condition: str = ""
    reason: str = ""
    error: str = ""
    kept: str = ""
    """Why it was kept in full; empty if it was only counted."""
    scheduling: SchedulingAttempt | None = None
    """The part that only a scheduling attempt has."""
    objects_dropped: int = 0
    """Objects it read that are missing here: with them the record was too large for the log."""
    fenced: bool = True
    """Whether the server checks fences. False on Kubernetes: there a former leader's late write is not refused."""
    part_of: str = ""
    """For a report: the decision whose outcome it writes, whose id its versions carry; its own id without one."""
    pod_run: PodRun | None = None
    """The part that only an agent's decision has."""
    admission: AdmittedWrite | None = None
    """The part that only a decision of admission has."""
    touched: dict[str, tuple[str, ...]] | None = None
    """The fields that it read, by kind; None unless this decision was noted."""

    @property
    def cut_off(self) -> str:
        """Why the record ends before the decision does; empty if the decision has ended."""
        rule, _, why = self.kept.partition(": ")
        return why if rule == CUT_OFF else ""

    @property
    def calls(self) -> list[Call]:
        return [step for step in self.steps if isinstance(step, Call)]

    @property
    def reads(self) -> list[CacheRead]:
        """Its reads from caches. A scheduling attempt reads a snapshot of every cache that it follows, at its mark."""
        found = [step for step in self.steps if isinstance(step, CacheRead)]
        if self.scheduling is not None:
            found += [
                CacheRead(each.cache, SNAPSHOT, (), each.place, each.revision, each.age_s, 0) for each in self.marks
            ]
        return found


def cut_off_record(decision: Decision, why: str) -> Decision:
    """A copy of the record of a decision that has not ended, and will not in this record."""
    return msgspec.structs.replace(decision, kept=f"{CUT_OFF}: {why}")


def call_ended(decision: Decision, call: Call) -> datetime:
    """When the reply of a call came."""
    return decision.began + timedelta(seconds=call.began_s + call.took_s)
