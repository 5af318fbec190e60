"""The work of `kedge cordon`, `kedge uncordon` and `kedge drain`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from kedge.cli.resources.arguments import DRY_RUNS, check_nodes
from kedge.cli.resources.session import IncompleteCommand, Session
from kedge.errors import NotFound, Terminal, TooManyRequests

RETRY_S = 1.0
POLL_S = 0.2
_ENDED = ("Succeeded", "Failed")


async def chosen_nodes(session: Session, names: Sequence[str], selector: str) -> list[str]:
    """The nodes that names or labels choose.

    Raises:
        UsageError: both choose, or neither.
        NotFound: no node has these labels.
    """
    check_nodes(names, selector)
    if names:
        return list(names)
    (kind,) = (await session.catalog()).resolve("nodes")
    found = await session.list(kind, {"labelSelector": selector})
    if not found:
        raise NotFound(f"no node matches {selector}: `kedge get nodes --show-labels` lists the labels of each")
    return [str(each["metadata"]["name"]) for each in found]


async def set_unschedulable(
    session: Session, nodes: Iterable[str], *, unschedulable: bool, progress: bool = False, dry_run: str = "none"
) -> None:
    """Mark nodes. The outcome of each is printed; on stderr if it is the progress of another verb."""
    (kind,) = (await session.catalog()).resolve("nodes")
    word = "cordoned" if unschedulable else "uncordoned"
    for name in nodes:
        found = await session.get(kind, name)
        if bool(found["spec"].get("unschedulable")) == unschedulable:
            click.echo(f"node/{name} already {word}{DRY_RUNS[dry_run]}", err=progress)
            continue
        if dry_run != "client":
            body = {"spec": {"unschedulable": True if unschedulable else None}}
            await session.patch(kind, name, body, dry_run=dry_run == "server")
        click.echo(f"node/{name} {word}{DRY_RUNS[dry_run]}", err=progress)


async def drain_node(session: Session, node: str, options: Mapping[str, Any]) -> None:
    """Evict or delete every pod of a node and wait until they are gone.

    Raises:
        Terminal: a pod needs an option to be evicted; nothing was evicted.
        IncompleteCommand: pods are left at the end of the time, or a dry run shows that some would be.
    """
    (kind,) = (await session.catalog()).resolve("pods")
    query = {"fieldSelector": f"spec.nodeName={node}"}
    if options["pod_selector"]:
        query["labelSelector"] = options["pod_selector"]
    pods = await session.list(kind, query, everywhere=True)
    chosen = plan_drain(pods, options)
    if options["dry_run"] != "none":
        await _show_drain(session, node, chosen, options)
        return
    timeout_s = options["timeout_s"] or None
    left = {each["metadata"]["uid"]: each for each in chosen}
    try:
        async with asyncio.timeout(timeout_s):
            for pod in chosen:
                while (refusal := await _remove(session, pod, options)) is not None:
                    click.echo(f"pod {pod['metadata']['name']} waits: {refusal}", err=True)
                    await asyncio.sleep(RETRY_S)
            while left:
                uid, pod = next(iter(left.items()))
                metadata = pod["metadata"]
                found = await session.find(kind, metadata["name"], metadata["namespace"])
                if found is None or found["metadata"]["uid"] != uid:
                    word = "deleted" if options["disable_eviction"] else "evicted"
                    click.echo(f"pod/{metadata['name']} {word}", err=True)
                    del left[uid]
                else:
                    await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        names = ", ".join(each["metadata"]["name"] for each in left.values())
        raise IncompleteCommand(
            f"node {node} is not drained after {timeout_s:.0f} s: {names} are left; see their budgets with"
            " `kedge get pdb -A`, or wait longer with --timeout"
        ) from error
    click.echo(f"node/{node} drained")


async def _show_drain(
    session: Session, node: str, chosen: Iterable[Mapping[str, Any]], options: Mapping[str, Any]
) -> None:
    """A dry run. A refusal is not tried again: nothing that this command does would change it."""
    word = "deleting" if options["disable_eviction"] else "evicting"
    suffix = DRY_RUNS[options["dry_run"]]
    refused = []
    for pod in chosen:
        metadata = pod["metadata"]
        if options["dry_run"] == "server" and (refusal := await _remove(session, pod, options)) is not None:
            refused.append(f"{metadata['name']} ({refusal})")
            continue
        click.echo(f"{word} pod {metadata['namespace']}/{metadata['name']}{suffix}", err=True)
    if refused:
        raise IncompleteCommand(
            f"node {node} would wait for {', '.join(refused)}: see their budgets with `kedge get pdb -A`"
        )
    click.echo(f"node/{node} drained{suffix}")


def plan_drain(pods: Iterable[Mapping[str, Any]], options: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The pods to evict. Pure.

    Raises:
        Terminal: some need an option; the message names each with its option.
    """
    chosen, refused = [], []
    for pod in pods:
        name = pod["metadata"]["name"]
        owner = next((each for each in pod["metadata"].get("ownerReferences") or () if each.get("controller")), None)
        ended = (pod.get("status") or {}).get("phase") in _ENDED
        if owner is not None and owner["kind"] == "DaemonSet":
            if not options["ignore_daemonsets"]:
                refused.append(f"{name} belongs to a DaemonSet (--ignore-daemonsets)")
            continue
        if owner is None and not options["force"] and not ended:
            refused.append(f"{name} has no controller (--force)")
        volumes = pod["spec"].get("volumes") or ()
        if any("emptyDir" in each for each in volumes) and not options["delete_emptydir_data"] and not ended:
            refused.append(f"{name} has emptyDir data (--delete-emptydir-data)")
        chosen.append(pod)
    if refused:
        raise Terminal(f"nothing was evicted: {'; '.join(refused)}; add these options to go on")
    return chosen


async def _remove(session: Session, pod: Mapping[str, Any], options: Mapping[str, Any]) -> TooManyRequests | None:
    """Evict a pod, or delete it. Returns the refusal of a disruption budget; a pod that is gone needs nothing."""
    metadata = pod["metadata"]
    (kind,) = (await session.catalog()).resolve("pods")
    how: dict[str, Any] = {"preconditions": {"uid": metadata["uid"]}}
    if options["grace_s"] >= 0:
        how["gracePeriodSeconds"] = options["grace_s"]
    if options["dry_run"] == "server":
        how["dryRun"] = ["All"]
    path = session.path(kind, metadata["name"], namespace=metadata["namespace"])
    try:
        if options["disable_eviction"]:
            body = {"apiVersion": "v1", "kind": "DeleteOptions", **how}
            await session.rest.call("DELETE", path, body=body)
        else:
            names = {"name": metadata["name"], "namespace": metadata["namespace"]}
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": names, "deleteOptions": how}
            await session.rest.call("POST", f"{path}/eviction", body=body)
    except NotFound:
        return None
    except TooManyRequests as error:
        return error
    return None
