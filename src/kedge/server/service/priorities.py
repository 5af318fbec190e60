"""Priorities: a new pod gets the priority of the class that it names, or of the default class, in its own commit.

One internal key names the default class, and every create of a pod proves it. It is read with the other keys, so it
costs no round trip, and no create can miss a default or see two. Error texts are those of Kubernetes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kedge.api.codec import encode_object
from kedge.api.objects import Object
from kedge.api.views import PodView, PriorityClassView
from kedge.api.wellknown import DEFAULT_PRIORITY_KIND, PRIORITY_CLASS_KIND, SYSTEM_PRIORITIES
from kedge.errors import Forbidden
from kedge.keys import NO_REVISION, Key
from kedge.server.service.core import Proof

DEFAULT_CLASS = Key(DEFAULT_PRIORITY_KIND, "", "default")
"""Holds the name of the default class; absent if there is none."""
SYSTEM_CLASSES = {name: PriorityClassView(value=value) for name, value in SYSTEM_PRIORITIES.items()}
"""Built-in classes."""


def is_settled(proof: Proof, pod: Object) -> bool:
    """Whether a new pod needs no class: it names none, there is no default, and it sets no priority."""
    spec = pod.as_view(PodView).spec
    return not spec.priority_class_name and not spec.priority and proof.reads.get(DEFAULT_CLASS) is None


async def with_priority(proof: Proof, pod: Object) -> Object:
    """The new pod with the priority and the preemption policy of its class.

    Raises:
        Forbidden: there is no such class, or the pod sets a priority or policy that differs from it.
    """
    spec = pod.as_view(PodView).spec
    name, found = await _class_of(proof, pod)
    if spec.priority is not None and spec.priority != found.value:
        raise Forbidden(
            f'pods "{pod.key.name}" is forbidden: the integer value of priority ({spec.priority}) must not be provided'
            f" in pod spec; priority admission controller computed {found.value} from the given PriorityClass name",
            key=pod.key,
        )
    # The view has the default for a policy that was left out; the bytes show whether it was.
    given = spec.preemption_policy if b'"preemptionPolicy"' in pod.value or b"\\u" in pod.value else ""
    if given and given != found.preemption_policy:
        raise Forbidden(
            f'pods "{pod.key.name}" is forbidden: the string value of PreemptionPolicy ({given}) must not be provided'
            f" in pod spec; priority admission controller computed {found.preemption_policy} from the given"
            " PriorityClass name",
            key=pod.key,
        )
    if name:
        proof.note(Key(PRIORITY_CLASS_KIND, "", name), "changed", f"the priority to {found.value}")
    return _edited(pod, name, found)


async def _class_of(proof: Proof, pod: Object) -> tuple[str, PriorityClassView]:
    name = pod.as_view(PodView).spec.priority_class_name
    if not name:
        (default,) = await proof.entries(DEFAULT_CLASS)
        if default is None:
            return "", PriorityClassView()
        name = default.value.decode()
    if name in SYSTEM_CLASSES:
        return name, SYSTEM_CLASSES[name]
    found = await proof.object(Key(PRIORITY_CLASS_KIND, "", name))
    if found is None:
        proof.note(Key(PRIORITY_CLASS_KIND, "", name), "refused", "there is no such class")
        raise Forbidden(f'pods "{pod.key.name}" is forbidden: no PriorityClass with name {name} was found', key=pod.key)
    return name, found.as_view(PriorityClassView)


def _edited(pod: Object, name: str, found: PriorityClassView) -> Object:
    view = pod.as_view(PodView)
    fields: dict[str, Any] = {"priority": found.value, "preemptionPolicy": found.preemption_policy}
    if name:
        fields["priorityClassName"] = name
    document = pod.edit()
    document["spec"].update(fields)
    spec = msgspec.structs.replace(
        view.spec, priority=found.value, preemption_policy=found.preemption_policy, priority_class_name=name
    )
    return Object(
        pod.kind,
        pod.key,
        encode_object(document),
        revision=NO_REVISION,
        known_view=msgspec.structs.replace(view, spec=spec),
    )


def keep_priority(before: dict[str, Any], after: dict[str, Any]) -> None:
    """An update that leaves out the fields that the class set at creation does not change them."""
    old, new = before.get("spec"), after.get("spec")
    if isinstance(old, dict) and isinstance(new, dict):
        for field in ("priority", "preemptionPolicy", "priorityClassName"):
            if old.get(field) is not None and new.get(field) is None:
                new[field] = old[field]


# -- the default -----------------------------------------------------------------------------------


async def follow_class(proof: Proof, key: Key, old: Object | None, new: Object | None) -> None:
    """Stage a change of the default class. There can be one."""
    was = old is not None and old.as_view(PriorityClassView).global_default
    becomes = new is not None and new.as_view(PriorityClassView).global_default
    if was == becomes:
        return
    (default,) = await proof.entries(DEFAULT_CLASS)
    if becomes:
        if default is not None:
            raise Forbidden(
                f'priorityclasses "{key.name}" is forbidden: PriorityClass {default.value.decode()} is already marked'
                " as default. Only one default can exist",
                key=key,
            )
        proof.put(DEFAULT_CLASS, key.name.encode())
    elif default is not None:
        proof.delete(DEFAULT_CLASS)
