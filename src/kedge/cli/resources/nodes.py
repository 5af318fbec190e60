"""The work of `kedge cordon`, `kedge uncordon` and `kedge drain`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from kedge.cli.resources.session import IncompleteCommand, Session
from kedge.errors import NotFound, Terminal, TooManyRequests

RETRY_S = 1.0
POLL_S = 0.2
_ENDED = ("Succeeded", "Failed")


async def chosen_nodes(session: Session, names: Sequence[str], selector: str) -> list[str]:
    """The nodes that names or labels choose.

    Raises:
        Terminal: both choose, or neither.
        NotFound: no node has these labels.
    """
    if bool(names) == bool(selector):
        raise Terminal("name nodes, or select them with -l: `kedge get nodes --show-labels` lists both")
    if names:
        return list(names)
    (kind,) = (await session.catalog()).resolve("nodes")
    found = await session.list(kind, {"labelSelector": selector})
    if not found:
        raise NotFound(f"no node matches {selector}: `kedge get nodes --show-labels` lists the labels of each")
    return [str(each["metadata"]["name"]) for each in found]


async def set_unschedulable(
    session: Session, nodes: Iterable[str], *, unschedulable: bool, progress: bool = False
) -> None:
    """Mark nodes. The outcome of each is printed; on stderr if it is the progress of another verb."""
    (kind,) = (await session.catalog()).resolve("nodes")
    word = "cordoned" if unschedulable else "uncordoned"
    for name in nodes:
        found = await session.get(kind, name)
        if bool(found["spec"].get("unschedulable")) == unschedulable:
            click.echo(f"node/{name} already {word}", err=progress)
            continue
        await session.patch(kind, name, {"spec": {"unschedulable": True if unschedulable else None}})
        click.echo(f"node/{name} {word}", err=progress)


async def drain_node(session: Session, node: str, options: Mapping[str, Any]) -> None:
    """Evict every pod of a node and wait until they are gone.

    Raises:
        Terminal: a pod needs an option to be evicted; nothing was evicted.
        IncompleteCommand: pods are left at the end of the time.
    """
    (kind,) = (await session.catalog()).resolve("pods")
    query = {"fieldSelector": f"spec.nodeName={node}"}
    if options["pod_selector"]:
        query["labelSelector"] = options["pod_selector"]
    pods = await session.list(kind, query, everywhere=True)
    chosen = plan_drain(pods, options)
    timeout_s = options["timeout_s"] or None
    left = {each["metadata"]["uid"]: each for each in chosen}
    try:
        async with asyncio.timeout(timeout_s):
            for pod in chosen:
                await _evict(session, pod, options["grace_s"])
            while left:
                uid, pod = next(iter(left.items()))
                metadata = pod["metadata"]
                found = await session.find(kind, metadata["name"], metadata["namespace"])
                if found is None or found["metadata"]["uid"] != uid:
                    click.echo(f"pod/{metadata['name']} evicted", err=True)
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
        raise Terminal(f"nothing was evicted: {'; '.join(refused)}")
    return chosen


async def _evict(session: Session, pod: Mapping[str, Any], grace_s: int) -> None:
    metadata = pod["metadata"]
    (kind,) = (await session.catalog()).resolve("pods")
    options: dict[str, Any] = {"preconditions": {"uid": metadata["uid"]}}
    if grace_s >= 0:
        options["gracePeriodSeconds"] = grace_s
    names = {"name": metadata["name"], "namespace": metadata["namespace"]}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": names, "deleteOptions": options}
    path = session.path(kind, metadata["name"], "eviction", metadata["namespace"])
    while True:
        try:
            await session.rest.call("POST", path, body=body)
        except NotFound:
            return
        except TooManyRequests as error:
            click.echo(f"pod {metadata['name']} waits: {error}", err=True)
            await asyncio.sleep(RETRY_S)
        else:
            return
