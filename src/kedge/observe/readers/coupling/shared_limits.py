"""Coupling through shared limits: quotas, disruption budgets, the breaker of one process, and the queue of the reader.

A limit couples only if it held the reader back: a refusal, a request held off, or a wait. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from kedge.api.wellknown import POD_KIND, RESOURCE_QUOTA_KIND, ZONE_QUOTA_KIND
from kedge.keys import Key
from kedge.observe.readers.coupling.traffic import Traffic
from kedge.observe.recording.rules import WROTE
from kedge.observe.records import Call, Decision

QUEUE_WAIT_S_MIN: Final = 1.0
"""A shorter wait in a queue is its normal operation."""
BREAKER_BEFORE_S: Final = 60.0
"""Failures of others that may have opened a breaker, before it held a request off."""
_EXCEEDED: Final = re.compile(r"exceeded quota: ([^,\s]+)")
_HELD_OFF: Final = "HeldOff"
_REFUSED_BY_BUDGET: Final = "TooManyRequests"
_FAILURES: Final = frozenset({"Unavailable", "OutcomeUnknown", "FutureRevision"})


class SharedLimit(NamedTuple):
    """A limit that held the reader back, and a controller that uses it too."""

    limit: str
    """`quota`, `budget`, `breaker` or `queue`."""
    name: str
    writer: str
    """The controller that uses it beside the reader."""
    reader: str
    times: int
    """How often the reader was held back."""
    uses: int
    """Requests or runs of the writer that used it."""
    text: str


def shared_limits(traffic: Traffic, reader: str) -> list[SharedLimit]:
    own = [each for each in traffic.decisions if each.controller == reader]
    found = [*_quotas(traffic, reader, own), *_zone_quotas(traffic, reader, own), *_budgets(traffic, reader, own)]
    found += [*_breakers(traffic, reader, own), *_queues(reader, own)]
    return sorted(found)


def _calls(decisions: Iterable[Decision]) -> Iterator[tuple[Decision, Call]]:
    for decision in decisions:
        for call in decision.calls:
            yield decision, call


def _quotas(traffic: Traffic, reader: str, own: Sequence[Decision]) -> Iterator[SharedLimit]:
    """Quotas that refused a request of the reader, and the controllers whose objects use them."""
    refused: Counter[Key] = Counter()
    for decision, call in _calls(own):
        match = _EXCEEDED.search(str((call.error or {}).get("message", "")))
        if match:
            namespace = call.key.namespace if call.key is not None else decision.key.namespace
            refused[Key(RESOURCE_QUOTA_KIND, namespace, match[1])] += 1
    for quota, times in refused.items():
        for writer, uses in _users_of(traffic, quota, reader).items():
            text = f"{quota} refused {reader} {times} times; {writer} changed its use {uses} times"
            yield SharedLimit("quota", str(quota), writer, reader, times, uses, text)


def _users_of(traffic: Traffic, quota: Key, reader: str) -> Counter[str]:
    """The writers of a quota's use; where the records have no commits, those that create objects beside it."""
    charged = Counter(each.writer for each in traffic.by_object.get(quota, ()) if each.writer != reader)
    if charged or any(key.kind == RESOURCE_QUOTA_KIND for key in traffic.by_object):
        return charged
    made: Counter[str] = Counter()
    for decision, call in _calls(traffic.decisions):
        if decision.controller != reader and call.verb in ("create", "ensure") and call.outcome in WROTE:
            made[decision.controller] += call.reply[0].key.namespace == quota.namespace if call.reply else 0
    return +made


