"""`kedge describe`: one object in full, with its events."""

from __future__ import annotations

from pathlib import Path

import click

from kedge.cli.recording_option import at_option, check_at, recording_option
from kedge.cli.resources.arguments import SELECTOR, check_words, has_names
from kedge.cli.resources.session import ServerChoice, Session, cluster_options
from kedge.cli.resources.shell_completion import complete_objects


@click.command()
@click.argument(
    "words", nargs=-1, required=True, metavar="TYPE [NAME...] | TYPE/NAME...", shell_complete=complete_objects
)
@click.option("--selector", "-l", type=SELECTOR, default="", help="Describe the objects with these labels.")
@recording_option
@at_option()
@cluster_options
def describe(
    choice: ServerChoice, words: tuple[str, ...], selector: str, recording: Path | None, at: str | None
) -> None:
    """Print everything about objects for a reader: fields, conditions, events. A recording has no events."""
    check_at(recording, at)
    check_words(words)
    if selector and has_names(words):
        raise click.UsageError("a name goes without -l: leave out the name or -l")
    from kedge.cli.resources.description import description, events_of
    from kedge.cli.resources.recorded_session import run_reading
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

    run_reading(choice, recording, at, work)
