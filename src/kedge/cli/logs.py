"""`kedge logs`: the output of containers, with kubectl's flags."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Mapping
from typing import Any

import click

from kedge.cli.resources.arguments import SELECTOR, check_words
from kedge.cli.resources.durations import DURATION
from kedge.cli.resources.session import ServerChoice, Session, cluster_options, run_session
from kedge.cli.resources.shell_completion import complete_pods

SELECTED_TAIL = 10
"""Lines of each container when pods are selected by label, as in kubectl."""


def rfc3339(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """The callback of `--since-time`."""
    from kedge.api.timestamps import parse_time

    try:
        if value:
            parse_time(value)
    except ValueError as error:
        text = f"{value!r} is no time of RFC 3339: write it like 2026-01-31T12:00:00Z"
        raise click.BadParameter(text, ctx=ctx, param=param) from error
    return value


@click.command()
@click.argument("words", nargs=-1, metavar="[POD | TYPE/NAME] [CONTAINER]", shell_complete=complete_pods)
@click.option("-c", "--container", default="", help="The container; the first of the pod if none is named.")
@click.option("--all-containers", is_flag=True, help="Every container of the pod.")
@click.option("-l", "--selector", type=SELECTOR, default="", help="Pods with these labels, instead of one pod.")
@click.option("-f", "--follow", is_flag=True, help="Wait for more output until the containers have ended.")
@click.option("-p", "--previous", is_flag=True, help="The run before the latest one.")
@click.option("--tail", type=click.IntRange(-1), default=-1, help="Only so many of the last lines; -1 for all.")
@click.option("--since", default=0.0, type=DURATION, help="Only lines of the last while, such as 5s or 2m.")
@click.option("--since-time", default="", callback=rfc3339, help="Only lines after a time of RFC 3339.")
@click.option("--timestamps", is_flag=True, help="The time before each line.")
@click.option("--limit-bytes", type=click.IntRange(0), default=0, help="Stop after so many bytes; 0 for no limit.")
@click.option("--prefix", is_flag=True, help="Pod and container before each line.")
@click.option(
    "--pod-running-timeout", "within_s", type=DURATION, default="20s", help="How long to wait for a workload's pod."
)
@cluster_options
def logs(choice: ServerChoice, words: tuple[str, ...], **options: Any) -> None:
    """Print the output of a pod's containers: `kedge logs NAME`, `kedge logs deploy/web -f`, `kedge logs NAME SIDECAR`.

    A workload stands for a ready pod of it.
    """
    if len(words) > 2:
        raise click.UsageError(f"{words[2]} is one argument too many: name one pod, and one container of it")
    if len(words) == 2 and options["container"]:
        raise click.UsageError(f"two containers are named, {words[1]} and {options['container']}: leave out one")
    if bool(words) == bool(options["selector"]):
        raise click.UsageError("name one pod, or select pods with -l")
    if options["since"] and options["since_time"]:
        raise click.UsageError("--since and --since-time are two beginnings: leave out one")
    if "/" in "".join(words[:1]):
        check_words(words[:1])
    container = words[1] if len(words) == 2 else options["container"]
    if container and options["all_containers"]:
        raise click.UsageError(f"--all-containers goes without the name of one: leave out it or {container}")
    word = words[0] if words else ""
    run_session(choice, lambda session: PodLogs(session, {**options, "container": container}).run(word))


class PodLogs:
    """One `kedge logs`. `options` are those of the command."""

    def __init__(self, session: Session, options: Mapping[str, Any]) -> None:
        self._session = session
        self._options = options
        self._query = log_query(options)

    async def run(self, word: str) -> None:
        wanted = [part for pod in await self._pods(word) for part in self._parts(pod)]
        work = [self._print(pod, container) for pod, container in wanted]
        if self._options["follow"]:
            await asyncio.gather(*work)
        else:
            for each in work:
                await each

    async def _pods(self, word: str) -> list[dict[str, Any]]:
        from kedge.cli.resources.pod_choice import chosen_pod, rank_for_logs

        if word:
            pod, count = await chosen_pod(self._session, word, rank_for_logs, within_s=self._options["within_s"])
            if count > 1:
                click.echo(f"Found {count} pods, using pod/{pod['metadata']['name']}", err=True)
            return [pod]
        (kind,) = (await self._session.catalog()).resolve("pods")
        found = await self._session.list(kind, {"labelSelector": self._options["selector"]})
        if not found:
            click.echo(f"No resources found in {self._session.namespace} namespace.", err=True)
        return found

    def _parts(self, pod: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Pod and container of each log to print."""
        from kedge.cli.resources.pod_choice import chosen_container

        name, spec = str(pod["metadata"]["name"]), pod["spec"]
        if not self._options["all_containers"]:
            return [(name, chosen_container(pod, self._options["container"]))]
        return [(name, str(each["name"])) for each in (*(spec.get("initContainers") or ()), *spec["containers"])]

    async def _print(self, pod: str, container: str) -> None:
        from kedge.client.http.pod_streams import read_log

        before = f"[pod/{pod}/{container}] ".encode() if self._options["prefix"] else b""
        held = b""
        query = [("container", container), *self._query]
        async for piece in read_log(self._session.address, self._session.namespace, pod, query):
            if not before:
                sys.stdout.buffer.write(piece)
            else:
                *lines, held = (held + piece).split(b"\n")
                sys.stdout.buffer.write(b"".join(before + line + b"\n" for line in lines))
            sys.stdout.buffer.flush()
        if held:
            sys.stdout.buffer.write(before + held + b"\n")
            sys.stdout.buffer.flush()


def log_query(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The query of a log request. Pure."""
    tail = SELECTED_TAIL if options["selector"] and options["tail"] == -1 else options["tail"]
    query = [(name, "true") for name in ("follow", "previous", "timestamps") if options[name]]
    query += [("tailLines", str(tail))] if tail >= 0 else []
    query += [("sinceSeconds", str(math.ceil(options["since"])))] if options["since"] else []
    query += [("sinceTime", options["since_time"])] if options["since_time"] else []
    query += [("limitBytes", str(options["limit_bytes"]))] if options["limit_bytes"] else []
    return query
