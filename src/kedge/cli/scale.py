"""`kedge scale`: set the number of replicas of workloads."""

from __future__ import annotations

from typing import Any

import click

from kedge.cli.resources.arguments import SELECTOR, check_targets
from kedge.cli.resources.manifests_option import FILES_OPTION, RECURSIVE_OPTION
from kedge.cli.resources.session import ServerChoice, Session, cluster_options, run_session
from kedge.cli.resources.shell_completion import complete_objects


@click.command()
@click.argument("words", nargs=-1, metavar="[TYPE NAME... | TYPE/NAME...]", shell_complete=complete_objects)
@FILES_OPTION
@RECURSIVE_OPTION
@click.option("--selector", "-l", type=SELECTOR, default="", help="Scale the objects with these labels.")
@click.option("--all", "everything", is_flag=True, help="Scale every object of the type in the namespace.")
@click.option("--replicas", type=click.IntRange(0), required=True, help="How many replicas there should be.")
@click.option("--current-replicas", type=click.IntRange(0), help="Only if this many are wanted now.")
@cluster_options
def scale(
    choice: ServerChoice,
    words: tuple[str, ...],
    filenames: tuple[str, ...],
    replicas: int,
    current_replicas: int | None,
    **how: Any,
) -> None:
    """Set the number of replicas, such as `kedge scale deploy/web --replicas=3`."""
    check_targets(words, filenames, selector=how["selector"], everything=how["everything"])
    from kedge.cli.resources.targets import Target, targets
    from kedge.errors import Conflict, NotFound, Terminal

    async def scaled(session: Session, target: Target) -> None:
        kind, namespace, name = target
        if "scale" not in kind.subresources:
            raise Terminal(f"a {kind.kind} has no replicas to scale: scale a Deployment or ReplicaSet")
        metadata = {}
        if current_replicas is not None:
            now = await session.rest.call("GET", session.path(kind, name, "scale", namespace))
            found = now["spec"].get("replicas", 0)
            if found != current_replicas:
                raise Conflict(
                    f"{target.words} has {found} replicas and not {current_replicas}: give the number that it has"
                )
            metadata = {"resourceVersion": now["metadata"]["resourceVersion"]}
        body = {"metadata": metadata, "spec": {"replicas": replicas}}
        await session.patch(kind, name, body, subresource="scale", namespace=namespace)
        click.echo(f"{target.words} scaled")

    async def work(session: Session) -> None:
        chosen = await targets(session, words, filenames, **how)
        if not chosen:
            raise NotFound(f"no object in the namespace {session.namespace} matches: check -l and -n")
        for target in chosen:
            await scaled(session, target)

    run_session(choice, work)
