"""Completion of arguments in a shell: resource types and names of objects. Any failure gives no suggestions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMPLETE_S = 1.0
"""A server that takes longer gives no suggestions: a person waits for them."""
NAMES_MAX = 200


def complete_objects(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Types before the first argument, then names of that type; after `TYPE/` names too."""
    return _complete(ctx, list(ctx.params.get(param.name or "") or ()), incomplete)


def complete_pods(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of pods; after `TYPE/` names of that type. Nothing after the first argument, such as a container."""
    return [] if ctx.params.get(param.name or "") else _complete(ctx, ["pods"], incomplete)


def complete_output(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The formats of `kedge get -o`."""
    del ctx, param
    from click.shell_completion import CompletionItem

    from kedge.cli.resources.output import OBJECT_FORMATS, TABLE_FORMATS

    formats = (*TABLE_FORMATS, *OBJECT_FORMATS, "jsonpath=")
    return [CompletionItem(each) for each in formats if each.startswith(incomplete)]


def _complete(ctx: click.Context, taken: list[str], incomplete: str) -> list[CompletionItem]:
    import asyncio

    from kedge.errors import KedgeError

    try:
        return asyncio.run(_suggestions(ctx, taken, incomplete))
    except (KedgeError, click.ClickException, OSError, TimeoutError):
        return []


async def _suggestions(ctx: click.Context, taken: list[str], incomplete: str) -> list[CompletionItem]:
    import asyncio

    from click.shell_completion import CompletionItem

    from kedge.cli.resources.session import ServerChoice, open_session

    chosen = {name: ctx.params.get(name) for name in ("kubeconfig", "state")}
    choice = ServerChoice(
        chosen["kubeconfig"], ctx.params.get("context") or "", chosen["state"], ctx.params.get("namespace") or ""
    )
    async with asyncio.timeout(COMPLETE_S), open_session(choice) as session:
        catalog = await session.catalog()
        word, slash, _ = incomplete.partition("/")
        if not taken and not slash:
            words = [each.plural for each in catalog.types]
        else:
            (kind, *_) = catalog.resolve(word if slash else taken[0])
            path = session.path(kind)
            listed = await session.rest.call("GET", path, query={"limit": str(NAMES_MAX)})
            prefix = f"{word}/" if slash else ""
            words = [f"{prefix}{each['metadata']['name']}" for each in listed.get("items") or ()]
        return [CompletionItem(each) for each in words if each.startswith(incomplete)]