def _zone_quotas(traffic: Traffic, reader: str, own: Sequence[Decision]) -> Iterator[SharedLimit]:
    """Zone quotas that kept a pod of the reader, a scheduler, out of a zone."""
    blocked: Counter[tuple[str, str]] = Counter()
    for decision in own:
        choice = decision.scheduling.choice if decision.scheduling is not None else None
        for zone in choice.blocked_zones if choice is not None and choice.node is None else ():
            blocked[decision.key.namespace, zone] += 1
    for (namespace, zone), times in blocked.items():
        users: Counter[str] = Counter()
        for key, writes in traffic.by_object.items():
            if key.kind == ZONE_QUOTA_KIND and key.namespace == namespace:
                users.update(each.writer for each in writes if each.writer != reader)
        for writer, uses in users.items():
            name = f"{ZONE_QUOTA_KIND}/{namespace} in {zone}"
            text = f"{name} blocked {reader} {times} times; {writer} changed it {uses} times"
            yield SharedLimit("quota", name, writer, reader, times, uses, text)


def _budgets(traffic: Traffic, reader: str, own: Sequence[Decision]) -> Iterator[SharedLimit]:
    """Disruption budgets that refused an eviction, and the controllers that evict and delete pods beside it."""
    refused: Counter[str] = Counter()
    for _, call in _calls(own):
        if call.verb == "evict" and call.outcome == _REFUSED_BY_BUDGET and call.key is not None:
            refused[call.key.namespace] += 1
    for namespace, times in refused.items():
        users: Counter[str] = Counter()
        for decision, call in _calls(traffic.decisions):
            ends = call.verb in ("evict", "delete") and call.outcome in WROTE
            if ends and decision.controller != reader and call.key is not None and call.key.kind == POD_KIND:
                users[decision.controller] += call.key.namespace == namespace
        for writer, uses in (+users).items():
            text = (
                f"a disruption budget in {namespace} refused {reader} {times} times; {writer} ended {uses} pods there"
            )
            yield SharedLimit("budget", namespace, writer, reader, times, uses, text)


def _breakers(traffic: Traffic, reader: str, own: Sequence[Decision]) -> Iterator[SharedLimit]:
    """Requests that were held off by the breaker of a process, and failures of others in it just before."""
    for group in traffic.groups:
        held = [each for each, call in _calls(own) if call.outcome == _HELD_OFF and each.process in group]
        held += [
            each for each in own if each.process in group and each.error.startswith(_HELD_OFF) and each not in held
        ]
        if not held:
            continue
        begin = min(each.began for each in held) - timedelta(seconds=BREAKER_BEFORE_S)
        end = max(each.began for each in held)
        failed: Counter[str] = Counter()
        for decision, call in _calls(traffic.decisions):
            if decision.controller != reader and decision.process in group and call.outcome in _FAILURES:
                failed[decision.controller] += begin <= decision.began <= end
        for writer, uses in (+failed).items():
            text = (
                f"one breaker serves both: it held {reader} off {len(held)} times, after {uses} requests of {writer}"
                " had failed"
            )
            yield SharedLimit("breaker", "the client of their process", writer, reader, len(held), uses, text)


def _queues(reader: str, own: Sequence[Decision]) -> Iterator[SharedLimit]:
    """Long waits in the reader's queue, while most of the runs before were woken by one other controller."""
    times: Counter[str] = Counter()
    uses: Counter[str] = Counter()
    longest: dict[str, float] = {}
    for decision in own:
        if decision.waited_s < QUEUE_WAIT_S_MIN:
            continue
        ready = decision.began - timedelta(seconds=decision.waited_s)
        before = [each for each in own if ready <= each.began < decision.began and each.process == decision.process]
        mine = {writer for _, writer in decision.wakes}
        by_writer = Counter(writer for each in before for writer in {writer for _, writer in each.wakes})
        for writer, runs in by_writer.items():
            if writer and writer != reader and writer not in mine and 2 * runs > len(before):
                times[writer] += 1
                uses[writer] = max(uses[writer], runs)
                longest[writer] = max(longest.get(writer, 0.0), decision.waited_s)
    for writer, count in times.items():
        text = (
            f"{count} keys waited up to {longest[writer]:.1f} s in the queue of {reader}, behind up to"
            f" {uses[writer]} runs that {writer} had woken"
        )
        yield SharedLimit("queue", f"the queue of {reader}", writer, reader, count, uses[writer], text)
