"""Rules for which decisions are kept in full: by outcome, tenant, priority and window, and a sample of the rest.

`recorder` applies them to every decision, so they are a few comparisons. The sample is drawn by a checksum of the
decision's id: every process, and every run of a simulation, keeps the same decisions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Protocol
from zlib import crc32

from kedge.api.wellknown import ADMISSION_GROUP, SCHEDULING_POLICY_KIND
from kedge.env import Env
from kedge.errors import BadRequest, TooManyRequests
from kedge.keys import Key
from kedge.observe.records import Call, Decision


class BegunDecision(Protocol):
    """The parts of a decision that the rules look at from its beginning."""

    @property
    def id(self) -> str: ...
    @property
    def key(self) -> Key: ...
    @property
    def tenant(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def result(self) -> str: ...


class KeepReason(StrEnum):
    """The reason to keep a decision: the part of `Decision.kept` before the colon. The first that applies is used."""

    FAILURE = "failure"
    RETRY = "retry"
    WINDOW = "window"
    POLICY = "policy"
    PRIORITY = "priority"
    TENANT = "tenant"
    SAMPLE = "sample"
    QUIET = "quiet"
    """It wrote something, and the process had kept few of late."""
    INPUT = "input"
    """It wrote a version that a kept decision read."""
    OTHER = "other"
    """A reason that the creator of the record gave itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRules:
    """Configuration: which decisions are kept beside failures, retries, windows and the sample."""

    priority_min: int | None = None
    """Decisions at or above it are kept; None for the limit `decisions_priority_min`."""
    tenants: frozenset[str] = frozenset()
    policy_kinds: frozenset[str] = frozenset(
        {
            SCHEDULING_POLICY_KIND,
            f"ValidatingAdmissionPolicy.{ADMISSION_GROUP}",
            f"ValidatingAdmissionPolicyBinding.{ADMISSION_GROUP}",
            f"MutatingAdmissionPolicy.{ADMISSION_GROUP}",
            f"MutatingAdmissionPolicyBinding.{ADMISSION_GROUP}",
        }
    )
    """Decisions about an object of these kinds, or that write to one, are kept."""
    benign: frozenset[str] = frozenset({"done", "unchanged", "removed", "read", "absent", "NotFound", "AlreadyExists"})
    """Outcomes and errors of a call that are no failure."""


@dataclass(frozen=True, slots=True)
class Window:
    """A period in which more is kept, such as a rollout. It covers everything if it names no tenants and no objects."""

    name: str
    until_s: float
    """On the monotonic clock."""
    tenants: frozenset[str]
    keys: frozenset[Key]
    workloads: frozenset[Key] = frozenset()
    """Objects with everything that they own. A decision has no owner, so they are known by their names: those of the
    namespace that begin with the workload's name and a dash."""

    def covers(self, decision: BegunDecision) -> bool:
        if not self.tenants and not self.keys and not self.workloads:
            return True
        key = decision.key
        if decision.tenant in self.tenants or key in self.keys or key in self.workloads:
            return True
        return any(
            each.namespace == key.namespace and (key.name == each.name or key.name.startswith(f"{each.name}-"))
            for each in self.workloads
        )


