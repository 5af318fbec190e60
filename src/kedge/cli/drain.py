"""`kedge drain`: evict the pods of nodes, within disruption budgets."""

from __future__ import annotations

from typing import Any

import click

from kedge.cli.resources.arguments import DRY_RUN_OPTION, SELECTOR, check_nodes
from kedge.cli.resources.durations import DURATION
from kedge.cli.resources.session import ServerChoice, Session, cluster_options, run_session


@click.command()
@click.argument("nodes", nargs=-1)
@click.option("--selector", "-l", type=SELECTOR, default="", help="Nodes with these labels, instead of names.")
@click.option("--pod-selector", type=SELECTOR, default="", help="Evict only pods with these labels.")
@click.option("--ignore-daemonsets", is_flag=True, help="Leave pods of DaemonSets, which would come back.")
@click.option("--force", is_flag=True, help="Also evict pods without a controller, which nothing replaces.")
@click.option("--delete-emptydir-data", is_flag=True, help="Also evict pods with emptyDir volumes: their data is lost.")
@click.option("--disable-eviction", is_flag=True, help="Delete the pods instead, whatever their budgets forbid.")
@DRY_RUN_OPTION
@click.option("--grace-period", "grace_s", type=int, default=-1, help="Seconds that a pod may take to stop.")
@click.option("--timeout", "timeout_s", type=DURATION, default="0s", help="How long to try; 0s has no end.")
@cluster_options
def drain(choice: ServerChoice, nodes: tuple[str, ...], selector: str, **options: Any) -> None:
    """Cordon nodes and evict their pods. An eviction that a disruption budget forbids is tried again."""
    check_nodes(nodes, selector)
    from kedge.cli.resources.nodes import chosen_nodes, drain_node, set_unschedulable

    async def work(session: Session) -> None:
        chosen = await chosen_nodes(session, nodes, selector)
        await set_unschedulable(session, chosen, unschedulable=True, progress=True, dry_run=options["dry_run"])
        for node in chosen:
            await drain_node(session, node, options)

    run_session(choice, work)
