"""Predicates of scenarios on the cluster: a condition or field of an object, a count, a fault that struck, a refusal.

The same predicates serve `when` (wait for it), `expect` (require it in time) and `always` (require it at every commit).
They read committed state, never a cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kedge.api.kinds import KINDS, Kind
from kedge.api.objects import Object
from kedge.api.views import PodView
from kedge.api.wellknown import POD_KIND
from kedge.errors import KedgeError
from kedge.keys import Key
from kedge.sim.judges.pod_facts import counts, is_healthy
from kedge.sim.scenario.document import Fields, YamlNode, anything, flag, number, plain_mapping, suggest, text


class StruckFaults(Protocol):
    """The scripted faults so far, as text."""

    struck: list[str]
    refused: list[str]


class ClusterView(Protocol):
    """The committed state of a cluster, simulated or live."""

    @property
    def script(self) -> StruckFaults: ...

    def find(self, key: Key) -> Object | None:
        """The committed version of an object."""

    def all(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        """The committed objects of a kind, in key order."""


def ready_pods(view: ClusterView, workload: Object) -> list[PodView]:
    """The ready replicas of a workload."""
    labels = workload.edit()["spec"]["selector"]["matchLabels"]
    pods = [pod.as_view(PodView) for pod in view.all(POD_KIND, namespace=workload.key.namespace)]
    return [pod for pod in pods if labels.items() <= dict(pod.labels).items() and is_healthy(pod)]


class Predicate(Protocol):
    """A statement about the cluster that holds or not."""

    @property
    def summary(self) -> str: ...

    def mismatch(self, cluster: ClusterView) -> str:
        """The state found instead; empty if the predicate holds."""


def kind_named(part: YamlNode) -> Kind:
    word = text(part)
    try:
        return KINDS.resolve(word)
    except KedgeError:
        part.fail(f"there is no kind `{word}`{suggest(word, (kind.kind for kind in KINDS))}")


def key_named(part: YamlNode) -> Key:
    """`Kind/name` or `Kind/namespace/name`."""
    pieces = text(part).split("/")
    if len(pieces) not in (2, 3) or not all(pieces):
        part.fail(f"expected the name of an object, such as Pod/web or Pod/default/web, got {part.value!r}")
    kind = kind_named(YamlNode(pieces[0], part.where))
    if len(pieces) == 3 and not kind.namespaced:
        part.fail(f"a {kind.kind} has no namespace: write {pieces[0]}/{pieces[2]}")
    namespace = (pieces[1] if len(pieces) == 3 else "default") if kind.namespaced else ""
    return Key(kind.key_kind, namespace, pieces[-1])


@dataclass(frozen=True, slots=True)
class ValueComparison:
    """`is`, `at least` and `at most`, each optional."""

    equal: Any = None
    least: int | None = None
    most: int | None = None

    @property
    def summary(self) -> str:
        if self.equal is not None:
            return f"is {self.equal}"
        parts = [f"at least {self.least}"] if self.least is not None else []
        parts += [f"at most {self.most}"] if self.most is not None else []
        return " and ".join(parts)

    def hold(self, value: Any) -> bool:
        if self.equal is not None:
            return bool(value == self.equal)
        amount = value or 0
        return (self.least is None or amount >= self.least) and (self.most is None or amount <= self.most)


def _comparison(fields: Fields, what: str) -> ValueComparison:
    found = ValueComparison(fields.take("is", anything, None), _number(fields, "at least"), _number(fields, "at most"))
    if found == ValueComparison():
        fields.part.fail(f"{what} lacks a comparison: add `is`, `at least` or `at most`")
    return found


def _number(fields: Fields, name: str) -> int | None:
    return fields.take(name, number, 0) if name in fields else None


@dataclass(frozen=True, slots=True)
class ObjectPredicate:
    """An object exists or not, or a condition or field of it has a value."""

    key: Key
    exists: bool = True
    condition: str = ""
    status: str = ""
    reason: str = ""
    path: str = ""
    comparison: ValueComparison = field(default_factory=ValueComparison)

    @property
    def summary(self) -> str:
        if not self.exists:
            return f"{self.key} does not exist"
        if self.condition:
            return f"{self.key} has {self.condition}={self.status}{f' ({self.reason})' if self.reason else ''}"
        if self.path:
            return f"{self.path} of {self.key} {self.comparison.summary}"
        return f"{self.key} exists"

    def mismatch(self, cluster: ClusterView) -> str:
        found = cluster.find(self.key)
        if (found is not None) != self.exists:
            return "it exists" if found is not None else "it does not exist"
        if found is None:
            return ""
        if self.condition:
            return self._condition_mismatch(found)
        if self.path:
            value = _at(found.edit(), self.path)
            return "" if self.comparison.hold(value) else f"it is {value}"
        return ""

    def _condition_mismatch(self, found: Object) -> str:
        conditions = (found.edit().get("status") or {}).get("conditions") or []
        condition = next((each for each in conditions if each.get("type") == self.condition), None)
        if condition is None:
            return f"it has no condition {self.condition}"
        status, reason = condition.get("status"), condition.get("reason", "")
        if status == self.status and self.reason in ("", reason):
            return ""
        return f"it has {self.condition}={status} ({reason})"


def _at(body: Any, path: str) -> Any:
    for name in path.split("."):
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


@dataclass(frozen=True, slots=True)
class CountPredicate:
    """The number of objects of a kind, selected by labels and, for pods, by their state."""

    kind: Kind
    labels: Mapping[str, str]
    traits: Mapping[str, Any]
    """For pods: `live`, `bound`, `ready` and `node`."""
    comparison: ValueComparison

    @property
    def summary(self) -> str:
        chosen = [f"{name}={value}" for name, value in self.labels.items()]
        chosen += [
            f"on {value}" if name == "node" else name if value else f"not {name}" for name, value in self.traits.items()
        ]
        about = f" ({', '.join(chosen)})" if chosen else ""
        return f"number of {self.kind.plural}{about} {self.comparison.summary}"

    def mismatch(self, cluster: ClusterView) -> str:
        found = [each for each in cluster.all(self.kind.key_kind) if self._fits(each)]
        return (
            ""
            if self.comparison.hold(len(found))
            else f"there are {len(found)}: {', '.join(e.key.name for e in found)}"
        )

    def _fits(self, found: Object) -> bool:
        if any(found.metadata.labels.get(name) != value for name, value in self.labels.items()):
            return False
        if not self.traits:
            return True
        pod = found.as_view(PodView)
        traits: Mapping[str, Any] = {
            "live": counts(pod),
            "bound": bool(pod.spec.node_name) and not pod.finished,
            "ready": is_healthy(pod),
            "node": pod.spec.node_name,
        }
        return all(traits[name] == value for name, value in self.traits.items())


@dataclass(frozen=True, slots=True)
class FaultPredicate:
    """A scripted fault has struck."""

    containing: str

    @property
    def summary(self) -> str:
        return f"struck: {self.containing}"

    def mismatch(self, cluster: ClusterView) -> str:
        return "" if any(self.containing in text for text in cluster.script.struck) else "it has not struck"


@dataclass(frozen=True, slots=True)
class RefusalPredicate:
    """The API server has refused a write."""

    containing: str

    @property
    def summary(self) -> str:
        return f"refused: {self.containing}"

    def mismatch(self, cluster: ClusterView) -> str:
        return "" if any(self.containing in text for text in cluster.script.refused) else "it was not refused"


@dataclass(frozen=True, slots=True)
class NeverPredicate:
    """Another predicate does not hold."""

    bad: Predicate

    @property
    def summary(self) -> str:
        return f"never: {self.bad.summary}"

    def mismatch(self, cluster: ClusterView) -> str:
        return "" if self.bad.mismatch(cluster) else "it holds"


def read_predicate(fields: Fields) -> Predicate:
    """Read the fields of a predicate from a mapping that may have others."""
    subjects = [name for name in ("object", "count", "struck", "refused") if name in fields]
    if len(subjects) != 1:
        fields.part.fail("a predicate has exactly one of `object`, `count`, `struck` and `refused`: keep one")
    if subjects == ["struck"]:
        return FaultPredicate(fields.need("struck", text))
    if subjects == ["refused"]:
        return RefusalPredicate(fields.need("refused", text))
    return _object_predicate(fields) if subjects == ["object"] else _count_predicate(fields)


def _object_predicate(fields: Fields) -> ObjectPredicate:
    key = fields.need("object", key_named)
    if "condition" in fields:
        condition, status = fields.need("condition", text), fields.take("status", text, "True")
        return ObjectPredicate(key, condition=condition, status=status, reason=fields.take("reason", text, ""))
    if "field" in fields:
        path = fields.need("field", text)
        return ObjectPredicate(key, path=path, comparison=_comparison(fields, f"`{path}`"))
    return ObjectPredicate(key, exists=fields.take("exists", flag, True))  # noqa: FBT003


def _count_predicate(fields: Fields) -> CountPredicate:
    kind = fields.need("count", kind_named)
    labels = {name: str(value) for name, value in plain_mapping(fields, "labels").items()}
    traits: dict[str, Any] = {name: fields.need(name, flag) for name in ("live", "bound", "ready") if name in fields}
    if "node" in fields:
        traits["node"] = fields.need("node", text)
    if traits and kind.kind != POD_KIND:
        fields.part.fail(f"`{next(iter(traits))}` applies to pods only: remove it")
    return CountPredicate(kind, labels, traits, _comparison(fields, "a count"))


def parse_predicate(part: YamlNode) -> Predicate:
    fields = Fields(part, "a predicate")
    predicate = read_predicate(fields)
    fields.done()
    return predicate
