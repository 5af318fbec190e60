"""`kedge record`: open, close and list recording windows, in which a cluster keeps more decisions.

A window is an object of the API, so every process that records honours it, and an alert can open one.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from kedge.cli.resources.durations import DURATION
from kedge.cli.resources.session import ServerChoice, Session, cluster_options, run_session

HEADER = ("NAME", "STATE", "LEFT", "TENANTS", "OBJECTS", "REASON")
TYPE = "recordingwindows"


@click.group()
def record() -> None:
    """Keep every decision for a while, about everything or about some objects.

    Rollouts and changes of SchedulingPolicies open windows by themselves.
    """


@record.command()
@click.argument("name", default="")
@click.option("--for", "for_s", type=DURATION, default=600.0, show_default="10m", help="How long, such as 10m.")
@click.option("--tenant", "tenants", multiple=True, help="Only decisions about this namespace; may be repeated.")
@click.option(
    "--object",
    "objects",
    multiple=True,
    metavar="KIND/NAME",
    help="Only this object and what it owns; may be repeated.",
)
@click.option("--reason", default="", help="Why, such as the name of an alert.")
@cluster_options
def start(
    choice: ServerChoice, name: str, for_s: float, tenants: tuple[str, ...], objects: tuple[str, ...], reason: str
) -> None:
    """Open a window NAME, or one with the time as its name. A window of this name gets a new end."""
    from kedge.api.timestamps import format_time
    from kedge.limits import Limits

    longest_s = Limits().decision_window_s_max
    if not 0 < for_s <= longest_s:
        raise click.BadParameter(f"a window is open for at most {longest_s / 3600:.0f}h", param_hint="--for")
    for each in objects:
        if not all(each.partition("/")):
            raise click.BadParameter(f"{each!r} is not KIND/NAME, such as deployment/web", param_hint="--object")
    now = datetime.now(UTC)
    window = name or f"by-hand-{now:%Y%m%d-%H%M%S}"

    async def work(session: Session) -> None:
        (kind,) = (await session.catalog()).resolve(TYPE)
        await _remove_ended(session, now)
        spec = {
            "until": format_time(now + timedelta(seconds=for_s)),
            "tenants": list(tenants),
            "objects": [await _object(session, each) for each in objects],
            "reason": reason or "by hand",
        }
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": window}, "spec": spec}
        if await session.find(kind, window) is None:
            await session.rest.call("POST", session.path(kind), body=body)
        else:
            await session.patch(kind, window, {"spec": spec})
        click.echo(f"{window} records {_scope(spec)} until {spec['until']}")

    run_session(choice, work)


@record.command()
@click.argument("name")
@cluster_options
def stop(choice: ServerChoice, name: str) -> None:
    """Close the window NAME. Decisions that it kept stay in the log."""

    async def work(session: Session) -> None:
        (kind,) = (await session.catalog()).resolve(TYPE)
        await session.rest.call("DELETE", session.path(kind, name))
        click.echo(f"{name} is closed")

    run_session(choice, work)


@record.command(name="list")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@cluster_options
def list_windows(choice: ServerChoice, output: str) -> None:
    """Print the windows that are objects. The windows of rollouts and policies are in each process alone."""
    from kedge.cli.queue import as_json
    from kedge.cli.resources.output import format_rows

    async def work(session: Session) -> None:
        (kind,) = (await session.catalog()).resolve(TYPE)
        found = await session.list(kind)
        now = datetime.now(UTC)
        if output == "json":
            click.echo(as_json(windows_document(kind.api_version, kind.kind, found, now)))
            return
        rows = [_row(each, now) for each in found]
        click.echo(format_rows(HEADER, rows) if rows else "no window is open by hand or by an alert")
        click.echo(f"\n{coverage_text(found, now)}")

    run_session(choice, work)


def windows_document(api_version: str, kind: str, found: list[dict[str, Any]], now: datetime) -> dict[str, Any]:
    """For programs. Members may be added; those of today stay."""
    return {
        "apiVersion": api_version,
        "kind": f"{kind}List",
        "items": found,
        "coverage": [coverage_text(found, now)],
    }


def coverage_text(found: Collection[dict[str, Any]], now: datetime) -> str:
    """The moment of the list, and what it does not have."""
    return (
        f"at {now:%Y-%m-%d %H:%M:%S} UTC: {len(found)} windows, none left out; those of rollouts and policy changes are"
        " in each process alone, and are not listed"
    )


async def _remove_ended(session: Session, now: datetime) -> None:
    """Remove windows that have ended: they keep nothing, and no controller collects them."""
    from kedge.errors import NotFound

    (kind,) = (await session.catalog()).resolve(TYPE)
    for each in await session.list(kind):
        if _left_s(each, now) <= 0:
            try:
                await session.rest.call("DELETE", session.path(kind, each["metadata"]["name"]))
            except NotFound:
                continue  # another command was faster


async def _object(session: Session, text: str) -> dict[str, str]:
    """`KIND/NAME` as an object of the window. The kind is as in `Key.kind`."""
    from kedge.cli.resources.session import references

    ((kind, name),) = await references(session, [text])
    full = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    return {"kind": full, "namespace": session.namespace if kind.namespaced else "", "name": name}


def _left_s(window: dict[str, Any], now: datetime) -> float:
    from kedge.api.timestamps import parse_time

    return (parse_time(window["spec"]["until"]) - now).total_seconds()


def _scope(spec: dict[str, Any]) -> str:
    named = [f"namespace {each}" for each in spec.get("tenants") or ()]
    named += [f"{each['kind'].partition('.')[0]} {each['name']}" for each in spec.get("objects") or ()]
    return ", ".join(named) or "every decision"


def _row(window: dict[str, Any], now: datetime) -> tuple[str, ...]:
    spec, left_s = window["spec"], _left_s(window, now)
    return (
        window["metadata"]["name"],
        "open" if left_s > 0 else "ended",
        f"{max(0.0, left_s):.0f}s",
        ",".join(spec.get("tenants") or ()),
        ",".join(f"{each['kind']}/{each['name']}" for each in spec.get("objects") or ()),
        spec.get("reason", ""),
    )
