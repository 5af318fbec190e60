"""The view of a running cluster: nodes, and each workload by the stages of its replicas.

On a terminal it is a table that is drawn in place and removed at the end; elsewhere a line for each change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
import msgspec

from kedge.api.conditions import is_true
from kedge.api.requests import ListOptions
from kedge.api.views import DeploymentView, NodeView
from kedge.api.wellknown import DEPLOYMENT_KIND, NODE_KIND
from kedge.client.contract import Client
from kedge.errors import KedgeError

if TYPE_CHECKING:
    from rich.console import RenderableType

PERIOD_S = 0.5
_NAME_WIDTH = 40
"""Characters of a workload's name that stay on one line of a narrow terminal."""
STAGES = ("admitted", "queued", "scheduled", "bound", "starting", "ready", "serving")


class WorkloadStages(msgspec.Struct, frozen=True):
    """One workload at one moment."""

    name: str
    desired: int
    counts: tuple[int, ...]
    """By stage, in the order of `STAGES`."""
    unknown: int
    leaving: int
    note: str
    """Why replicas lag, or the last error."""

    def line(self) -> str:
        stages = [f"{count} {stage}" for stage, count in zip(STAGES, self.counts, strict=True) if count]
        unknown = [f"{self.unknown} unknown"] if self.unknown else []
        leaving = [f"{self.leaving} leaving"] if self.leaving else []
        note = f" ({self.note})" if self.note else ""
        return f"{self.name}: {', '.join([*stages, *unknown, *leaving]) or 'no replica'} of {self.desired}{note}"


class ClusterStages(msgspec.Struct, frozen=True):
    """The cluster at one moment."""

    nodes_ready: int
    nodes: int
    workloads: tuple[WorkloadStages, ...]

    def lines(self) -> dict[str, str]:
        """Lines by subject."""
        return {
            "nodes": f"{self.nodes_ready} of {self.nodes} nodes are ready",
            **{each.name: each.line() for each in self.workloads},
        }


async def read_stages(client: Client) -> ClusterStages:
    nodes = (await client.list(client.kinds.of_key_kind(NODE_KIND), ListOptions())).objects
    found = (await client.list(client.kinds.of_key_kind(DEPLOYMENT_KIND), ListOptions())).objects
    ready = sum(is_true(each.as_view(NodeView).status.conditions, "Ready") for each in nodes)
    return ClusterStages(ready, len(nodes), tuple(_stages_of(each.as_view(DeploymentView)) for each in found))


def _stages_of(view: DeploymentView) -> WorkloadStages:
    progress = view.status.progress
    counts = tuple(getattr(progress.stages, stage) for stage in STAGES)
    reasons = [f"{each.count} {each.stage}: {each.reason}" for each in progress.pending if each.reason]
    note = progress.last_error or "; ".join(reasons)
    return WorkloadStages(
        f"{view.namespace}/{view.name}", view.spec.replicas, counts, progress.unknown, progress.leaving, note
    )


async def show_stages(client: Client, *, terminal: bool) -> None:
    """Show the stages until cancelled."""
    if terminal:
        await _show_table(client)
    else:
        await _show_lines(client)


async def _show_lines(client: Client) -> None:
    shown: dict[str, str] = {}

    def show(found: ClusterStages) -> None:
        lines = found.lines()
        for subject, line in lines.items():
            if shown.get(subject) != line:
                click.echo(line, err=True)
        for subject in shown.keys() - lines.keys():
            click.echo(f"{subject}: deleted", err=True)
        shown.clear()
        shown.update(lines)

    await _follow(client, show)


async def _show_table(client: Client) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:
        await _follow(client, lambda found: live.update(_table(found), refresh=True))


async def _follow(client: Client, show: Callable[[ClusterStages], Any]) -> None:
    last: ClusterStages | None = None
    while True:
        with suppress(KedgeError):  # a store in trouble: the view waits, and the cluster reports it
            found = await read_stages(client)
            if found != last:
                show(found)
                last = found
        await asyncio.sleep(PERIOD_S)


def _table(found: ClusterStages) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    widest = max((len(each.name) for each in found.workloads), default=0)
    table.add_column("WORKLOAD", overflow="fold", min_width=min(_NAME_WIDTH, widest))
    for title in ("WANTED", *(stage.upper() for stage in STAGES), ""):
        table.add_column(title)
    for each in found.workloads:
        style = "green" if each.counts[-1] + each.counts[-2] >= each.desired else "yellow"
        counts = [str(count) if count else "." for count in each.counts]
        table.add_row(each.name, str(each.desired), *counts, each.note, style=style)
    table.caption = f"{found.nodes_ready} of {found.nodes} nodes are ready; Ctrl-C stops the cluster"
    table.caption_justify = "left"
    return table
