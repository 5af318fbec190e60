"""Declarations: which kinds a controller follows, with which indexes, and which keys a change wakes.

Controllers declare a `ControllerSpec`; `runtime.controller` makes caches and a queue from it. A change only names keys
to reconcile; its content is not passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import Request
from kedge.errors import Forbidden, check
from kedge.keys import Key
from kedge.runtime.cache import BY_CONTROLLER, CacheChange, CacheSet, Index

KeysOf = Callable[[CacheChange, CacheSet], Iterable[Key]]
"""The keys to reconcile after a change. Quick and pure: it may read caches and nothing else."""

WORKERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSpec:
    """One kind that a controller reads, or a part of it."""

    kind: Kind
    keys_of: KeysOf | None = None
    """The keys that a change wakes; None for a kind that is only read."""
    namespace: str = ""
    label_selector: str = ""
    indexes: tuple[Index, ...] = ()
    """The indexes that `ctx.by_index` may use."""
    max_age_s: float | None = None
    """The oldest that its cache may be for any decision; None for no bound."""
    resync: Callable[[Object], bool] | None = None
    """Selects the objects whose own keys each resync adds; None for none. The controller's own kind is always resynced
    in full."""


class WriteRight(NamedTuple):
    """One sort of write that a controller makes: its role has it, and no other."""

    verb: str
    """As authorization has it: `create`, `patch`, `delete`."""
    kind: Kind | None
    """None for every kind."""
    subresource: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        return self.verb, self.kind.key_kind if self.kind is not None else "*", self.subresource


def writes(verbs: str, kind: Kind | None, subresource: str = "") -> tuple[WriteRight, ...]:
    """Rights to some verbs on one kind."""
    return tuple(WriteRight(verb, kind, subresource) for verb in verbs.split())


def check_right(request: Request[Any], rights: frozenset[tuple[str, str, str]], controller: str) -> None:
    """Raise `Forbidden` if a write is not among the declared ones: its role would not allow it either."""
    if request.reads:
        return
    kind, verb, part = request.target.kind, request.verb, request.subresource
    if (verb, kind, part) not in rights and (verb, "*", part) not in rights:
        place = f"{kind}/{part}" if part else kind
        raise Forbidden(
            f"controller {controller} may not {verb} {place}: add it to `writes` of its ControllerSpec",
            key=request.target if request.target.name else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSpec:
    """The declaration of a controller: everything about it that is the same in every process."""

    kind: Kind
    """The kind of its keys. `namespace` and `label_selector` narrow it, `indexes` are on it."""
    name: str = ""
    """In decision ids, metrics and lease identities; the kind in lower case if it is empty."""
    owns: Sequence[Kind | WatchSpec] = ()
    """Kinds whose objects wake the object that controls them; a `WatchSpec` where they need more indexes."""
    watches: Sequence[WatchSpec] = ()
    """Further kinds that it reads, and the keys that their changes wake."""
    writes: Sequence[WriteRight] | None = None
    """Every sort of write that it makes, besides Events: its role is derived from them. None does not restrict it."""
    indexes: Sequence[Index] = ()
    namespace: str = ""
    label_selector: str = ""
    workers: int = WORKERS
    max_age_s: float | None = None
    """The oldest that any of its caches may be for any decision, where a `WatchSpec` does not set its own bound."""
    priority_of: Callable[[Object, CacheSet], int] | None = None
    """The priority of an object of `kind`; higher goes first. It may read the caches of the kinds in `watches`."""

    def __post_init__(self) -> None:
        check(self.workers > 0, "a controller needs at least one worker")
        if not self.name:
            object.__setattr__(self, "name", self.kind.kind.lower())
        check(
            ":" not in self.name,
            f"controller names must not contain ':' (it separates the name from the id in a decision id): rename"
            f" {self.name}",
        )
        kinds = [watch.kind.key_kind for watch in self.all_watches()]
        twice = {each for each in kinds if kinds.count(each) > 1}
        check(
            not twice,
            f"controller {self.name} declares {', '.join(sorted(twice))} twice: put the indexes of an owned kind into"
            " one WatchSpec",
        )

    @property
    def rights(self) -> frozenset[tuple[str, str, str]] | None:
        return None if self.writes is None else frozenset(each.place for each in self.writes)

    def all_watches(self) -> tuple[WatchSpec, ...]:
        """Every kind that it follows, its own first."""
        own = WatchSpec(
            kind=self.kind,
            keys_of=wake_itself,
            namespace=self.namespace,
            label_selector=self.label_selector,
            indexes=tuple(self.indexes),
        )
        wake = wake_owner(self.kind)
        owned = [
            each if isinstance(each, WatchSpec) else WatchSpec(kind=each, namespace=self.namespace)
            for each in self.owns
        ]
        found = (
            own,
            *(replace(each, keys_of=wake, indexes=(BY_CONTROLLER, *each.indexes)) for each in owned),
            *self.watches,
        )
        if self.max_age_s is None:
            return found
        return tuple(each if each.max_age_s is not None else replace(each, max_age_s=self.max_age_s) for each in found)


def wake_itself(change: CacheChange, _: CacheSet) -> Iterable[Key]:
    return (change.key,)


def wake_owner(owner: Kind) -> KeysOf:
    """Wake the `owner` that controls the object: the one before the change and the one after."""

    def owners_of(found: Object | None) -> Iterable[Key]:
        if found is None:
            return ()
        namespace = found.key.namespace if owner.namespaced else ""
        return (
            Key(owner.key_kind, namespace, ref.name)
            for ref in found.metadata.owner_references
            if ref.controller and ref.kind == owner.kind and ref.api_version.rpartition("/")[0] == owner.group
        )

    def keys_of(change: CacheChange, _: CacheSet) -> Iterable[Key]:
        return dict.fromkeys((*owners_of(change.old), *owners_of(change.new)))

    return keys_of
