"""`kedge apply`: make objects as their manifests declare them, by the three-way merge that kubectl does."""

from __future__ import annotations

import click

from kedge.cli.resources.arguments import DRY_RUN_OPTION, DRY_RUNS
from kedge.cli.resources.manifests_option import FILES_OPTION, RECURSIVE_OPTION
from kedge.cli.resources.next_steps import with_next_step
from kedge.cli.resources.session import ServerChoice, Session, cluster_options, run_session


@click.command()
@FILES_OPTION
@RECURSIVE_OPTION
@DRY_RUN_OPTION
@click.option("--output", "-o", default="", metavar="json|yaml|name|jsonpath=T", help="Print the objects instead.")
@click.option("--server-side", is_flag=True, hidden=True)
@click.option("--prune", is_flag=True, hidden=True)
@cluster_options
def apply(
    choice: ServerChoice,
    filenames: tuple[str, ...],
    recursive: bool,
    dry_run: str,
    output: str,
    server_side: bool,
    prune: bool,
) -> None:
    """Create or change the objects of manifests, and leave alone the fields that manifests never named."""
    if server_side:
        raise click.UsageError("there is no --server-side here: leave it out, or use `kubectl apply --server-side`")
    if prune:
        raise click.UsageError("there is no --prune here: leave it out, and remove objects with `kedge delete -f FILE`")
    from kedge.cli.resources.manifests import read_manifests
    from kedge.cli.resources.output import OBJECT_FORMATS, check_output, print_objects
    from kedge.cli.resources.session import IncompleteCommand
    from kedge.cli.resources.three_way_merge import apply_manifest
    from kedge.errors import OperatingError

    if not filenames:
        raise click.UsageError("name a manifest with -f FILE, a folder with -f DIR, or use -f - for stdin")
    if output:
        check_output(output, OBJECT_FORMATS)

    async def work(session: Session) -> None:
        failed = 0
        for manifest in read_manifests(filenames, recursive=recursive):
            try:
                done = await apply_manifest(session, manifest, dry_run=dry_run)
            except OperatingError as error:
                # The others do not depend on it: as with kubectl, they are applied, and the exit code is 1.
                click.echo(f"Error: {manifest.where}: {with_next_step(error)}", err=True)
                failed += 1
                continue
            if output:
                print_objects(output, [(done.kind, done.body)], single=True)
            else:
                suffix = DRY_RUNS[dry_run]
                click.echo(f"{done.kind.label}/{done.body['metadata']['name']} {done.verdict}{suffix}")
        if failed:
            raise IncompleteCommand(f"{failed} objects were not applied: correct them and apply again")

    run_session(choice, work)
