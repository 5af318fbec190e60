"""The authorizer: allowed or refused, from an index of the rules that follows the store.

Decisions are made in memory and remembered until any rule changes. On a store in this process the index is brought up
to date inside each commit, so a change of rules counts from its own reply on. Requests of agents may need a read: see
`node_access`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from kedge.api.access import MASTERS, Attributes, Caller, node_of, path_refusal, refusal
from kedge.api.views import PolicyRule
from kedge.api.wellknown import POD_KIND
from kedge.errors import Forbidden, NotFound, OperatingError
from kedge.keys import Key
from kedge.server.service.access import node_access
from kedge.server.service.access.role_index import INDEXED, GrantedRules, RoleIndex
from kedge.server.service.access.rules import EVERYTHING, allows_kind_of, allows_path, combinations, missing_rules
from kedge.store import StoreWatch

if TYPE_CHECKING:
    from kedge.server.service.core import Core

_EVERY_NAME: Final = None
_Names = frozenset[str] | None
"""Names of the objects that such requests may be about; `_EVERY_NAME` if any."""
_USER_LENGTH_MAX: Final = 512
_REQUEST_LENGTH_MAX: Final = 256
"""Longer ones are not remembered, so that the memory of decisions stays bounded in bytes too."""
_RELIST_S: Final = 1.0


class _Permissions:
    """The rules of one user, and the answers to requests that it has made."""

    __slots__ = ("answers", "node", "rules")

    def __init__(self, rules: GrantedRules, node: str) -> None:
        self.rules = rules
        self.node = node
        """The node whose agent it is; else empty."""
        self.answers: dict[tuple[str, str, str, str, str], _Names] = {}


class Authorizer:
    """Decides for one service. It refuses everyone but administrators until it is started."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._limits = core.env.limits
        self.index = RoleIndex()
        self.started = False
        self._permissions: dict[tuple[str, tuple[str, ...]], _Permissions] = {}
        self._answers = 0
        """How many answers are remembered, of all users."""
        self._watches: dict[str, StoreWatch] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.roles_changed = asyncio.Event()
        """Set after each change: `aggregation` waits for it."""
        metrics = core.env.metrics
        metrics.gauge("kedge_access_answers", "Answers of the authorizer that are remembered").set_function(
            lambda: self._answers
        )
        self._refused = metrics.counter("kedge_access_refused_total", "Requests refused by the authorizer", ("verb",))
        self._combinations = metrics.gauge(
            "kedge_access_combinations", "Combinations of rules in the role that was checked last"
        )
        self._relists = metrics.counter("kedge_access_relists_total", "Lists of rules after a broken watch", ("kind",))

    # -- decisions ---------------------------------------------------------------------------------

    def allows_nowait(self, caller: Caller, wanted: Attributes) -> bool | None:
        """Whether the caller may do this; None if it is an agent and an object must be read: await `allows`."""
        if MASTERS in caller.groups:
            return True
        permissions = self._permissions.get((caller.user, caller.groups))
        if permissions is None:
            permissions = self._permissions_of(caller)
        key = wanted[:5]
        try:
            names = permissions.answers[key]
        except KeyError:
            names = self._answer(permissions, wanted)
        if names is _EVERY_NAME or wanted.name in names:
            return True
        return node_access.allows_nowait(permissions.node, wanted) if permissions.node else False

    async def allows(self, caller: Caller, wanted: Attributes) -> bool:
        """Whether the caller may do this."""
        found = self.allows_nowait(caller, wanted)
        if found is None:
            found = await node_access.allows(self._core, node_of(caller.user, caller.groups), wanted)
        return found

    def check_nowait(self, caller: Caller, wanted: Attributes) -> bool:
        """Raise `Forbidden`, or return whether it is allowed; False means that it is not known: await `check`."""
        found = self.allows_nowait(caller, wanted)
        if found is False:
            raise self._refusal(caller, wanted)
        return found is not None

    async def check(self, caller: Caller, wanted: Attributes) -> None:
        """Raise `Forbidden` with the sentence of Kubernetes.

        Raises:
            NotFound: an agent reads a pod of another node. It may have had a pod of this name; the error shows
                that this pod is gone.
        """
        if await self.allows(caller, wanted):
            return
        if node_access.hides(node_of(caller.user, caller.groups), wanted):
            raise NotFound(f'pods "{wanted.name}" not found', key=Key(POD_KIND, wanted.namespace, wanted.name))
        raise self._refusal(caller, wanted)

    def allows_path(self, caller: Caller, verb: str, path: str) -> bool:
        """Whether the caller may request a path that is no resource."""
        return MASTERS in caller.groups or allows_path(self._permissions_of(caller).rules.everywhere, verb, path)

    def check_path(self, caller: Caller, verb: str, path: str) -> None:
        """Raise `Forbidden` with the sentence of Kubernetes."""
        if not self.allows_path(caller, verb, path):
            self._refused.labels(verb).inc()
            raise Forbidden(path_refusal(caller, verb, path))

    def rules_of(self, caller: Caller, namespace: str) -> tuple[PolicyRule, ...]:
        """Every rule that holds for the caller in a namespace, or at the cluster scope if it is empty."""
        if MASTERS in caller.groups:
            return EVERYTHING
        return self._permissions_of(caller).rules.within(namespace)

    def lacking(self, caller: Caller, namespace: str, rules: Sequence[PolicyRule]) -> list[PolicyRule]:
        """The parts of `rules` that the caller does not hold in a namespace, or at the cluster scope if it is empty."""
        self._combinations.set(combinations(rules))
        limit = self._limits.access_combinations_max
        return missing_rules(self.rules_of(caller, namespace), rules, combinations_max=limit)

    def _refusal(self, caller: Caller, wanted: Attributes) -> Forbidden:
        self._refused.labels(wanted.verb).inc()
        return Forbidden(refusal(caller, wanted))

    def _permissions_of(self, caller: Caller) -> _Permissions:
        key = caller.user, caller.groups
        found = self._permissions.get(key)
        if found is None:
            found = _Permissions(self.index.granted(caller.user, caller.groups), node_of(caller.user, caller.groups))
            if len(caller.user) + sum(map(len, caller.groups)) <= _USER_LENGTH_MAX:
                if len(self._permissions) >= self._limits.access_users_max:
                    self._forget()
                self._permissions[key] = found
        return found

    def _answer(self, permissions: _Permissions, wanted: Attributes) -> _Names:
        names: set[str] = set()
        found: _Names = frozenset()
        for rule in permissions.rules.within(wanted.namespace):
            if allows_kind_of(rule, wanted):
                if not rule.resource_names:
                    found = _EVERY_NAME
                    break
                names.update(rule.resource_names)
        else:
            found = frozenset(names)
        if sum(map(len, wanted[:5])) <= _REQUEST_LENGTH_MAX:
            if self._answers >= self._limits.access_answers_max:
                self._forget()
            else:
                permissions.answers[wanted[:5]] = found
                self._answers += 1
        return found

    def _forget(self) -> None:
        self._permissions.clear()
        self._answers = 0

    # -- following the store -----------------------------------------------------------------------

    async def start(self) -> None:
        """Read all rules, and follow their changes until `stop`."""
        for kind in INDEXED:
            await self._list(kind)
        self.started = True

    def stop(self) -> None:
        self.started = False
        for watch in self._watches.values():
            watch.on_ready = None
            watch.close()
        for task in self._tasks.values():
            task.cancel()

    async def _list(self, kind: str) -> None:
        listing = await self._core.store.list(kind)
        watch = await self._core.store.watch(kind, after=listing.revision)
        found = {entry.key for entry in listing.entries}
        for key in self.index.keys(kind):
            if key not in found:
                self.index.drop(key)
        for entry in listing.entries:
            self.index.put(self._core.object_of(entry))
        self._changed()
        self._watches[kind] = watch
        watch.on_ready = drain = partial(self._drain, kind, watch)
        drain()

    def _drain(self, kind: str, watch: StoreWatch) -> None:
        try:
            while (batch := watch.take_nowait()) is not None:
                for change in batch.changes:
                    if change.entry is None:
                        self.index.drop(change.key)
                    else:
                        self.index.put(self._core.object_of(change.entry))
                if batch.changes:
                    self._changed()
        except (OperatingError, StopAsyncIteration):
            watch.on_ready = None
            self._tasks[kind] = self._core.env.spawn(self._relist(kind), name=f"rules of {kind}")

    async def _relist(self, kind: str) -> None:
        """Read a kind again after its watch broke. Until then the last known rules count."""
        while True:
            self._relists.labels(kind).inc()
            try:
                await self._list(kind)
            except OperatingError:
                await asyncio.sleep(_RELIST_S)
            else:
                return

    def _changed(self) -> None:
        self._forget()
        self.roles_changed.set()
