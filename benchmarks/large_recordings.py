"""A large recording for the benchmark of the page: pods on nodes, and decisions that wake each other."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.keys import Key, Origin
from kedge.observe.readers.recording import Recording
from kedge.observe.records import (
    CacheMark,
    Call,
    CommitRecord,
    Decision,
    ReceivedChange,
    ReceivedEntry,
    ReceivedPart,
    StoreState,
)

_START = datetime(2026, 1, 1, tzinfo=UTC)
CONTROLLERS = ("default-scheduler", "deployment", "replicaset", "garbage", "node-lifecycle", "quota", "endpoints")


def large_recording(decisions: int, pods: int, nodes: int = 100) -> Recording:
    """Each decision writes one pod; half of them are woken by an earlier write."""
    source = random.Random(7)
    made = Recording()
    first = [_node(number) for number in range(nodes)] + [_pod(number, nodes, 1, "", 0) for number in range(pods)]
    made.states.append(StoreState(1, _START, tuple(first)))
    entries = []
    for number in range(decisions):
        revision, at = number + 2, _START + timedelta(milliseconds=37 * number)
        controller, pod = source.choice(CONTROLLERS), source.randrange(pods)
        name = f"{controller}:bench:{number}"
        version = _pod(pod, nodes, revision, name, number)
        earlier = made.commits[source.randrange(max(0, number - 40), number)] if number and number % 2 else None
        made.commits.append(CommitRecord(revision, at + timedelta(milliseconds=3), (version,)))
        change = ReceivedChange("modified", version.key, version, revision)
        entries.append(ReceivedEntry(number + 1, "watch", revision, (change,)))
        mark = CacheMark("Pod", max(0, number - 3), max(1, revision - 4), 0.1)
        made.decisions.append(
            Decision(
                id=name,
                controller=controller,
                process="bench",
                key=version.key,
                tenant="bench",
                priority=0,
                uid=version.uid,
                wakes=() if earlier is None else ((str(earlier.written[0].key), "bench"),),
                began=at,
                took_s=0.003,
                marks=(mark,),
                steps=[Call("patch status", version.key, b"{}", "", name, 0.0, 0.003, "done", revision)],
                result="await change",
                kept="sample",
            )
        )
    made.received.append(ReceivedPart("bench#1", ("bench",), "Pod", 0, 1, tuple(first[nodes:]), tuple(entries)))
    return made


def _object(key: Key, revision: int, decision: str, body: dict[str, Any]) -> Object:
    kind = KINDS.of_key_kind(key.kind)
    head = {"apiVersion": "v1", "kind": kind.kind}
    value = json.dumps({**head, **body}).encode()
    return Object(kind, key, value, revision=revision, created=1, origin=Origin(decision=decision))


def _node(number: int) -> Object:
    name = f"node-{number:03d}"
    room = {"cpu": "32", "memory": "64Gi", "pods": "110"}
    return _object(
        Key("Node", "", name),
        1,
        "",
        {
            "metadata": {"name": name, "uid": name, "labels": {"topology.kubernetes.io/zone": f"zone-{number % 3}"}},
            "status": {"allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
        },
    )


def _pod(number: int, nodes: int, revision: int, decision: str, turn: int) -> Object:
    name = f"web-{number:04d}"
    waits = turn % 17 == 5
    ready = "True" if turn % 5 else "False"
    return _object(
        Key("Pod", "bench", name),
        revision,
        decision,
        {
            "metadata": {"name": name, "namespace": "bench", "uid": f"uid-{number}"},
            "spec": {"containers": [], **({} if waits else {"nodeName": f"node-{number % nodes:03d}"})},
            "status": {"conditions": [{"type": "Ready", "status": ready}], "note": str(turn)},
        },
    )
