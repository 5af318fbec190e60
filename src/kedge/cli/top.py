"""`kedge top`: CPU and memory that nodes and pods use."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from kedge.cli.resources.arguments import SELECTOR
from kedge.cli.resources.session import ServerChoice, Session, cluster_options, run_session

KINDS = {"node": "nodes", "nodes": "nodes", "no": "nodes", "pod": "pods", "pods": "pods", "po": "pods"}


@click.command()
@click.argument("what", type=click.Choice(sorted(KINDS)), metavar="nodes|pods")
@click.argument("name", default="")
@click.option("--all-namespaces", "-A", "everywhere", is_flag=True, help="Every namespace.")
@click.option("--selector", "-l", type=SELECTOR, default="", help="Labels, such as app=web.")
@click.option("--containers", is_flag=True, help="A row for each container of the pods.")
@click.option("--sort-by", type=click.Choice(["cpu", "memory"]), help="The largest first.")
@click.option("--no-headers", is_flag=True, help="Without the line of column names.")
@cluster_options
def top(
    choice: ServerChoice,
    what: str,
    name: str,
    everywhere: bool,
    selector: str,
    containers: bool,
    sort_by: str | None,
    no_headers: bool,
) -> None:
    """Print usage as the nodes reported it last."""
    if containers and KINDS[what] == "nodes":
        raise click.UsageError("--containers is for pods: a node has none of its own")
    if name and (selector or everywhere):
        raise click.UsageError(f"a name goes with neither -l nor -A: leave out {name} or the others")
    from kedge.api.wellknown import METRICS_GROUP
    from kedge.cli.resources.output import format_rows
    from kedge.cli.resources.usage import node_usage_rows, pod_usage_rows
    from kedge.errors import Terminal

    async def work(session: Session) -> None:
        plural = KINDS[what]
        scope = "" if plural == "nodes" or everywhere else f"/namespaces/{quote(session.namespace, safe='')}"
        path = f"/apis/{METRICS_GROUP}/v1beta1{scope}/{plural}" + (f"/{quote(name, safe='')}" if name else "")
        query = {"labelSelector": selector} if selector else {}
        found: Any = await session.rest.call("GET", path, query=query)
        items = [found] if name else found.get("items") or []
        if plural == "nodes":
            (kind,) = (await session.catalog()).resolve("nodes")
            nodes = [await session.get(kind, name)] if name else await session.list(kind, query)
            header, rows = node_usage_rows(items, nodes, sort_by=sort_by or "")
        else:
            header, rows = pod_usage_rows(items, namespaces=everywhere, containers=containers, sort_by=sort_by or "")
        if not rows:
            raise Terminal(f"no usage of {plural} is reported yet: nodes report every few seconds, try again")
        click.echo(format_rows(None if no_headers else header, rows))

    run_session(choice, work)
