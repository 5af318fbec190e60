"""An identity for each controller of a process: its user, its role, and the transport that sends its writes as it.

Both are derived from the `writes` of its `ControllerSpec`, so that a declaration is all there is to keep. Reads of all
controllers come from caches that they share, and are made by the process itself: decision 56.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
from functools import cache
from typing import Any

import msgspec

from kedge.api.access import CONTROLLERS
from kedge.api.requests import OpenWatch, Reply, Request, WatchEvent
from kedge.api.views import PolicyRule
from kedge.cli.kept_decisions import idle_runtime
from kedge.client.contract import Transport, WrappedTransport
from kedge.controllers import all_controllers
from kedge.env import system_env
from kedge.runtime import ControllerSpec, WriteRight
from kedge.server.service.access.role_table import EVENT_WRITER, DefaultRole, rule

USER_PREFIX = "system:controller:"
"""The user of a controller, and the name of its role, is this and its name."""
IDENTITIES_ROLE = "kedge:controller-identities"


@cache
def controller_specs() -> tuple[ControllerSpec, ...]:
    """The declaration of every controller."""
    return tuple(each.spec for each in all_controllers(idle_runtime(system_env()), leases=False))


def controller_users() -> dict[str, str]:
    """The user of each controller, by its name, which is the beginning of its decision ids."""
    return {spec.name: f"{USER_PREFIX}{spec.name}" for spec in controller_specs()}


def controller_roles() -> tuple[DefaultRole, ...]:
    """The role of each controller, and the one that lets a process of controllers act as them."""
    users = controller_users()
    roles = [
        DefaultRole(users[spec.name], (*rules_of_writes(spec.writes or ()), EVENT_WRITER), users=(users[spec.name],))
        for spec in controller_specs()
    ]
    acting = PolicyRule(
        verbs=("impersonate",), api_groups=("",), resources=("users",), resource_names=tuple(users.values())
    )
    return (*roles, DefaultRole(IDENTITIES_ROLE, (acting,), groups=(CONTROLLERS,)))


def rules_of_writes(rights: Iterable[WriteRight]) -> tuple[PolicyRule, ...]:
    """Rules that allow these writes: one for each resource, with all its verbs."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for verb, kind, part in rights:
        group, plural = (kind.group, kind.plural) if kind is not None else ("*", "*")
        verbs.setdefault((group, f"{plural}/{part}" if part else plural), []).append(verb)
    return tuple(rule(tuple(found), group, resource) for (group, resource), found in verbs.items())


class ControllerIdentities(WrappedTransport):
    """Implements `client.contract.Transport`: a write of a controller's decision is sent as the controller's user."""

    def __init__(self, transport: Transport, users: Mapping[str, str] | None = None) -> None:
        super().__init__(transport)
        self._users = controller_users() if users is None else users

    def send(self, request: Request[Reply]) -> Coroutine[Any, Any, Reply]:
        if not request.reads:
            user = self._users.get(request.options.origin.decision.partition(":")[0])
            if user is not None:
                replace = msgspec.structs.replace
                request = replace(request, options=replace(request.options, acting_as=user))
        return self._transport.send(request)

    def open_watch(self, request: OpenWatch) -> Coroutine[Any, Any, AsyncGenerator[WatchEvent, None]]:
        return self._transport.open_watch(request)
