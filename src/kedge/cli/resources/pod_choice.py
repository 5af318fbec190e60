"""The pod that `kedge logs` and `kedge exec` use for `POD` or `TYPE/NAME`, and its container: kubectl's rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import click

from kedge.api.wellknown import DEFAULT_CONTAINER, SERVICE_KIND
from kedge.cli.resources.catalog import ResourceType
from kedge.cli.resources.session import IncompleteCommand, Session, references
from kedge.errors import Terminal

POLL_S = 0.2
_EXPRESSIONS = {
    "In": "{key} in ({values})",
    "NotIn": "{key} notin ({values})",
    "Exists": "{key}",
    "DoesNotExist": "!{key}",
}
Rank = Callable[[Mapping[str, Any]], tuple[Any, ...]]


def rank_for_logs(pod: Mapping[str, Any]) -> tuple[Any, ...]:
    """Order for logs: assigned, running, ready for longest; then the most restarts, then the oldest. Pure."""
    phases = {"Unknown": 1, "Pending": 2}
    return *_rank(pod, phases.get(_phase(pod), 0)), -_restarts(pod), _created(pod)


def rank_for_commands(pod: Mapping[str, Any]) -> tuple[Any, ...]:
    """Order for commands: as for logs, but a pod that has ended comes last and few restarts come first. Pure."""
    phases = {"Running": 0, "Unknown": 1}
    return *_rank(pod, phases.get(_phase(pod), 2)), _restarts(pod), _created(pod)


def _rank(pod: Mapping[str, Any], phase: int) -> tuple[Any, ...]:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    since = next((_time(each) for each in conditions if each["type"] == "Ready" and each["status"] == "True"), None)
    return not pod["spec"].get("nodeName"), phase, since is None, since or (False, "")


def _time(condition: Mapping[str, Any]) -> tuple[bool, str]:
    """Earlier times first, no time last."""
    moment = str(condition.get("lastTransitionTime") or "")
    return not moment, moment


def _phase(pod: Mapping[str, Any]) -> str:
    return str((pod.get("status") or {}).get("phase") or "")


def _restarts(pod: Mapping[str, Any]) -> int:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return max((int(each.get("restartCount") or 0) for each in statuses), default=0)


def _created(pod: Mapping[str, Any]) -> tuple[bool, str]:
    moment = str(pod["metadata"].get("creationTimestamp") or "")
    return not moment, moment


def pod_selector(kind: ResourceType, body: Mapping[str, Any]) -> str:
    """The label selector of the pods of a workload or Service. Pure.

    Raises:
        Terminal: it selects no pods.
    """
    spec = body.get("spec") or {}
    selector = spec.get("selector")
    if kind.kind in (SERVICE_KIND, "ReplicationController"):
        selector = {"matchLabels": selector or {}}
    if not isinstance(selector, Mapping) or not {"matchLabels", "matchExpressions"} & set(selector):
        selector = {}
    terms = [f"{name}={value}" for name, value in (selector.get("matchLabels") or {}).items()]
    for each in selector.get("matchExpressions") or ():
        values = ",".join(each.get("values") or ())
        terms.append(_EXPRESSIONS[each["operator"]].format(key=each["key"], values=values))
    if not terms:
        name = body["metadata"]["name"]
        raise Terminal(f"{kind.label}/{name} selects no pods: name a pod, or a workload such as deployment/{name}")
    return ",".join(terms)


async def chosen_pod(session: Session, word: str, rank: Rank, *, within_s: float) -> tuple[dict[str, Any], int]:
    """The pod for `POD` or `TYPE/NAME`, and how many there were to choose from. Waits for a workload's first pod.

    Raises:
        NotFound: the object does not exist.
        Terminal: it is of a type without pods.
        IncompleteCommand: no pod came in time.
    """
    (pods,) = (await session.catalog()).resolve("pods")
    if "/" not in word:
        return await session.get(pods, word), 1
    ((kind, name),) = await references(session, [word])
    body = await session.get(kind, name)
    if kind.plural == pods.plural and not kind.group:
        return body, 1
    query = {"labelSelector": pod_selector(kind, body)}
    try:
        async with asyncio.timeout(within_s):
            while True:
                if found := await session.list(pods, query):
                    return min(found, key=rank), len(found)
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        raise IncompleteCommand(
            f"{kind.label}/{name} has no pod after {within_s:g} s: `kedge describe {kind.plural} {name}` may have the"
            " reason"
        ) from error


def chosen_container(pod: Mapping[str, Any], container: str) -> str:
    """The named container, else the one in kubectl's annotation, else the first, with a line on stderr."""
    if container:
        return container
    name = pod["metadata"]["name"]
    spec = pod["spec"]
    containers = [str(each["name"]) for each in spec["containers"]]
    others = [str(each["name"]) for each in spec.get("initContainers") or ()]
    wanted = (pod["metadata"].get("annotations") or {}).get(DEFAULT_CONTAINER)
    if wanted in (*containers, *others):
        return str(wanted)
    if wanted:
        click.echo(f'Default container name "{wanted}" not found in pod {name}', err=True)
    if len(containers) + len(others) > 1:
        names = ", ".join([*containers, *(f"{each} (init)" for each in others)])
        click.echo(f'Defaulted container "{containers[0]}" out of: {names}', err=True)
    return containers[0]
