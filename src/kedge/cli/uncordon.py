"""`kedge uncordon`: let nodes have new pods again."""

from __future__ import annotations

import click

from kedge.cli.resources.arguments import SELECTOR, check_nodes
from kedge.cli.resources.session import ServerChoice, Session, cluster_options, run_session


@click.command()
@click.argument("nodes", nargs=-1)
@click.option("--selector", "-l", type=SELECTOR, default="", help="Nodes with these labels, instead of names.")
@cluster_options
def uncordon(choice: ServerChoice, nodes: tuple[str, ...], selector: str) -> None:
    """Mark nodes as schedulable."""
    check_nodes(nodes, selector)
    from kedge.cli.resources.nodes import chosen_nodes, set_unschedulable

    async def work(session: Session) -> None:
        await set_unschedulable(session, await chosen_nodes(session, nodes, selector), unschedulable=False)

    run_session(choice, work)
