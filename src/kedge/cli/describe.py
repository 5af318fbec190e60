"""`kedge describe`: one object in full, with its events."""

from __future__ import annotations

import click

from kedge.cli.resources.arguments import SELECTOR, check_words, has_names
from kedge.cli.resources.session import ServerChoice, Session, cluster_options, run_session
from kedge.cli.resources.shell_completion import complete_objects


@click.command()
@click.argument(
    "words", nargs=-1, required=True, metavar="TYPE [NAME...] | TYPE/NAME...", shell_complete=complete_objects
)
@click.option("--selector", "-l", type=SELECTOR, default="", help="Describe the objects with these labels.")
@cluster_options
def describe(choice: ServerChoice, words: tuple[str, ...], selector: str) -> None:
    """Print everything about objects for a reader: fields, conditions, events."""
    check_words(words)
    if selector and has_names(words):
        raise click.UsageError("a name goes without -l: leave out the name or -l")
    from kedge.cli.resources.description import description, events_of
    from kedge.cli.resources.session import references

    async def work(session: Session) -> None:
        texts = []
        for kind, name in await references(session, words):
            query = {"labelSelector": selector} if selector else {}
            found = [await session.get(kind, name)] if name else await session.list(kind, query)
            for body in found:
                texts.append(description(body, await events_of(session, kind, body)))
        if not texts:
            click.echo("No resources found.", err=True)
        click.echo("\n\n".join(texts), nl=bool(texts))

    run_session(choice, work)
