"""Changed inputs of a whole run: the grammar of `kedge why --what-if`, and `limit/NAME=VALUE`, applied to a draft.

An object in the dump is changed there. Another is changed by a step as soon as it exists, as a person would do it; so
later recorded writes of people act on the changed object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, Final

from kedge.api.objects import Object
from kedge.api.wellknown import HOSTNAME_LABEL, NODE_ALLOCATION_KIND, NODE_KIND, POD_KIND, ZONE_LABEL, ZONE_QUOTA_KIND
from kedge.errors import BadRequest, NotFound
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.readers.recording import Recording
from kedge.observe.readers.what_if import InputChange, PodRemoved, QuotaChange, apply_changes, parse_change
from kedge.sim.incident.draft import ScenarioDraft, duration, named
from kedge.sim.incident.outside_writes import merge_patch
from kedge.sim.incident.rerun import IncidentProgram

LIMIT: Final = "limit/"


def with_changes(program: IncidentProgram, texts: Iterable[str]) -> ScenarioDraft:
    """The draft of a program with changed inputs.

    Raises:
        BadRequest: a text is none of the forms.
        NotFound: a change names an object that the recording does not have.
    """
    draft = program.draft
    for text in texts:
        if text.startswith(LIMIT):
            draft = _with_limit(draft, text)
        else:
            draft = _with_change(program, draft, parse_change(text))
    return draft


def _with_limit(draft: ScenarioDraft, text: str) -> ScenarioDraft:
    name, _, value = text.removeprefix(LIMIT).partition("=")
    if name not in {each.name for each in fields(Limits)}:
        raise NotFound(f"there is no limit {name!r}: docs/limits.md lists them")
    try:
        amount = int(value) if value.lstrip("-").isdigit() else float(value)
    except ValueError as error:
        raise BadRequest(f"{text!r} is no change of a limit: write it as limit/NAME=NUMBER") from error
    world = draft.document["world"]
    return draft.changed(world={**world, "limits": {**world.get("limits", {}), name: amount}})


def _with_change(program: IncidentProgram, draft: ScenarioDraft, change: InputChange) -> ScenarioDraft:
    first = _first_versions(program.recording, program.begin)
    held: dict[str, dict[Key, Object]] = {}
    for key, (_, found) in first.items():
        held.setdefault(key.kind, {})[key] = found
    made = apply_changes([change], held, _namespace(change, held), lambda key: _versions(program.recording, key))
    for kind, objects in made.items():
        for key, found in objects.items():
            if held.get(kind, {}).get(key) is not found:
                draft = _with_object(draft, first, key, found)
        if kind != NODE_ALLOCATION_KIND:
            for key in held.get(kind, {}).keys() - objects.keys():
                draft = _without_object(draft, first, key)
    return draft


def _first_versions(recording: Recording, begin: datetime) -> dict[Key, tuple[float, Object]]:
    """The first version of every object from `begin` on, and the seconds from there to it."""
    found = {each.key: (0.0, each) for each in recording.states[0].objects} if recording.states else {}
    for commit in recording.commits:
        at_s = max(0.0, (commit.at - begin).total_seconds())
        for each in commit.written:
            if not at_s or each.key not in found:
                found[each.key] = (at_s, each)
        if not at_s:
            for key in commit.deleted:
                found.pop(key, None)
    return found


def _versions(recording: Recording, key: Key) -> list[Object]:
    states = [each for state in recording.states for each in state.objects if each.key == key]
    return states + [each for commit in recording.commits for each in commit.written if each.key == key]


def _namespace(change: InputChange, held: Mapping[str, Mapping[Key, Object]]) -> str:
    """The namespace of the object that a change names; a name that is in two is that of `default`."""
    match change:
        case QuotaChange():
            kind, name = ZONE_QUOTA_KIND, change.name
        case PodRemoved():
            kind, name = POD_KIND, change.name.rpartition("/")[2]
        case _:
            return "default"
    spaces = sorted({key.namespace for key in held.get(kind, {}) if key.name == name})
    return spaces[0] if spaces and "default" not in spaces else "default"


# -- edits of the draft ----------------------------------------------------------------------------


def _with_object(
    draft: ScenarioDraft, first: Mapping[Key, tuple[float, Object]], key: Key, found: Object
) -> ScenarioDraft:
    if key.kind == NODE_ALLOCATION_KIND:
        return draft  # made from the pods
    body = found.edit()
    if key.kind == NODE_KIND and (key not in first or _is_listed(draft, key.name)):
        before = first[key][1].edit() if key in first else {}
        if key not in first or body.get("status") != before.get("status"):
            return _with_node(draft, key.name, body)
    for place, each in enumerate(draft.dump or ()):
        if _is_named(each, key):
            assert draft.dump is not None
            changed: dict[str, Any] = {**each, **{name: body[name] for name in ("spec", "status") if name in body}}
            changed["metadata"] = {**each["metadata"], "labels": body["metadata"].get("labels") or {}}
            return replace(draft, dump=(*draft.dump[:place], changed, *draft.dump[place + 1 :]))
    at_s, before_object = first[key]
    patch = merge_patch(before_object.edit(), body)
    step = {"change": {"object": named(key.kind, key.namespace, key.name), "patch": patch}}
    return draft.beside({"at": duration(at_s + 0.001), **step})


def _without_object(draft: ScenarioDraft, first: Mapping[Key, tuple[float, Object]], key: Key) -> ScenarioDraft:
    left = tuple(each for each in draft.dump or () if not _is_named(each, key))
    if len(left) < len(draft.dump or ()):
        return replace(draft, dump=left)
    step = {"delete": {"object": named(key.kind, key.namespace, key.name), "force": True}}
    return draft.beside({"at": duration(first[key][0] + 0.001), **step})


def _is_named(body: Mapping[str, Any], key: Key) -> bool:
    metadata = body["metadata"]
    same_space = not key.namespace or metadata.get("namespace", "default") == key.namespace
    return bool(same_space and metadata["name"] == key.name and body["kind"] == key.kind.partition(".")[0])


def _is_listed(draft: ScenarioDraft, node: str) -> bool:
    return any(each["name"] == node for each in draft.document["world"].get("nodes", ()))


def _with_node(draft: ScenarioDraft, name: str, body: Mapping[str, Any]) -> ScenarioDraft:
    """A node as an entry of `world.nodes`, new or in place of the old one."""
    labels = dict(body["metadata"].get("labels") or {})
    zone = labels.pop(ZONE_LABEL, "zone-a")
    labels.pop(HOSTNAME_LABEL, None)
    offered = (body.get("status") or {}).get("allocatable") or {}
    node = {"name": name, "zone": zone, "resources": {resource: str(each) for resource, each in offered.items()}}
    if labels:
        node["labels"] = labels
    world = deepcopy(draft.document["world"])
    world["nodes"] = [*(each for each in world.get("nodes", ()) if each["name"] != name), node]
    return draft.changed(world=world)
