"""Recheck: runs a recorded scheduling attempt again, on cluster state rebuilt from the received logs.

An attempt is a pure function of the marks in the received logs, the local state beside them (assumptions, nominations,
unreleased claims), the pod, the policies and the draw. If the result differs, the record lacks an input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from kedge.api.kinds import KINDS, Kind, Registry
from kedge.api.objects import Object
from kedge.api.views import PodView
from kedge.api.wellknown import POD_KIND
from kedge.env import Env
from kedge.errors import Compacted, NotFound, ReplayDiverged
from kedge.keys import Key, Revision
from kedge.metrics import Metrics
from kedge.observe.records import AttemptChoice, LocalState, NodeAccount
from kedge.observe.records import Decision as Record
from kedge.placement.ledger import HostPort
from kedge.runtime.cache import Cache, CacheChange, ChangeType, Index, Read, ReceivedLog
from kedge.scheduler.cycle.decide import decide
from kedge.scheduler.queue.scheduling_queue import SchedulingQueue
from kedge.scheduler.report.attempt_records import account_of, choice_of
from kedge.scheduler.report.explanation import explain
from kedge.scheduler.state.cache_follower import FOLLOWED, CacheFollower
from kedge.scheduler.state.cluster_state import ClusterState
from kedge.scheduler.state.nominations import nominated_claim
from kedge.scheduler.state.shapes import bare_request

Held = Mapping[str, Mapping[Key, Object]]
"""By kind: the objects that each cache held."""


_NO_STATE: Final = LocalState()
_ADDED: Final = frozenset({"reasons", "empty"})
"""Fields that older records do not have."""


def recheck_attempts(records: Iterable[Record], caches: Iterable[Cache], env: Env) -> int:
    """Run every attempt of one process again. Returns the number that had decided something.

    Raises:
        ReplayDiverged: the result of an attempt differs.
        Compacted: the log no longer has what a cache had received.
    """
    logs = {cache.name: cache.received for cache in caches}
    return sum(recheck_attempt(record, logs, env) for record in records)


def recheck_attempt(record: Record, logs: Mapping[str, ReceivedLog], env: Env, *, kinds: Registry = KINDS) -> bool:
    """Decide again, and compare node, score, feasible nodes and first failing filters. False if nothing was decided.

    Only the limits of `env` are used.

    Raises:
        ReplayDiverged: the result differs.
        Compacted: the log no longer has what its caches had received. Keep the record, or its log, for longer.
    """
    attempt = record.scheduling
    if attempt is None or attempt.draw is None or attempt.choice is None:
        return False  # a reservation held room for the pod: there was nothing to decide
    choice, account = decide_again(record, held_at(record, logs), env, kinds=kinds)
    _compare(record, attempt.choice, choice)
    if attempt.account is not None:
        _compare(record, attempt.account, account)
    return True


def held_at(record: Record, logs: Mapping[str, ReceivedLog]) -> Held:
    """The objects that the caches of an attempt held, by kind.

    Raises:
        Compacted: the log no longer has what its caches had received.
        ReplayDiverged: the pod is not among them in the version that was decided on.
    """
    held = {mark.cache: _state_at(logs, mark.cache, mark.place) for mark in record.marks}
    pod = held[POD_KIND].get(record.key)
    attempt = record.scheduling
    if attempt is None or pod is None or pod.uid != record.uid or pod.revision != attempt.pod_revision:
        wanted = "no attempt" if attempt is None else f"version {attempt.pod_revision}"
        raise ReplayDiverged(f"attempt {record.id}: its cache had {pod}, not {wanted}")
    return held


def decide_again(record: Record, held: Held, env: Env, *, kinds: Registry = KINDS) -> tuple[AttemptChoice, NodeAccount]:
    """Decide for the pod of an attempt on these objects, which may differ from those that it was decided on.

    Raises:
        NotFound: the pod is not among them.
        Compacted: the record lacks its local state.
    """
    attempt = record.scheduling
    if attempt is not None and attempt.local_lost:
        raise Compacted(
            f"attempt {record.id}: the record lacks the binds that were under way, so it cannot be run again;"
            " raise the limit scheduler_assumption_changes_max",
            oldest=0,
        )
    pod = held.get(POD_KIND, {}).get(record.key)
    if attempt is None or pod is None:
        raise NotFound(f"{record.key} is not among the objects to decide on")
    known = {each.uid for each in held[POD_KIND].values()}
    local = LocalState(
        {uid: each for uid, each in attempt.local.assumed.items() if uid in known},
        {uid: each for uid, each in attempt.local.nominated.items() if uid in known},
        attempt.local.unreleased,
    )
    cluster_state = cluster_state_of(held, env, scheduler=record.controller, local=local, kinds=kinds)
    view = pod.as_view(PodView)
    decision = decide(
        cluster_state.snapshot,
        cluster_state.policies.request_of(view),
        attempt.draw or 0,
        settings=cluster_state.policies.settings_of(view),
        room=cluster_state.quotas.room_of(pod.key.namespace),
        excluded=attempt.excluded,
    )
    return choice_of(decision), account_of(explain(cluster_state.snapshot, decision))


def _compare(record: Record, was: msgspec.Struct, now: msgspec.Struct) -> None:
    for name, value in asdict(was).items():
        if name in _ADDED and not value:
            continue  # a record of before
        if getattr(now, name) != value:
            raise ReplayDiverged(
                f"attempt {record.id} for {record.key}: {name} is {getattr(now, name)!r} now, and was {value!r}"
            )


def _state_at(logs: Mapping[str, ReceivedLog], cache: str, place: int) -> Mapping[Key, Object]:
    log = logs.get(cache)
    if log is None:
        raise Compacted(f"the received log of {cache} is missing: pass the logs of every cache", oldest=0)
    return log.state_at(place)[0]


def cluster_state_of(
    held: Held, env: Env, *, scheduler: str, local: LocalState = _NO_STATE, kinds: Registry = KINDS
) -> ClusterState:
    """A `ClusterState` built from the objects that its caches held and from its local state."""
    quiet = replace(env, metrics=Metrics())
    caches: Any = _FrozenCaches(held)
    queue = SchedulingQueue(quiet)
    cluster_state = ClusterState(quiet, queue, scheduler=scheduler)
    CacheFollower(caches, kinds, cluster_state, queue, name=scheduler).start()
    pods = {pod.uid: pod for pod in held.get(POD_KIND, {}).values()}
    for uid, claim in local.unreleased.items():
        claimed = tuple(HostPort(*port) for port in claim.ports)
        cluster_state.snapshot.add_claim(uid, claim.node, bare_request(claim.namespace, claim.requests, claimed))
    for uid, bind in local.assumed.items():
        request = cluster_state.policies.request_of(pods[uid].as_view(PodView))._replace(workload=bind.workload)
        assumption = cluster_state.assume(pods[uid], bind.node, request)
        assumption.revision, assumption.zone = bind.revision, bind.zone  # the node may have moved to another zone since
    for uid, node in local.nominated.items():
        request = cluster_state.policies.request_of(pods[uid].as_view(PodView))
        cluster_state.snapshot.add_claim(nominated_claim(uid), node, request)
    return cluster_state


class _FrozenCaches:
    """Caches that do not change."""

    def __init__(self, held: Held) -> None:
        self._caches = {name: _FrozenCache(held.get(name, {})) for name in FOLLOWED}

    def cache(self, kind: Kind) -> _FrozenCache:
        return self._caches[kind.key_kind]


class _FrozenCache:
    """The part of a `Cache` that `ClusterState` reads."""

    revision: Revision = 2**62

    def __init__(self, objects: Mapping[Key, Object]) -> None:
        self._objects = objects

    def get(self, key: Key) -> Read[Object | None]:
        return Read(self._objects.get(key), self.revision, 0.0, 0)

    def list(self) -> Read[tuple[Object, ...]]:
        return Read(tuple(self._objects[key] for key in sorted(self._objects)), self.revision, 0.0, 0)

    def by_index(self, index: Index, value: str) -> Read[tuple[Object, ...]]:
        found = tuple(each for each in self.list().value if value in index.values_of(each))
        return Read(found, self.revision, 0.0, 0)

    def add_index(self, index: Index) -> None:
        """Every index is read from the objects themselves."""

    def subscribe(self, handler: Callable[[CacheChange], None], *, name: str) -> None:  # noqa: ARG002
        for each in self.list().value:
            handler(CacheChange(ChangeType.ADDED, each.key, None, each, each.revision))
