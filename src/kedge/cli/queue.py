"""`kedge queue`: the work queues of a running cluster: depth, oldest age, and every key with its retries and reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from kedge.cli.resources.session import ServerChoice, Session, cluster_options, run_session

HEADER = ("CONTROLLER", "LEADS", "DEPTH", "READY", "WAITING", "RUNNING", "FAILING", "OLDEST")
KEY_HEADER = ("CONTROLLER", "KEY", "STATE", "AGE", "RETRIES", "NEXT", "REASON")


@click.command()
@click.argument("controller", default="")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@cluster_options
def queue(choice: ServerChoice, controller: str, output: str) -> None:
    """Print the work queues of a cluster of `kedge up`, or the one of CONTROLLER.

    A key waits (backoff, a requeue, an event), is ready, or runs. The scheduler's keys are the pods without a node.
    """
    from kedge.cli.debug_pages import QUEUES_PATH

    async def work(session: Session) -> None:
        document = await debug_document(session, QUEUES_PATH)
        if controller:
            document["queues"] = queues_of(document, controller)
        click.echo(as_json(document) if output == "json" else "\n".join(queue_lines(document)))

    run_session(choice, work)


async def debug_document(session: Session, path: str) -> dict[str, Any]:
    """A debug page of the server.

    Raises:
        NotFound: the server has none.
    """
    from kedge.errors import NotFound

    try:
        found: dict[str, Any] = await session.rest.call("GET", path)
    except NotFound as error:
        raise NotFound(
            f"{session.address.url} runs no controllers in its process, so it has no queues and caches to show:"
            " this works with a cluster of `kedge up`; other components have them as metrics"
        ) from error
    return found


def as_json(document: dict[str, Any]) -> str:
    import json

    return json.dumps(document, indent=2)


def queues_of(document: dict[str, Any], controller: str) -> list[dict[str, Any]]:
    from kedge.errors import NotFound

    found = [each for each in document["queues"] if each["controller"] == controller]
    if not found:
        names = ", ".join(each["controller"] for each in document["queues"])
        raise NotFound(f"no controller is called {controller}: use one of {names}")
    return found


def queue_lines(document: dict[str, Any]) -> Iterator[str]:
    from kedge.cli.resources.output import format_rows

    queues = document["queues"]
    yield format_rows(HEADER, [_row(each) for each in queues])
    rows = [_key_row(each["controller"], key) for each in queues for key in each["keys"]]
    if rows:
        yield ""
        yield format_rows(KEY_HEADER, rows)
    left = sum(each["keysLeftOut"] for each in queues)
    shown = f"{len(rows)} keys" + (f", {left} more are left out" if left else ", none left out")
    yield f"\nat {document['at']}: {shown}; keys that are done are not listed"


def _row(queue: dict[str, Any]) -> tuple[str, ...]:
    counts = (str(queue[name]) for name in ("depth", "ready", "waiting", "running", "failing"))
    return (queue["controller"], "yes" if queue["leading"] else "no", *counts, f"{queue['oldestSeconds']:.1f}s")


def _key_row(controller: str, key: dict[str, Any]) -> tuple[str, ...]:
    due = key["nextRunSeconds"]
    reason = key["reason"] + (f"; {key['lastError']}" if key["lastError"] else "")
    reason += "; a loop without progress" if key["loop"] else ""
    return (
        controller,
        key["key"],
        key["state"],
        f"{key['ageSeconds']:.1f}s",
        str(key["retries"]),
        "" if due is None else f"{due:.1f}s",
        reason,
    )
