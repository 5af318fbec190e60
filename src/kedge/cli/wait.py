"""`kedge wait`: wait until objects fulfil a condition, exist, or are gone."""

from __future__ import annotations

import click

from kedge.cli.resources.arguments import SELECTOR, check_targets
from kedge.cli.resources.durations import DURATION
from kedge.cli.resources.session import ServerChoice, Session, cluster_options, run_session
from kedge.cli.resources.shell_completion import complete_objects


@click.command()
@click.argument(
    "words", nargs=-1, required=True, metavar="TYPE NAME... | TYPE/NAME...", shell_complete=complete_objects
)
@click.option(
    "--for",
    "until",
    required=True,
    metavar="condition=C[=S] | jsonpath=T[=V] | create | delete",
    help="The condition.",
)
@click.option("--selector", "-l", type=SELECTOR, default="", help="Wait for every object with these labels.")
@click.option("--all", "everything", is_flag=True, help="Wait for every object of the type in the namespace.")
@click.option("--timeout", "timeout_s", type=DURATION, default="30s", show_default=True, help="How long.")
@cluster_options
def wait(
    choice: ServerChoice, words: tuple[str, ...], until: str, selector: str, everything: bool, timeout_s: float
) -> None:
    """Wait, such as `kedge wait deploy/web --for=condition=Available --timeout=60s`. Exit code 1 if it takes longer."""
    check_targets(words, selector=selector, everything=everything)
    from kedge.cli.resources.wait_condition import condition_of, wait_for

    condition = condition_of(until)

    async def work(session: Session) -> None:
        await wait_for(session, words, condition, selector=selector, timeout_s=timeout_s)

    run_session(choice, work)
