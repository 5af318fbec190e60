"""Changed inputs of a decision, as `--what-if` writes them: parsed, and applied to the objects that were read. Pure.

The scheduler decides again on the result (`scheduler.report.what_if`); nothing here knows how it decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.quantity import ZERO, parse_quantity
from kedge.api.views import PodView, SchedulingPolicyView
from kedge.api.wellknown import (
    HOSTNAME_LABEL,
    NODE_ALLOCATION_KIND,
    NODE_KIND,
    POD_KIND,
    SCHEDULING_POLICY_KIND,
    ZONE_LABEL,
    ZONE_QUOTA_KIND,
)
from kedge.errors import BadRequest, NotFound
from kedge.keys import Key

HeldObjects: TypeAlias = dict[str, dict[Key, Object]]
"""By kind: the objects that a decision is made on."""
Versions: TypeAlias = Callable[[Key], Iterable[Object]]
"""Every known version of an object."""
FORMS: Final = (
    "quota/NAME.ZONE.RESOURCE=+2, node/NAME=cpu:8,memory:32Gi,zone:ZONE, node/NAME=like:OTHER, node/NAME=+cpu:2,"
    " taint/NODE/KEY=-, label/NODE/KEY=VALUE, cordon/NODE=-, pod/NAME=-, policy/NAME=VERSION"
)
PODS_PER_NODE: Final = "110"
"""The pods that an added node takes unless the change has another number, as Kubernetes' default."""


@dataclass(frozen=True, slots=True)
class AmountChange:
    """`+2`, `-2` or `2`."""

    text: str
    sign: int
    """1 or -1 for a difference, 0 for a new amount."""

    def applied(self, before: str | None) -> str:
        """The amount after the change."""
        amount = parse_quantity(self.text)
        if not self.sign:
            return str(amount)
        had = parse_quantity(before or "0")
        return str(max(ZERO, had + amount if self.sign > 0 else had - amount))


