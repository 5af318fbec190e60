"""Ensures the default roles and bindings at each start of a server.

A role that lacks a default rule gets it; rules that an administrator added stay. A role or binding with the annotation
`rbac.authorization.kubernetes.io/autoupdate: "false"` is left as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from kedge.api.objects import Object
from kedge.api.requests import Create, Delete, Patch
from kedge.api.views import PolicyRule
from kedge.api.wellknown import (
    AGGREGATE_LABEL_PREFIX,
    BOOTSTRAPPING_LABEL,
    CLUSTER_ROLE_BINDING_KIND,
    CLUSTER_ROLE_KIND,
    RBAC_GROUP,
    ROLE_AUTOUPDATE,
    ROLE_BINDING_KIND,
    ROLE_KIND,
)
from kedge.errors import AlreadyExists, NotFound
from kedge.keys import Key
from kedge.server.service import deletion, writes
from kedge.server.service.access.aggregation import rules_as_json
from kedge.server.service.access.role_table import DEFAULT_ROLES, DefaultRole
from kedge.server.service.access.rules import missing_rules
from kedge.server.service.core import Core

_COMBINATIONS_MAX: Final = 1_000_000
"""Default rules are few, so this bounds nothing that a user could write."""


class RoleWrite(NamedTuple):
    """One write that brings a default up to date."""

    key: Key
    body: Mapping[str, Any]
    """A whole object, or a merge patch of one that exists."""
    exists: bool = False
    replaces: bool = False
    """The object that exists is deleted first: the role of a binding cannot change."""


async def ensure_default_roles(core: Core, more: Sequence[DefaultRole] = ()) -> int:
    """Write what is missing, of the roles of components in `more` too. Safe to repeat, also concurrently.

    Returns how many objects were written.
    """
    roles = (*DEFAULT_ROLES, *more)
    keys = [key for role in roles for key in _keys(role)]
    reading = await core.store.get(keys)
    found = {key: core.object_of(entry) for key, entry in zip(keys, reading.entries, strict=True) if entry is not None}
    planned = plan_default_roles(roles, found)
    await asyncio.gather(*(_apply(core, each) for each in planned))
    return len(planned)


def plan_default_roles(roles: Sequence[DefaultRole], found: Mapping[Key, Object]) -> list[RoleWrite]:
    """The writes that bring every default up to date. Pure."""
    planned: list[RoleWrite] = []
    for role in roles:
        role_key, *binding_keys = _keys(role)
        for key, body in ((role_key, _role_body(role)), *((key, _binding_body(role)) for key in binding_keys)):
            known = found.get(key)
            if known is None:
                planned.append(RoleWrite(key, body))
            elif known.metadata.annotations.get(ROLE_AUTOUPDATE) != "false":
                changes = _changes(known, body)
                if changes is not None:
                    planned.append(changes)
    return planned


async def _apply(core: Core, write: RoleWrite) -> None:
    with suppress(AlreadyExists, NotFound):  # another server was faster, or an administrator deleted it
        if write.exists and not write.replaces:
            await writes.patch(core, Patch(write.key, write.body))
            return
        if write.replaces:
            await deletion.delete(core, Delete(write.key))
        await writes.create(core, Create(core.kind_of(write.key), write.body, write.key.namespace))


def _keys(role: DefaultRole) -> tuple[Key, ...]:
    kinds = (ROLE_KIND, ROLE_BINDING_KIND) if role.namespace else (CLUSTER_ROLE_KIND, CLUSTER_ROLE_BINDING_KIND)
    own = Key(kinds[0], role.namespace, role.name)
    return (own, Key(kinds[1], role.namespace, role.name)) if role.groups or role.users else (own,)


def _metadata(role: DefaultRole, labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": role.name,
        "labels": {BOOTSTRAPPING_LABEL: "rbac-defaults", **labels},
        "annotations": {ROLE_AUTOUPDATE: "true"},
    }


def _role_body(role: DefaultRole) -> dict[str, Any]:
    body: dict[str, Any] = {
        "metadata": _metadata(role, {f"{AGGREGATE_LABEL_PREFIX}{each}": "true" for each in role.labels})
    }
    if role.aggregates:
        selector = {"matchLabels": {f"{AGGREGATE_LABEL_PREFIX}{role.aggregates}": "true"}}
        return {**body, "aggregationRule": {"clusterRoleSelectors": [selector]}, "rules": []}
    return {**body, "rules": rules_as_json(role.rules)}


def _binding_body(role: DefaultRole) -> dict[str, Any]:
    role_kind = "Role" if role.namespace else "ClusterRole"
    return {
        "metadata": _metadata(role, {}),
        "subjects": [
            {"kind": kind, "apiGroup": RBAC_GROUP, "name": name}
            for kind, names in (("Group", role.groups), ("User", role.users))
            for name in names
        ],
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": role_kind, "name": role.name},
    }


def _changes(known: Object, wanted: Mapping[str, Any]) -> RoleWrite | None:
    """The patch that adds what a default lacks; None if it lacks nothing."""
    document = known.edit()
    patch: dict[str, Any] = {}
    for part in ("labels", "annotations"):
        missing = {
            name: text for name, text in wanted["metadata"][part].items()
            if (document["metadata"].get(part) or {}).get(name) != text
        }  # fmt: skip
        if missing:
            patch.setdefault("metadata", {})[part] = missing
    if "roleRef" in wanted:
        if document.get("roleRef") != wanted["roleRef"]:
            return RoleWrite(known.key, wanted, exists=True, replaces=True)
        subjects = list(document.get("subjects") or [])
        added = [each for each in wanted["subjects"] if each not in subjects]
        if added:
            patch["subjects"] = [*subjects, *added]
    elif "aggregationRule" in wanted:
        if document.get("aggregationRule") != wanted["aggregationRule"]:
            patch["aggregationRule"] = wanted["aggregationRule"]
    else:
        lacking = _lacking(known, wanted["rules"])
        if lacking:
            patch["rules"] = [*(document.get("rules") or []), *rules_as_json(tuple(lacking))]
    return RoleWrite(known.key, patch, exists=True) if patch else None


def _lacking(known: Object, wanted: Sequence[Mapping[str, Any]]) -> list[PolicyRule]:
    rules = msgspec.convert(wanted, tuple[PolicyRule, ...])
    held: tuple[PolicyRule, ...] = known.view.rules
    return [each for each in rules if missing_rules(held, [each], combinations_max=_COMBINATIONS_MAX)]
