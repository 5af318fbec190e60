"""`kedge delete`: delete objects by name, by label or by manifest, and wait until they are gone."""

from __future__ import annotations

from typing import Any

import click

from kedge.cli.resources.arguments import DRY_RUN_OPTION, SELECTOR, check_grace, check_targets
from kedge.cli.resources.durations import DURATION
from kedge.cli.resources.manifests_option import FILES_OPTION, RECURSIVE_OPTION
from kedge.cli.resources.session import ServerChoice, Session, cluster_options, run_session
from kedge.cli.resources.shell_completion import complete_objects


@click.command()
@click.argument("words", nargs=-1, metavar="[TYPE NAME... | TYPE/NAME...]", shell_complete=complete_objects)
@FILES_OPTION
@RECURSIVE_OPTION
@click.option("--selector", "-l", type=SELECTOR, default="", help="Delete the objects with these labels.")
@click.option("--all", "everything", is_flag=True, help="Delete every object of the type in the namespace.")
@click.option("--cascade", type=click.Choice(["background", "foreground", "orphan"]), default="background")
@click.option("--grace-period", "grace_s", type=int, default=-1, help="Seconds that a pod may take to stop.")
@click.option("--now", is_flag=True, help="The same as --grace-period=1.")
@click.option("--force", is_flag=True, help="Remove the object at once; its process may run a while longer.")
@click.option("--ignore-not-found", is_flag=True, help="An object that does not exist is no error.")
@click.option("--wait/--no-wait", "wait", default=True, help="Wait until the objects are gone.")
@DRY_RUN_OPTION
@click.option("--timeout", "timeout_s", type=DURATION, default="0s", help="How long to wait; 0s has no end.")
@cluster_options
def delete(choice: ServerChoice, words: tuple[str, ...], filenames: tuple[str, ...], **options: Any) -> None:
    """Delete objects, such as `kedge delete pod NAME`, `kedge delete deploy -l app=web` or `kedge delete -f FILE`."""
    check_targets(words, filenames, selector=options["selector"], everything=options["everything"])
    check_grace(grace_s=options["grace_s"], now=options["now"], force=options["force"])
    from kedge.cli.resources.deletion import Deletion

    async def work(session: Session) -> None:
        await Deletion(session, options).run(words, filenames)

    run_session(choice, work)
