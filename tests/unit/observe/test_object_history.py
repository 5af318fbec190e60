"""The history of an object, gathered from decision records."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
from tests.kit.records import BEGAN, WEB, call, decision, pod, read

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.keys import Key, Origin
from kedge.observe.readers.object_history import history_of
from kedge.observe.readers.timeline import timeline

SET = Key("ReplicaSet.apps", "default", "web-1")
POD = Key("Pod", "default", "web-1-0")


def version(key: Key, revision: int, uid: str, owner: str = "", by: str = "") -> Object:
    metadata: dict[str, Any] = {"name": key.name, "namespace": key.namespace, "uid": uid}
    if owner:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": owner}]
    kind = KINDS.of_key_kind(key.kind)
    spec = {"replicas": 1, "template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}}
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}
    if key.kind == "Pod":
        body["spec"] = {"containers": [{"name": "main", "image": "i"}]}
    return Object(kind, key, msgspec.json.encode(body), revision=revision, origin=Origin("op", by))


def test_it_has_the_object_and_everything_it_owns_and_nothing_else() -> None:
    made = call("create", POD, outcome="done", reply=(version(POD, 7, "p", "r", by="replicaset:1"),), revision=7)
    decisions = [
        decision("deployment:1", [read(version(WEB, 3, "d"))], key=WEB),
        decision(
            "replicaset:1",
            [read(version(SET, 5, "r", "d", by="deployment:1")), made],
            key=SET,
            began=BEGAN + timedelta(seconds=1),
        ),
        decision("other:1", [read(pod("web-api-0", 9))], key=Key("Pod", "default", "web-api-0")),
    ]
    history = history_of([WEB], decisions)
    assert [each.id for each in history.decisions] == ["deployment:1", "replicaset:1"]
    texts = [(each.controller, each.text.partition(":")[0]) for each in timeline(history)]
    assert texts == [
        ("", "Deployment web created"),
        ("deployment", "ReplicaSet web-1 created"),
        ("replicaset", "Pod web-1-0 created"),
    ]


def test_a_version_is_dated_by_the_first_decision_that_had_it_and_a_removal_by_its_reply() -> None:
    found = version(POD, 4, "p")
    gone = call("delete", POD, outcome="removed", revision=6)
    decisions = [
        decision("b", [read(found)], key=POD, began=BEGAN + timedelta(seconds=5)),
        decision("a", [read(found)], key=POD, began=BEGAN + timedelta(seconds=2)),
        decision("c", [gone], key=POD, began=BEGAN + timedelta(seconds=9)),
    ]
    lines = timeline(history_of([POD], decisions))
    assert [each.text for each in lines] == ["Pod web-1-0 created", "Pod web-1-0 deleted"]
    assert lines[0].at == BEGAN + timedelta(seconds=2)
    assert lines[1].at >= BEGAN + timedelta(seconds=9)
