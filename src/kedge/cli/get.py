"""`kedge get`: objects of any type, as the server's tables or in full; with `--watch` as they change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kedge.cli.recording_option import at_option, check_at, recording_option
from kedge.cli.resources.arguments import SELECTOR
from kedge.cli.resources.manifests_option import FILES_OPTION, RECURSIVE_OPTION
from kedge.cli.resources.session import ServerChoice, Session, cluster_options
from kedge.cli.resources.shell_completion import complete_objects, complete_output


@click.command()
@click.argument("words", nargs=-1, metavar="TYPE [NAME...] | TYPE/NAME...", shell_complete=complete_objects)
@FILES_OPTION
@RECURSIVE_OPTION
@click.option("--all-namespaces", "-A", "everywhere", is_flag=True, help="Every namespace.")
@click.option("--selector", "-l", type=SELECTOR, default="", help="Labels, such as app=web.")
@click.option("--field-selector", default="", help="Fields, such as spec.nodeName=node-1.")
@click.option(
    "--output",
    "-o",
    default="table",
    metavar="table|wide|json|yaml|name|jsonpath=T",
    shell_complete=complete_output,
    help="How to print.",
)
@click.option("--sort-by", default="", metavar="JSONPATH", help="Order by a field, such as .metadata.name.")
@click.option("--watch", "-w", is_flag=True, help="Then print each change, until Ctrl-C.")
@click.option("--watch-only", is_flag=True, help="Print each change without the list before it, until Ctrl-C.")
@click.option("--output-watch-events", is_flag=True, help="Print each change of a watch with the type of its event.")
@click.option("--no-headers", is_flag=True, help="Without the line of column names.")
@click.option("--show-labels", is_flag=True, help="With a column of labels.")
@click.option("--label-columns", "-L", multiple=True, metavar="LABEL,...", help="With a column for each label.")
@click.option("--ignore-not-found", is_flag=True, help="A name that does not exist is no error.")
@click.option("--types", is_flag=True, help="List the resource types of the server instead.")
@recording_option
@at_option()
@cluster_options
def get(
    choice: ServerChoice,
    words: tuple[str, ...],
    filenames: tuple[str, ...],
    types: bool,
    recording: Path | None,
    at: str | None,
    **options: Any,
) -> None:
    """Print objects, such as `kedge get pods`, `kedge get deploy/web -o yaml` or `kedge get pods -A -w`."""
    from kedge.cli.resources.object_list import TypeListing, check_listing, print_types
    from kedge.cli.resources.recorded_session import run_reading

    check_at(recording, at)
    if recording is not None and (options["watch"] or options["watch_only"]):
        raise click.UsageError("a recording does not change: leave out --watch, or move with --at")
    if not types:
        check_listing(words, filenames, options)

    async def work(session: Session) -> None:
        if types:
            await print_types(session)
        else:
            await TypeListing(session, _query(options), options).run(words, filenames)

    run_reading(choice, recording, at, work)


def _query(options: Mapping[str, Any]) -> dict[str, str]:
    query = {"labelSelector": options["selector"], "fieldSelector": options["field_selector"]}
    return {name: value for name, value in query.items() if value}