class KeepSelector:
    """The rules, and the windows that are open."""

    def __init__(self, env: Env, rules: KeepRules) -> None:
        self._env = env
        self._benign, self._policy_kinds = rules.benign, rules.policy_kinds
        least = rules.priority_min
        self._priority_min = env.limits.decisions_priority_min if least is None else least
        self._tenants = rules.tenants
        self.open_windows: dict[str, Window] = {}
        """By name: those that are open, or were not removed since they ended. Always the same dict."""
        self._every = env.limits.decisions_sample_every
        per_s = env.limits.decisions_quiet_per_s
        self._quiet_s = 1 / per_s if per_s else inf
        """The time that each decision kept by `QUIET` uses up."""
        self._quiet_until_s = 0.0
        """The end of the time that is used up: at most a second ahead."""

    def why_keep(self, decision: Decision, *, begun: str = "") -> str:
        """The rule that keeps it, and after a colon the details; empty if it is only counted. `begun` is the rule that
        kept it when it began: only a failure is a better reason."""
        return self.why_keep_with(decision.calls, decision, begun)

    def why_keep_with(self, calls: Iterable[Call], decision: BegunDecision, begun: str = "") -> str:
        """As `why_keep`, for a caller that has the calls of the decision."""
        if decision.result in _FAILED:
            return f"failure: {decision.result}"
        about_policy = wrote = False
        for call in calls:
            outcome, key = call.outcome, call.key
            if outcome not in self._benign:
                return f"failure: {outcome}"
            if outcome in WROTE:
                wrote = True
                if key is not None and key[0] in self._policy_kinds:
                    about_policy = True
        return begun or self.why_keep_begun(decision, wrote=wrote, about_policy=about_policy)

    def why_keep_begun(self, decision: BegunDecision, *, wrote: bool = True, about_policy: bool = False) -> str:
        """The rule that keeps a decision unless it fails; empty if there is none. `wrote`: it wrote something, or will.
        `about_policy`: it wrote a policy."""
        if decision.attempt > 1:
            return _RETRY
        if self.open_windows and (window := self._covering(decision)):
            return f"window: {window}"
        if about_policy or decision.key[0] in self._policy_kinds:
            return _POLICY
        if decision.priority >= self._priority_min:
            return _PRIORITY
        if self._tenants and decision.tenant in self._tenants:
            return _TENANT
        if crc32(decision.id.encode()) % self._every == 0:
            return _SAMPLE
        if not wrote:
            return ""
        # Use up the time of one decision, if there is some.
        now_s, until_s = self._env.monotonic(), self._quiet_until_s
        until_s = (until_s if until_s > now_s else now_s) + self._quiet_s
        if until_s - now_s > 1.0:
            return ""
        self._quiet_until_s = until_s
        return _QUIET

    # -- windows -----------------------------------------------------------------------------------

    def open_window(
        self,
        name: str,
        *,
        until_s: float,
        tenants: Iterable[str] = (),
        keys: Iterable[Key] = (),
        workloads: Iterable[Key] = (),
    ) -> None:
        limits, now_s = self._env.limits, self._env.monotonic()
        if until_s - now_s > limits.decision_window_s_max:
            raise BadRequest(
                f"window {name!r} would be open for {until_s - now_s:.0f} s, more than the limit of"
                f" {limits.decision_window_s_max:.0f} s: choose an earlier end, and open it again later"
            )
        self._forget_ended()
        if name not in self.open_windows and len(self.open_windows) >= limits.decision_windows_max:
            raise TooManyRequests(
                f"{len(self.open_windows)} windows are open, which is the limit: close one before opening {name!r}"
            )
        self.open_windows[name] = Window(name, until_s, frozenset(tenants), frozenset(keys), frozenset(workloads))

    def close_window(self, name: str) -> bool:
        return self.open_windows.pop(name, None) is not None

    def windows(self) -> tuple[Window, ...]:
        self._forget_ended()
        return tuple(self.open_windows.values())

    def _covering(self, decision: BegunDecision) -> str:
        now_s, ended = self._env.monotonic(), False
        found = ""
        for window in self.open_windows.values():
            if now_s >= window.until_s:
                ended = True
            elif window.covers(decision):
                found = window.name
                break
        if ended:
            self._forget_ended()
        return found

    def _forget_ended(self) -> None:
        now_s = self._env.monotonic()
        for name in [name for name, each in self.open_windows.items() if now_s >= each.until_s]:
            del self.open_windows[name]


WROTE = frozenset({"done", "removed"})
"""Outcomes of a call that wrote a version."""
_FAILED = frozenset({"failed", "terminal", "cancelled"})
# As plain strings: a record is data, and the comparison below happens for every decision.
_RETRY, _POLICY, _PRIORITY, _TENANT, _SAMPLE, _QUIET = (
    each.value
    for each in (
        KeepReason.RETRY,
        KeepReason.POLICY,
        KeepReason.PRIORITY,
        KeepReason.TENANT,
        KeepReason.SAMPLE,
        KeepReason.QUIET,
    )
)
