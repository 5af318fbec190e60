"""Decisions, objects and clocks for tests of the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.env import Env, TaskSpawner, uid_from
from kedge.keys import NO_REVISION, Key, Origin, Revision
from kedge.limits import Limits
from kedge.observe import CacheMark, CacheRead, Call, Clock, Decision, DecisionStep
from kedge.observe.records import encode_intent

BEGAN = datetime(2030, 1, 1, tzinfo=UTC)
BY_SOMEONE = Origin("op", "someone")
WEB = Key("Deployment.apps", "default", "web")


class Time:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return BEGAN + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds


def make_env(time: Time | None = None, **limits: float) -> Env:
    """An environment in which the rule `quiet` is off, unless the limits turn it on."""
    source, ticking = Random(1), time or Time()
    return Env(
        now=ticking.now,
        monotonic=ticking.monotonic,
        random=source,
        new_uid=lambda: uid_from(source),
        spawn=TaskSpawner(),
        limits=replace(Limits(), **{"decisions_quiet_per_s": 0.0, **limits}),  # type: ignore[arg-type]
    )


def pod(name: str, revision: Revision, *, text: str = "", origin: Origin = BY_SOMEONE) -> Object:
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": {"is": text}}
    return Object(
        KINDS.of_key_kind("Pod"),
        Key("Pod", "default", name),
        encode_object(body),
        revision=revision,
        created=1,
        origin=origin,
    )


def made(kind: str, name: str, revision: int, decided: str = "", **parts: Any) -> Object:
    found = KINDS.of_key_kind(kind)
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", **parts.pop("metadata", {})}
    body = {"apiVersion": found.api_version, "kind": found.kind, "metadata": metadata, **parts}
    key = Key(kind, "default", name)
    return Object(found, key, encode_object(body), revision=revision, created=1, origin=Origin("op", decided))


def read(*objects: Object, cache: str = "Pod", verb: str = "list") -> CacheRead:
    return CacheRead(cache, verb, ("default", ""), 3, 9, 0.5, len(objects), objects)


def call(
    verb: str = "patch",
    key: Key | None = WEB,
    intent: Any = None,
    *,
    outcome: str = "done",
    revision: Revision = NO_REVISION,
    reply: tuple[Object, ...] = (),
) -> Call:
    error = {"reason": outcome} if outcome[0].isupper() else None
    return Call(verb, key, encode_intent(intent), "revision 5", "op-1", 0.1, 0.2, outcome, revision, error, reply)


def decision(name: str = "d-1", steps: Sequence[DecisionStep] = (), **fields: Any) -> Decision:
    defaults: dict[str, Any] = {
        "controller": "deployments",
        "process": "p-1",
        "key": WEB,
        "tenant": "default",
        "priority": 0,
        "began": BEGAN,
        "result": "await change",
    }
    return Decision(id=name, steps=list(steps), **{**defaults, **fields})


def full_decision(name: str, *objects: Object) -> Decision:
    """A decision with a value in every field."""
    return decision(
        name,
        [
            read(*objects),
            Clock(BEGAN),
            call(intent={"status": {"replicas": 3}}, revision=7, reply=objects[:1]),
            call(key=None, verb="create", outcome="Conflict"),
        ],
        uid="u-1",
        generation=4,
        fence=11,
        wakes=(("Pod/default/web-0", "replicasets"), ("resync", "")),
        wakes_dropped=2,
        attempt=3,
        place=99,
        delayed_s=0.5,
        waited_s=0.25,
        took_s=0.125,
        marks=(CacheMark("Pod", 3, 9, 0.5),),
        seed=5,
        result="requeue",
        delay_s=1.5,
        condition="Available",
        reason="because",
        error="none",
        kept="sample",
    )
