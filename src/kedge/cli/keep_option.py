"""`--decisions-tenants`: the namespaces about which a process keeps every decision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kedge.observe.recording.rules import KeepRules

OPTION = "--decisions-tenants"
DECISIONS_TENANTS_OPTION = click.option(
    OPTION,
    multiple=True,
    metavar="NAMESPACE",
    help="Keep every decision about this namespace; may be repeated.",
)


def keep_rules(tenants: Iterable[str]) -> KeepRules:
    """The rules of a process with the tenants of its option. The priority is a limit."""
    from kedge.observe.recording.rules import KeepRules

    return KeepRules(tenants=frozenset(tenants))


def arguments_of(tenants: Iterable[str]) -> list[str]:
    """The option for another process of kedge."""
    return [word for each in tenants for word in (OPTION, each)]
