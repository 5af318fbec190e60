"""The audit policy: the level at which a request is logged, by the first rule that matches it. Pure.

The file has the form of Kubernetes' audit policy. `auditor` asks for levels; this module reads no requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from kedge.api.access import Attributes
from kedge.api.wellknown import AUDIT_API_VERSION, AUTHENTICATION_GROUP
from kedge.errors import Terminal

READ_VERBS: Final = frozenset({"get", "list", "watch"})
WRITE_VERBS: Final = ("create", "update", "patch", "delete", "deletecollection")
STARTED: Final = "ResponseStarted"
COMPLETE: Final = "ResponseComplete"
_STAGES: Final = frozenset({"RequestReceived", STARTED, COMPLETE, "Panic"})
_SECRET_RESOURCES: Final = frozenset({("", "secrets"), ("", "configmaps"), (AUTHENTICATION_GROUP, "tokenreviews")})
_SECRET_SUBRESOURCES: Final = frozenset({"token", "log", "exec", "attach", "portforward"})
LEVELS_REMEMBERED: Final = 4096
"""Answers that a policy remembers. Past it all are forgotten: clients repeat a few kinds of requests."""
_LENGTH_REMEMBERED: Final = 1024
"""Longer requests are decided each time, so that they cannot fill memory."""


class AuditLevel(IntEnum):
    """How much of a request is logged."""

    NONE = 0
    METADATA = 1
    REQUEST = 2
    REQUEST_RESPONSE = 3

    @property
    def text(self) -> str:
        return _LEVEL_NAMES[self]


_LEVEL_NAMES: Final = {
    AuditLevel.NONE: "None",
    AuditLevel.METADATA: "Metadata",
    AuditLevel.REQUEST: "Request",
    AuditLevel.REQUEST_RESPONSE: "RequestResponse",
}
_LEVELS: Final = {name: level for level, name in _LEVEL_NAMES.items()}


class AuditRead(NamedTuple):
    """A request as a policy sees it. `path` is that of a request for no resource, and empty otherwise."""

    user: str
    groups: tuple[str, ...]
    wanted: Attributes
    path: str = ""


_RULE_NAMES: Final = {
    "non_resource_urls": "nonResourceURLs",
    "user_groups": "userGroups",
    "omit_stages": "omitStages",
    "omit_managed_fields": "omitManagedFields",
}


class ResourceRule(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Resources of one API group. Without names of resources all of the group."""

    group: str = ""
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()

    def matches(self, wanted: Attributes) -> bool:
        if self.group != wanted.group:
            return False
        if not self.resources:
            return True
        if self.resource_names and wanted.name not in self.resource_names:
            return False
        return any(_names(each, wanted) for each in self.resources)


def _names(pattern: str, wanted: Attributes) -> bool:
    """`pods`, `pods/log`, `pods/*` (every subresource), `*/scale` (of every resource), or `*`."""
    if pattern in ("*", wanted.full_resource):
        return True
    resource, _, subresource = pattern.partition("/")
    if resource == "*":
        return bool(subresource) and wanted.subresource == subresource
    return subresource == "*" and bool(wanted.subresource) and wanted.resource == resource


class AuditRule(msgspec.Struct, frozen=True, rename=_RULE_NAMES, forbid_unknown_fields=True):
    """One rule. A list that is empty matches everything."""

    level: str
    users: tuple[str, ...] = ()
    user_groups: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    resources: tuple[ResourceRule, ...] = ()
    namespaces: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = ()
    omit_stages: tuple[str, ...] = ()
    omit_managed_fields: bool | None = None

    def matches(self, read: AuditRead) -> bool:
        if self.users and read.user not in self.users:
            return False
        if self.user_groups and not any(each in self.user_groups for each in read.groups):
            return False
        if self.verbs and read.wanted.verb not in self.verbs:
            return False
        if self.resources or self.namespaces:
            return not read.path and self._matches_resource(read.wanted)
        if self.non_resource_urls:
            return bool(read.path) and any(_covers(each, read.path) for each in self.non_resource_urls)
        return True

    def _matches_resource(self, wanted: Attributes) -> bool:
        if self.namespaces and wanted.namespace not in self.namespaces:
            return False
        return not self.resources or any(each.matches(wanted) for each in self.resources)