@dataclass(frozen=True, slots=True)
class QuotaChange:
    name: str
    zone: str
    resource: str
    amount: AmountChange


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node that is added, or one with other resources."""

    name: str
    resources: Mapping[str, AmountChange]
    zone: str = ""
    like: str = ""


@dataclass(frozen=True, slots=True)
class TaintRemoved:
    node: str
    taint: str


@dataclass(frozen=True, slots=True)
class LabelSet:
    node: str
    label: str
    value: str


@dataclass(frozen=True, slots=True)
class Uncordoned:
    node: str


@dataclass(frozen=True, slots=True)
class PodRemoved:
    name: str


@dataclass(frozen=True, slots=True)
class PolicyVersionUsed:
    name: str
    version: str


InputChange: TypeAlias = (
    QuotaChange | NodeChange | TaintRemoved | LabelSet | Uncordoned | PodRemoved | PolicyVersionUsed
)


# -- parsing ---------------------------------------------------------------------------------------


def parse_change(text: str) -> InputChange:
    """Read one change.

    Raises:
        BadRequest: it is none of the forms.
    """
    target, equals, value = text.strip().partition("=")
    word, slash, rest = target.partition("/")
    if not equals or not slash or not rest or not value:
        raise _no_form(text)
    match word:
        case "quota" if rest.count(".") >= 2:
            name, zone, resource = rest.split(".", 2)
            return QuotaChange(name, zone, resource, _amount(value))
        case "node":
            return _node_change(rest, value, text)
        case "taint" if value == "-" and "/" in rest:
            node, _, taint = rest.partition("/")
            return TaintRemoved(node, taint)
        case "label" if "/" in rest:
            node, _, label = rest.partition("/")
            return LabelSet(node, label, value)
        case "cordon" if value == "-":
            return Uncordoned(rest)
        case "pod" if value == "-":
            return PodRemoved(rest)
        case "policy":
            return PolicyVersionUsed(rest, value)
    raise _no_form(text)


def _no_form(text: str) -> BadRequest:
    return BadRequest(f"{text!r} is no change of an input: write it as one of {FORMS}")


def _amount(text: str) -> AmountChange:
    sign = {"+": 1, "-": -1}.get(text[0], 0)
    bare = text[1:] if sign else text
    try:
        parse_quantity(bare)
    except ValueError as error:
        raise BadRequest(f"{text!r} is no amount: write it like +2, -500m or 8Gi") from error
    return AmountChange(bare, sign)


def _node_change(name: str, value: str, text: str) -> NodeChange:
    sign = value[0] if value[0] in "+-" else ""
    resources: dict[str, AmountChange] = {}
    others = {"zone": "", "like": ""}
    for part in value.removeprefix(sign).split(","):
        word, colon, amount = part.rpartition(":")
        if not colon or not word or not amount:
            raise _no_form(text)
        if word in others:
            others[word] = amount
        else:
            resources[word] = _amount(sign + amount)
    return NodeChange(name, resources, others["zone"], others["like"])


# -- applying --------------------------------------------------------------------------------------


def apply_changes(
    changes: Iterable[InputChange], held: Mapping[str, Mapping[Key, Object]], namespace: str, versions: Versions
) -> HeldObjects:
    """The objects of a decision about a pod in `namespace`, with the changes. `held` stays as it is.

    Raises:
        NotFound: a change names an object that the decision did not have.
    """
    made: HeldObjects = {kind: dict(objects) for kind, objects in held.items()}
    for change in changes:
        match change:
            case QuotaChange():
                _change_quota(change, made, namespace)
            case NodeChange():
                _change_node(change, made)
            case PodRemoved():
                _remove_pod(change, made, namespace)
            case PolicyVersionUsed():
                _use_policy(change, made, versions)
            case TaintRemoved() | LabelSet() | Uncordoned():
                _edit_node(change, made)
    return made


def _change_quota(change: QuotaChange, made: HeldObjects, namespace: str) -> None:
    key = Key(ZONE_QUOTA_KIND, namespace, change.name)
    found = _found(made, key)
    body = found.edit()
    hard = body.setdefault("spec", {}).setdefault("zones", {}).setdefault(change.zone, {}).setdefault("hard", {})
    hard[change.resource] = change.amount.applied(hard.get(change.resource))
    made[ZONE_QUOTA_KIND][key] = _edited(found, body)


def _change_node(change: NodeChange, made: HeldObjects) -> None:
    nodes = made.setdefault(NODE_KIND, {})
    key = Key(NODE_KIND, "", change.name)
    if change.like:
        body = _found(made, Key(NODE_KIND, "", change.like)).edit()
        body["metadata"] |= {"name": change.name, "uid": f"what-if-{change.name}"}
        body["metadata"].setdefault("labels", {})[HOSTNAME_LABEL] = change.name
    elif key in nodes:
        body = nodes[key].edit()
    else:
        labels = {HOSTNAME_LABEL: change.name}
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": change.name, "uid": f"what-if-{change.name}", "labels": labels},
            "status": {"allocatable": {"pods": PODS_PER_NODE}, "capacity": {"pods": PODS_PER_NODE}},
        }
    if change.zone:
        body["metadata"].setdefault("labels", {})[ZONE_LABEL] = change.zone
    status = body.setdefault("status", {})
    offered = status.get("allocatable") or status.get("capacity") or {}
    for resource, amount in change.resources.items():
        offered[resource] = amount.applied(offered.get(resource))
    status["allocatable"] = offered
    status["capacity"] = {**(status.get("capacity") or {}), **offered}
    before = nodes.get(key)
    nodes[key] = _edited(before, body) if before is not None else _new(key, body)


def _edit_node(change: TaintRemoved | LabelSet | Uncordoned, made: HeldObjects) -> None:
    key = Key(NODE_KIND, "", change.node)
    found = _found(made, key)
    body = found.edit()
    spec = body.setdefault("spec", {})
    match change:
        case TaintRemoved():
            left = [each for each in spec.get("taints") or () if each.get("key") != change.taint]
            if len(left) == len(spec.get("taints") or ()):
                raise NotFound(f"node {change.node} has no taint {change.taint}")
            spec["taints"] = left
        case LabelSet():
            body["metadata"].setdefault("labels", {})[change.label] = change.value
        case Uncordoned():
            spec.pop("unschedulable", None)
    made[NODE_KIND][key] = _edited(found, body)


def _remove_pod(change: PodRemoved, made: HeldObjects, namespace: str) -> None:
    space, slash, name = change.name.rpartition("/")
    key = Key(POD_KIND, space if slash else namespace, name)
    found = _found(made, key)
    del made[POD_KIND][key]
    ledger = Key(NODE_ALLOCATION_KIND, "", found.as_view(PodView).spec.node_name)
    allocation = made.get(NODE_ALLOCATION_KIND, {}).get(ledger)
    if allocation is not None:
        body = allocation.edit()
        body.get("status", {}).get("entries", {}).pop(found.uid, None)
        made[NODE_ALLOCATION_KIND][ledger] = _edited(allocation, body)


def _use_policy(change: PolicyVersionUsed, made: HeldObjects, versions: Versions) -> None:
    key = Key(SCHEDULING_POLICY_KIND, "", change.name)
    found = _found(made, key)
    for each in versions(key):
        if each.as_view(SchedulingPolicyView).spec.version == change.version:
            body = found.edit()
            body["spec"] = each.edit()["spec"]
            made[SCHEDULING_POLICY_KIND][key] = _edited(found, body)
            return
    raise NotFound(f"the records have no version {change.version} of SchedulingPolicy {change.name}")


def _found(made: HeldObjects, key: Key) -> Object:
    found = made.get(key.kind, {}).get(key)
    if found is None:
        names = ", ".join(sorted(each.name for each in made.get(key.kind, {}))[:20]) or "none"
        raise NotFound(f"the decision had no {key.kind.partition('.')[0]} {key.name}: it had {names}")
    return found


def _edited(found: Object, body: dict[str, Any]) -> Object:
    return replace(found, value=encode_object(body), known_view=None, known_metadata=None)


def _new(key: Key, body: dict[str, Any]) -> Object:
    return Object(KINDS.of_key_kind(key.kind), key, encode_object(body), revision=1, created=1)
