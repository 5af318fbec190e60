"""`kedge rollout`: follow, list, undo, restart, pause and resume the rollouts of Deployments."""

from __future__ import annotations

from typing import Any

import click

from kedge.cli.resources.arguments import check_named
from kedge.cli.resources.durations import DURATION
from kedge.cli.resources.session import ServerChoice, Session, cluster_options, run_session


@click.group()
def rollout() -> None:
    """Rollouts of Deployments: each change of the template is a revision."""


def _run(choice: ServerChoice, words: tuple[str, ...], verb: str, **options: Any) -> None:
    check_named(words)
    from kedge.cli.resources.rollouts import RolloutVerbs

    async def work(session: Session) -> None:
        verbs = RolloutVerbs(session)
        for name in await verbs.names(words):
            await getattr(verbs, verb)(name, **options)

    run_session(choice, work)


WORDS = click.argument("words", nargs=-1, required=True, metavar="deployment/NAME | deployment NAME")


@rollout.command()
@WORDS
@click.option("--watch/--no-watch", "watch", default=True, help="Wait until the rollout is done.")
@click.option("--timeout", "timeout_s", type=DURATION, default="0s", help="How long to wait; 0s has no end.")
@click.option("--revision", type=click.IntRange(0), default=0, help="Fail if another revision is rolled out; 0 is any.")
@cluster_options
def status(choice: ServerChoice, words: tuple[str, ...], watch: bool, timeout_s: float, revision: int) -> None:
    """Print the state of a rollout until it is done. Exit code 1 if it fails."""
    _run(choice, words, "status", watch=watch, timeout_s=timeout_s, revision=revision)


@rollout.command()
@WORDS
@click.option("--revision", type=click.IntRange(1), default=None, help="Print the template of this revision.")
@cluster_options
def history(choice: ServerChoice, words: tuple[str, ...], revision: int | None) -> None:
    """List the revisions that are kept."""
    _run(choice, words, "history", revision=revision)


@rollout.command()
@WORDS
@click.option("--to-revision", "revision", type=click.IntRange(0), default=0, help="0 is the one before the newest.")
@cluster_options
def undo(choice: ServerChoice, words: tuple[str, ...], revision: int) -> None:
    """Go back to the template of an earlier revision."""
    _run(choice, words, "undo", revision=revision)


@rollout.command()
@WORDS
@cluster_options
def restart(choice: ServerChoice, words: tuple[str, ...]) -> None:
    """Replace every pod, in the way that a change of the template does."""
    _run(choice, words, "restart")


@rollout.command()
@WORDS
@cluster_options
def pause(choice: ServerChoice, words: tuple[str, ...]) -> None:
    """Hold changes of the template back until `resume`."""
    _run(choice, words, "pause")


@rollout.command()
@WORDS
@cluster_options
def resume(choice: ServerChoice, words: tuple[str, ...]) -> None:
    """Let changes of the template go on."""
    _run(choice, words, "resume")