def _covers(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern


class AuditAnswer(NamedTuple):
    """The entry that a request gets."""

    level: AuditLevel
    starts: bool = True
    """Whether a long request has an entry at its start too."""
    managed_fields: bool = True
    """Whether `metadata.managedFields` stay in bodies."""


_NOT_AUDITED: Final = AuditAnswer(AuditLevel.NONE)


class AuditPolicy:
    """The rules in their order. The first that matches decides; without one the level is None."""

    def __init__(
        self, rules: Sequence[AuditRule], *, omit_stages: Sequence[str] = (), omit_managed_fields: bool = False
    ) -> None:
        self._rules = tuple(rules)
        self._omit_stages = frozenset(omit_stages)
        self._omit_managed_fields = omit_managed_fields
        self._by_name = any(each.resource_names for rule in rules for each in rule.resources)
        self._remembered: dict[Any, AuditAnswer] = {}
        self.reads = any(
            _LEVELS[rule.level] and (not rule.verbs or any(each in READ_VERBS for each in rule.verbs)) for rule in rules
        )
        """Whether a read may be logged at all."""

    def answer(self, read: AuditRead) -> AuditAnswer:
        user, groups, wanted, path = read
        key: Any = read if self._by_name or path else (user, groups, wanted[:5])
        found = self._remembered.get(key)
        if found is None:
            found = self._decide(read)
            if len(user) + len(path) + sum(map(len, groups)) + sum(map(len, wanted)) <= _LENGTH_REMEMBERED:
                if len(self._remembered) >= LEVELS_REMEMBERED:
                    self._remembered.clear()
                self._remembered[key] = found
        return found

    def _decide(self, read: AuditRead) -> AuditAnswer:
        rule = next((each for each in self._rules if each.matches(read)), None)
        if rule is None or rule.level == "None":
            return _NOT_AUDITED
        level = _LEVELS[rule.level]
        if may_hold_secrets(read.wanted):
            level = min(level, AuditLevel.METADATA)
        omits = rule.omit_managed_fields
        return AuditAnswer(
            level,
            starts=STARTED not in self._omit_stages and STARTED not in rule.omit_stages,
            managed_fields=not (self._omit_managed_fields if omits is None else omits),
        )


def may_hold_secrets(wanted: Attributes) -> bool:
    """Whether bodies of the resource hold passwords or tokens. They are never logged, whatever a rule asks for."""
    return (wanted.group, wanted.resource) in _SECRET_RESOURCES or wanted.subresource in _SECRET_SUBRESOURCES


WRITES_POLICY: Final = AuditPolicy([AuditRule("Metadata", verbs=WRITE_VERBS)])
"""The metadata of every write."""


class _PolicyFile(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    api_version: str
    kind: str
    rules: tuple[AuditRule, ...]
    omit_stages: tuple[str, ...] = ()
    omit_managed_fields: bool = False
    metadata: Mapping[str, Any] = {}


def parse_policy(text: str, name: str) -> AuditPolicy:
    """A policy from the text of its file, which errors call `name`.

    Raises:
        Terminal: it is no audit policy. Correct the file.
    """
    try:
        file = msgspec.convert(yaml.safe_load(text), _PolicyFile)
    except yaml.YAMLError as error:
        raise Terminal(f"{name} is not YAML: {' '.join(str(error).split())}") from error
    except msgspec.ValidationError as error:
        raise Terminal(f"{name} is no audit policy: {error}") from error
    if (file.api_version, file.kind) != (AUDIT_API_VERSION, "Policy"):
        raise Terminal(f"{name} is no audit policy: its first lines are apiVersion: {AUDIT_API_VERSION}, kind: Policy")
    if not file.rules:
        raise Terminal(f"{name} has no rules, so nothing would be logged: add one, or leave auditing off")
    for number, rule in enumerate(file.rules, 1):
        if rule.level not in _LEVELS:
            raise Terminal(f"{name}: rule {number} has the level {rule.level!r}: write one of {', '.join(_LEVELS)}")
        if rule.non_resource_urls and (rule.resources or rule.namespaces):
            raise Terminal(f"{name}: rule {number} is about resources and paths: make two rules of it")
        for stage in (*rule.omit_stages, *file.omit_stages):
            if stage not in _STAGES:
                raise Terminal(f"{name}: there is no stage {stage!r}: write one of {', '.join(sorted(_STAGES))}")
    return AuditPolicy(file.rules, omit_stages=file.omit_stages, omit_managed_fields=file.omit_managed_fields)
