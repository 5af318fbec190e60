"""The work of `kedge wait`: objects are read again until each fulfils the condition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click

from kedge.cli.resources.arguments import wrong_values
from kedge.cli.resources.catalog import ResourceType
from kedge.cli.resources.jsonpath import JsonPath
from kedge.cli.resources.session import IncompleteCommand, Session, references
from kedge.errors import NotFound

POLL_S = 0.2
Holds = Callable[[Mapping[str, Any] | None], bool]


class WaitCondition(NamedTuple):
    """The value of `--for`."""

    text: str
    holds: Holds
    verdict: str
    """The words for success."""


def condition_of(text: str) -> WaitCondition:
    """The condition behind `--for`.

    Raises:
        UsageError: there is no such condition.
    """
    word, _, rest = text.partition("=")
    if text == "delete":
        return WaitCondition(text, lambda found: found is None, "deleted")
    if text == "create":
        return WaitCondition(text, lambda found: found is not None, "created")
    name, _, status = rest.partition("=")
    if word == "condition" and name:
        return WaitCondition(text, lambda found: _has_condition(found, name, status or "True"), "condition met")
    if word == "jsonpath" and rest:
        template, separator, value = rest.rpartition("}=")
        with wrong_values():
            path = JsonPath(f"{template}}}".strip("'\"") if separator else rest.strip("'\""))
        return WaitCondition(
            text, lambda found: _has_value(found, path, value.strip("'\"") if separator else None), "condition met"
        )
    raise click.UsageError(
        f"--for={text} is not known: use condition=NAME, jsonpath='{{.path}}'=VALUE, create or delete"
    )


def _has_value(found: Mapping[str, Any] | None, path: JsonPath, value: str | None) -> bool:
    """Whether the path has the value; any value, if None is given."""
    if found is None:
        return False
    return bool(path.values(found)) if value is None else path.text(found) == value


def _has_condition(found: Mapping[str, Any] | None, name: str, status: str) -> bool:
    if found is None:
        return False
    state = found.get("status") or {}
    generation = found["metadata"].get("generation", 0)
    if state.get("observedGeneration", generation) < generation:
        return False  # the condition is about an older spec
    return any(
        each.get("type", "").lower() == name.lower() and each.get("status", "").lower() == status.lower()
        for each in state.get("conditions") or ()
    )


async def wait_for(
    session: Session, words: Sequence[str], until: WaitCondition, *, selector: str, timeout_s: float
) -> None:
    """
    Raises:
        NotFound: an object does not exist, and the condition is about its state.
        IncompleteCommand: the time is over.
    """
    waiting: list[tuple[ResourceType, str]] = []
    for kind, name in await references(session, words):
        if name:
            waiting.append((kind, name))
            continue
        listed = await session.list(kind, {"labelSelector": selector} if selector else {})
        if not listed and until.text != "delete":
            raise NotFound(f"no {kind.plural} match in the namespace {session.namespace}: check -l and -n")
        waiting += [(kind, each["metadata"]["name"]) for each in listed]
    may_be_absent = until.text in ("create", "delete")
    try:
        async with asyncio.timeout(timeout_s):
            while waiting:
                kind, name = waiting[0]
                found = await session.find(kind, name) if may_be_absent else await session.get(kind, name)
                if until.holds(found):
                    click.echo(f"{kind.label}/{name} {until.verdict}")
                    waiting.pop(0)
                else:
                    await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        kind, name = waiting[0]
        raise IncompleteCommand(
            f"{kind.label}/{name} did not reach {until.text} in {timeout_s:g} s: `kedge why {name}` may know the reason"
        ) from error
