"""The part of a recording that a user may see, by the user's own rights on the objects. Pure.

A decision about an object that the user may read is shown; the parts of it that hold other objects are left out unless
the user may list their kind in every namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import msgspec

from kedge.api.objects import Object
from kedge.api.wellknown import POD_KIND
from kedge.keys import Key
from kedge.observe.readers.recording import Recording
from kedge.observe.records import CacheRead, Call, CommitRecord, Decision, DecisionStep, StoreState

MayList = Callable[[str, str], bool]
"""Whether the user may list a kind in a namespace; in all of them if it is empty."""


def visible_part(recording: Recording, may_list: MayList) -> Recording:
    """The objects, decisions and caches that the user may see. A decision's parts about others are left out."""

    def shows(key: Key) -> bool:
        return may_list(key.kind, key.namespace)

    return replace(
        recording,
        states=[each._replace(objects=tuple(_objects(each.objects, shows))) for each in recording.states],
        commits=list(_commits(recording.commits, shows)),
        decisions=[shown for each in recording.decisions if (shown := _decision(each, may_list)) is not None],
        received=[each for each in recording.received if may_list(_kind(each.cache), "")],
        counts=recording.counts if may_list(POD_KIND, "") else [],
    )


def _objects(objects: Iterable[Object], shows: Callable[[Key], bool]) -> Iterator[Object]:
    return (each for each in objects if shows(each.key))


def _commits(commits: Iterable[CommitRecord], shows: Callable[[Key], bool]) -> Iterator[CommitRecord]:
    for commit in commits:
        written = tuple(_objects(commit.written, shows))
        deleted = tuple(each for each in commit.deleted if shows(each))
        if written or deleted:
            yield commit._replace(written=written, deleted=deleted)


def _decision(decision: Decision, may_list: MayList) -> Decision | None:
    def shows(key: Key) -> bool:
        return may_list(key.kind, key.namespace)

    if not shows(decision.key):
        return None
    kinds = {_kind(each.cache) for each in decision.reads} | {_kind(each.cache) for each in decision.marks}
    calls = {each.key for each in decision.calls if each.key is not None}
    if all(may_list(kind, "") for kind in kinds) and all(map(shows, calls)):
        return decision
    steps: list[DecisionStep] = []
    for step in decision.steps:
        if isinstance(step, CacheRead):
            steps.append(msgspec.structs.replace(step, objects=tuple(_objects(step.objects, shows)), about=(), found=0))
        elif isinstance(step, Call) and step.key is not None and shows(step.key):
            steps.append(step)
    return msgspec.structs.replace(decision, steps=steps, scheduling=None, marks=(), wakes=())


def _kind(cache: str) -> str:
    return cache.partition("[")[0]


def folded_state(state: StoreState, commits: Iterable[CommitRecord]) -> StoreState:
    """The state after some commits: the start of a history that drops them."""
    objects = {each.key: each for each in state.objects}
    revision, at = state.revision, state.at
    for commit in commits:
        objects.update((each.key, each) for each in commit.written)
        for key in commit.deleted:
            objects.pop(key, None)
        revision, at = commit.revision, commit.at
    return StoreState(revision, at, tuple(objects.values()))
