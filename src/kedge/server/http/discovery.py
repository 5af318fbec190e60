"""Discovery: which groups, versions and resources there are, in the old form and in the aggregated one.

Everything is derived from the registry of kinds. `kubectl api-resources`, every client's REST mapper and `drain`, which
looks for `pods/eviction`, read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kedge.api.kinds import Kind
from kedge.api.wellknown import (
    AUTHENTICATION_GROUP,
    DISCOVERY_API_VERSION,
    METRICS_GROUP,
    NAMESPACE_KIND,
    POD_KIND,
)
from kedge.server.http.reviews import REVIEWS, ReviewKind

AGGREGATED = DISCOVERY_API_VERSION

_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_READS = ("get", "list")
_UPDATES = ("get", "patch", "update")
_CREATES = ("create",)
_STREAMS = ("create", "get")
_SUBRESOURCES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "attach": ("", "v1", "PodAttachOptions", _STREAMS),
    "binding": ("", "v1", "Binding", _CREATES),
    "eviction": ("policy", "v1", "Eviction", _CREATES),
    "exec": ("", "v1", "PodExecOptions", _STREAMS),
    "log": ("", "v1", POD_KIND, ("get",)),
    "token": (AUTHENTICATION_GROUP, "v1", "TokenRequest", _CREATES),
    "scale": ("autoscaling", "v1", "Scale", _UPDATES),
}
"""Group, version, kind and verbs of subresources whose body is another kind. The others have their parent's."""


def verbs_of(kind: Kind) -> tuple[str, ...]:
    if kind.group == METRICS_GROUP:
        return _READS
    if kind.key_kind == NAMESPACE_KIND:
        return tuple(verb for verb in _VERBS if verb != "deletecollection")
    return _VERBS


class Discovery:
    """The discovery documents of one server."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._groups: dict[str, dict[str, list[Kind]]] = {}
        for kind in kinds:
            self._groups.setdefault(kind.group, {}).setdefault(kind.version, []).append(kind)
        for each in REVIEWS:
            self._groups.setdefault(each.group, {}).setdefault(each.version, [])

    def core_versions(self) -> dict[str, Any]:
        """`/api`"""
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}

    def groups(self) -> dict[str, Any]:
        """`/apis`"""
        named = [self._group(group) for group in self._groups if group]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": named}

    def group(self, group: str) -> dict[str, Any] | None:
        """`/apis/GROUP`"""
        if group not in self._groups:
            return None
        return {"kind": "APIGroup", "apiVersion": "v1", **self._group(group)}

    def resources(self, group: str, version: str) -> dict[str, Any] | None:
        """`/api/v1` and `/apis/GROUP/VERSION`"""
        kinds = self._groups.get(group, {}).get(version)
        if kinds is None:
            return None
        rows = [row for kind in kinds for row in _resources(kind)]
        rows.extend(_review(review) for review in REVIEWS if review[:2] == (group, version))
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": _group_version(group, version),
            "resources": rows,
        }

    def aggregated(self, *, core: bool) -> dict[str, Any]:
        """`/api` or `/apis` for a client that requests everything at once."""
        items = [
            {
                "metadata": {"name": group, "creationTimestamp": None},
                "versions": [
                    {"version": version, "resources": self._discovered(group, version, kinds), "freshness": "Current"}
                    for version, kinds in versions.items()
                ],
            }
            for group, versions in self._groups.items()
            if (group == "") == core
        ]
        return {"kind": "APIGroupDiscoveryList", "apiVersion": AGGREGATED, "metadata": {}, "items": items}

    def group_versions(self) -> Iterator[tuple[str, str]]:
        for group, versions in self._groups.items():
            for version in versions:
                yield group, version

    def _group(self, group: str) -> dict[str, Any]:
        versions = [
            {"groupVersion": _group_version(group, version), "version": version} for version in self._groups[group]
        ]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def _discovered(self, group: str, version: str, kinds: list[Kind]) -> list[dict[str, Any]]:
        found = [_aggregated(kind) for kind in kinds]
        for each in REVIEWS:
            if (each.group, each.version) == (group, version):
                found.append({
                    "resource": each.plural, "responseKind": _kind(group, version, each.kind),
                    "scope": "Namespaced" if each.namespaced else "Cluster",
                    "singularResource": each.kind.lower(), "verbs": list(_CREATES),
                })  # fmt: skip
        return found


def _resources(kind: Kind) -> Iterator[dict[str, Any]]:
    row: dict[str, Any] = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(verbs_of(kind)),
    }
    if kind.short_names:
        row["shortNames"] = list(kind.short_names)
    if kind.categories:
        row["categories"] = list(kind.categories)
    yield row
    for name in sorted(kind.subresources):
        group, version, child, verbs = _SUBRESOURCES.get(name, (kind.group, kind.version, kind.kind, _UPDATES))
        row = {
            "name": f"{kind.plural}/{name}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": child,
            "verbs": list(verbs),
        }
        if name in _SUBRESOURCES:
            row |= {"group": group, "version": version}
        yield row


def _review(review: ReviewKind) -> dict[str, Any]:
    return {
        "name": review.plural,
        "singularName": review.kind.lower(),
        "namespaced": review.namespaced,
        "kind": review.kind,
        "verbs": list(_CREATES),
    }


def _aggregated(kind: Kind) -> dict[str, Any]:
    found: dict[str, Any] = {
        "resource": kind.plural,
        "responseKind": _kind(kind.group, kind.version, kind.kind),
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(verbs_of(kind)),
    }
    if kind.short_names:
        found["shortNames"] = list(kind.short_names)
    if kind.categories:
        found["categories"] = list(kind.categories)
    if kind.subresources:
        found["subresources"] = [_subresource(kind, name) for name in sorted(kind.subresources)]
    return found


def _subresource(kind: Kind, name: str) -> dict[str, Any]:
    group, version, child, verbs = _SUBRESOURCES.get(name, (kind.group, kind.version, kind.kind, _UPDATES))
    return {"subresource": name, "responseKind": _kind(group, version, child), "verbs": list(verbs)}


def _kind(group: str, version: str, kind: str) -> dict[str, str]:
    return {"group": group, "version": version, "kind": kind}


def _group_version(group: str, version: str) -> str:
    return f"{group}/{version}" if group else version
