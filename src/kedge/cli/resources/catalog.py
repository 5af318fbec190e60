"""The resource types of a server, from its discovery documents: which word means which path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from kedge.errors import NotFound


class ResourceType(NamedTuple):
    """One resource type, in the version that the server prefers."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def label(self) -> str:
        """As in `deployment.apps/web`."""
        return f"{self.kind.lower()}.{self.group}" if self.group else self.kind.lower()

    @property
    def words(self) -> tuple[str, ...]:
        names = (self.plural, self.singular, self.kind.lower(), *self.short_names)
        grouped = (f"{name}.{self.group}" for name in names if self.group)
        versioned = (f"{name}.{self.version}.{self.group}" for name in names if self.group)
        return (*names, *grouped, *versioned)

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        place = f"/namespaces/{quote(namespace, safe='')}" if namespace and self.namespaced else ""
        tail = "".join(f"/{quote(each, safe='')}" for each in (name, subresource) if each)
        return f"{root}{place}/{self.plural}{tail}"


class Catalog:
    """Resource types by each of their names. The first group wins, as with kubectl."""

    def __init__(self, types: Iterable[ResourceType]) -> None:
        self.types = tuple(types)
        self._by_word: dict[str, ResourceType] = {}
        for each in self.types:
            for word in each.words:
                if word:
                    self._by_word.setdefault(word, each)

    def resolve(self, word: str) -> tuple[ResourceType, ...]:
        """The types that one word names: one, or those of a category such as `all`.

        Raises:
            NotFound: the server has no such type.
        """
        if found := self._by_word.get(word.lower()):
            return (found,)
        if members := tuple(each for each in self.types if word in each.categories):
            return members
        raise NotFound(f"the server has no resource type {word!r}: `kedge get --types` lists those it has")

    def of_manifest(self, document: Mapping[str, Any]) -> ResourceType:
        """The type of a manifest.

        Raises:
            NotFound: the server has no such kind.
        """
        wanted = (str(document.get("apiVersion") or ""), str(document.get("kind") or ""))
        for each in self.types:
            if (each.api_version, each.kind) == wanted:
                return each
        others = sorted({each.api_version for each in self.types if each.kind == wanted[1]})
        hint = f"use {', '.join(others)}" if others else "`kedge get --types` lists the kinds that it has"
        raise NotFound(f"the server has no kind {wanted[1]!r} in {wanted[0]!r}: {hint}")


def catalog_of(documents: Iterable[Mapping[str, Any]]) -> Catalog:
    """Read aggregated discovery documents, those of `/api` first."""
    return Catalog(
        _resource_type(group["metadata"].get("name", ""), version["version"], each)
        for document in documents
        for group in document.get("items") or ()
        for version in (group.get("versions") or ())[:1]
        for each in version.get("resources") or ()
        if "list" in each.get("verbs", ()) or "get" in each.get("verbs", ())
    )


def _resource_type(group: str, version: str, each: Mapping[str, Any]) -> ResourceType:
    return ResourceType(
        group,
        version,
        each["responseKind"]["kind"],
        each["resource"],
        each.get("singularResource") or each["responseKind"]["kind"].lower(),
        each.get("scope") == "Namespaced",
        tuple(each.get("shortNames") or ()),
        tuple(each.get("categories") or ()),
        tuple(each.get("verbs") or ()),
        tuple(sub["subresource"] for sub in each.get("subresources") or ()),
    )
