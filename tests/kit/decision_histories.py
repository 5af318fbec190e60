"""Random histories of decisions: workloads, what they own, attempts, reports, refusals, causes and removals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from random import Random
from typing import Any

import msgspec
from tests.kit.records import BEGAN, call, decision, read

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.keys import Key, Origin
from kedge.observe import Decision, DecisionStep
from kedge.observe.records import (
    AdmissionAct,
    AdmittedWrite,
    AttemptChoice,
    CacheMark,
    CountsRecord,
    FieldCount,
    NearestNode,
    NodeAccount,
    OutsideEvent,
    ReceivedPart,
    SchedulingAttempt,
    WakeCause,
)
from kedge.placement.reasons import Reason

_CONTROLLERS = {"Deployment.apps": "deployments", "ReplicaSet.apps": "replicasets", "ZoneQuota.kedge.dev": "quota"}
_SPEC = {
    "containers": [{"name": "main"}],
    "replicas": 1,
    "template": {"spec": {"containers": [{"name": "main", "image": "web"}]}},
    "zones": {},
}
_RULES = ("failure: failed", "retry", "sample", "window: by hand", "")


class RandomHistory:
    """Objects that change, and the decisions about them, with a clock and a revision that move on."""

    def __init__(self, seed: int, workloads: int = 3) -> None:
        self.random = Random(seed)
        self.objects: dict[Key, Object] = {}
        self.known: set[Key] = set()
        """Every object that there ever was."""
        self._revision = 10
        self._seconds = 0.0
        self._number = 0
        self._add(Key("ZoneQuota.kedge.dev", "default", "risk"))
        for n in range(workloads):
            deployment = self._add(Key("Deployment.apps", "default", f"web-{n}"))
            self._add(Key("ReplicaSet.apps", "default", f"web-{n}-a"), deployment)

    def decisions(self, count: int) -> Iterator[Decision]:
        for _ in range(count):
            self._number += 1
            self._seconds += self.random.random()
            draw = self.random.random()
            if draw < 0.1:
                yield self._refusal()
            elif draw < 0.2:
                yield self._report()
            else:
                yield self._attempt() if draw < 0.5 else self._reconcile()

    def pieces(self, decisions: Sequence[Decision], *, fresh: bool) -> Iterator[ReceivedPart | OutsideEvent]:
        """Contents of caches for a log: some objects as they are now, of which some are in no decision."""
        if fresh:
            yield OutsideEvent(BEGAN, "start", "limits of p")
        if decisions and self.random.random() < 0.5:
            some = self.random.sample(sorted(self.objects), self.random.randrange(len(self.objects)))
            base = tuple(self.objects[key] for key in some)
            yield ReceivedPart("p", ("p",), "Pod", self._number, self._revision, base, ())

    def counts(self) -> CountsRecord:
        return CountsRecord("p", BEGAN, BEGAN, (FieldCount("quota", "read", "Pod", "spec", self._number),))

    def _add(self, key: Key, owner: Object | None = None, by: str = "") -> Object:
        self.known.add(key)
        return self._write(key, f"uid-{key.name}-{self._revision}", owner.uid if owner is not None else "", by)

    def _write(self, key: Key, uid: str, owner: str, by: str = "") -> Object:
        self._revision += 1
        kind = KINDS.of_key_kind(key.kind)
        metadata: dict[str, Any] = {"name": key.name, "namespace": key.namespace, "uid": uid}
        metadata["generation"] = self.random.randrange(1, 4)
        if owner:
            reference = {"apiVersion": "apps/v1", "kind": "X", "name": "x", "uid": owner, "controller": True}
            metadata["ownerReferences"] = [reference]
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": _SPEC}
        made = Object(kind, key, msgspec.json.encode(body), revision=self._revision, created=1, origin=Origin("op", by))
        self.objects[key] = made
        return made

    def _change(self, found: Object, by: str = "") -> Object:
        owner = found.metadata.owner_references
        return self._write(found.key, found.uid, owner[0].uid if owner else "", by)

    def _reconcile(self) -> Decision:
        draw = self.random
        about = draw.choice([each for each in self.objects.values() if each.key.kind in _CONTROLLERS])
        name = f"{_CONTROLLERS[about.key.kind]}:p:{self._number}"
        steps: list[DecisionStep] = [read(about, cache=about.key.kind, verb="get")]
        pods = [each for each in self.objects.values() if each.key.kind == "Pod"]
        if pods and draw.random() < 0.5:
            steps.append(read(*draw.sample(pods, draw.randrange(1, len(pods) + 1))))
        action = draw.randrange(4)
        if action == 0 and about.key.kind == "ReplicaSet.apps":
            key = Key("Pod", "default", f"{about.key.name}-{draw.randrange(4)}")
            if key not in self.objects:
                made = self._add(key, about, name)
                steps.append(call("create", key, revision=made.revision, reply=(made,)))
        elif action == 1 and pods:
            gone = draw.choice(pods)
            del self.objects[gone.key]
            self._revision += 1
            steps.append(call("delete", gone.key, outcome="removed", revision=self._revision, reply=(gone,)))
        elif action == 2:
            made = self._change(about, name)
            steps.append(call("patch", about.key, revision=made.revision, reply=(made,)))
        elif action == 3 and draw.random() < 0.5:
            steps.append(call("patch", about.key, outcome="Conflict"))
        return self._decision(name, steps, about, wakes=self._wakes(), error=draw.choice(("", "", "Conflict: again")))

    def _attempt(self) -> Decision:
        draw = self.random
        pods = [each for each in self.objects.values() if each.key.kind == "Pod"]
        if not pods:
            return self._reconcile()
        pod, name = draw.choice(pods), f"default-scheduler:p:{self._number}"
        node = draw.choice((None, "node-1"))
        cause = draw.choice([None, *(WakeCause(each.key, each.revision, "x") for each in self.objects.values())])
        steps: list[DecisionStep] = []
        if node is not None:
            bound = self._change(pod, name)
            steps.append(call("bind", pod.key, revision=bound.revision, reply=(bound,)))
        scheduling = SchedulingAttempt(
            choice=AttemptChoice(node, 1, int(node is not None), 1, "", "", False, ()),  # noqa: FBT003  a record
            account=None
            if node is not None
            else NodeAccount(
                b"\1", ("zone quota",), {"zone quota": 1}, (), NearestNode("node-1", "zone quota", 1),
                (Reason.ZONE_QUOTA,), None,
            ),
            victims=(str(draw.choice(pods).key),) if draw.random() < 0.2 else (),
            cause=cause,
        )  # fmt: skip
        return self._decision(name, steps, pod, wakes=(("a change", "x"),), scheduling=scheduling)

    def _report(self) -> Decision:
        about = self.random.choice(list(self.objects.values()))
        name = f"default-scheduler:p:report-{self._number}"
        made = self._change(about, f"default-scheduler:p:{self._number - 1}")
        steps: list[DecisionStep] = [call("patch", about.key, revision=made.revision, reply=(made,))]
        return self._decision(name, steps, about, part_of=f"default-scheduler:p:{self._number - 1}")

    def _refusal(self) -> Decision:
        owner = self.random.choice([each for each in self.objects.values() if each.key.kind in _CONTROLLERS])
        refused = Key("Pod", "default", f"{owner.key.name}-refused")
        return decision(
            f"admission:p:{self._number}",
            [AdmissionAct("quota", 0, "refused", "too many")],
            controller="admission",
            key=refused,
            began=BEGAN + timedelta(seconds=self._seconds),
            error="Forbidden: too many",
            kept="failure: Forbidden",
            admission=AdmittedWrite("ada", (), "", 0, owner.uid),
        )

    def _wakes(self) -> tuple[tuple[str, str], ...]:
        woken = self.random.choice([None, *self.objects])
        return (("resync", ""),) if woken is None else ((str(woken), "x"),)

    def _decision(self, name: str, steps: list[DecisionStep], about: Object, **fields: Any) -> Decision:
        marks = tuple(
            CacheMark(kind, 1, self._revision - self.random.randrange(12), 0.5)
            for kind in ("Pod", "ReplicaSet.apps", "ZoneQuota.kedge.dev")
        )
        return decision(
            name,
            steps,
            controller=name.partition(":")[0],
            key=about.key,
            uid=about.uid,
            generation=about.metadata.generation,
            began=BEGAN + timedelta(seconds=self._seconds + self.random.random()),
            marks=marks,
            kept=self.random.choice(_RULES),
            **fields,
        )
