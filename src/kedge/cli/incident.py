"""`kedge incident`: record a whole cluster for a while, and make one file of what every process recorded.

An incident is a recording window that collects: every process keeps every decision while it is open, and sends its log
to a server when it ends. The file is read by `kedge replay`, `why`, `timeline`, `coupling` and `ui`.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from kedge.cli.incident_around import incident_test
from kedge.cli.resources.durations import DURATION
from kedge.cli.resources.session import ServerChoice, Session, cluster_options, run_session

if TYPE_CHECKING:
    from kedge.cli.incidents.collection import HeldRecords, ServerSet

HEADER = ("NAME", "STATE", "SINCE", "PROCESSES", "SENT", "BYTES")
TYPE = "recordingwindows"
WITHIN_S = 30.0
"""How long `stop` waits for processes that have not sent everything."""
_POLL_S = 0.2


_SERVERS_OPTION = click.option(
    "--server",
    "servers",
    multiple=True,
    metavar="URL",
    help="Another server of the cluster, whose records are asked for too; repeat it for several.",
)


@click.group()
def incident() -> None:
    """Record the whole cluster for a while, into one file that can be replayed."""


incident.add_command(incident_test)


@incident.command()
@click.option("--name", default="", help="Name of the incident; without it the time.")
@click.option("--since", "since_s", type=DURATION, default=0.0, help="Reach back, such as 10m, as far as records do.")
@click.option("--for", "for_s", type=DURATION, default=3600.0, show_default="1h", help="End by itself after this long.")
@click.option("--reason", default="", help="Why, such as the name of an alert.")
@click.option(
    "--redact",
    multiple=True,
    metavar="KIND:FIELD",
    help="Hide the values of a field in the file, such as ConfigMap:data or *:env.value; repeat it for several.",
)
@cluster_options
def start(choice: ServerChoice, name: str, since_s: float, for_s: float, reason: str, redact: tuple[str, ...]) -> None:
    """Begin to record."""
    from kedge.api.timestamps import format_time
    from kedge.errors import BadRequest
    from kedge.limits import Limits
    from kedge.observe.records import parse_redacted

    try:
        for each in redact:
            parse_redacted(each)
    except BadRequest as error:
        raise click.BadParameter(str(error), param_hint="--redact") from error

    longest_s = Limits().decision_window_s_max
    if not 0 < for_s <= longest_s:
        raise click.BadParameter(f"an incident lasts at most {longest_s / 3600:.0f}h", param_hint="--for")
    now = datetime.now(UTC)
    chosen = name or f"incident-{now:%Y%m%d-%H%M%S}"

    async def work(session: Session) -> None:
        (kind,) = (await session.catalog()).resolve(TYPE)
        spec = {
            "until": format_time(now + timedelta(seconds=for_s)),
            "since": format_time(now - timedelta(seconds=since_s)),
            "collect": True,
            "reason": reason or "an incident",
            "redact": list(redact),
        }
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": chosen}, "spec": spec}
        await session.rest.call("POST", session.path(kind), body=body)
        click.echo(f"{chosen} records every decision and commit until {spec['until']}")
        click.echo(f"end it with: kedge incident stop {chosen}")

    run_session(choice, work)


@incident.command()
@click.argument("name", default="")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The file; without it NAME.kedge.")
@click.option("--within", "within_s", type=DURATION, default=WITHIN_S, show_default="30s", help="Wait so long for all.")
@_SERVERS_OPTION
@cluster_options
def stop(choice: ServerChoice, name: str, out: Path | None, within_s: float, servers: tuple[str, ...]) -> None:
    """End the incident NAME, or the only one that is open, and write its file."""
    from kedge.cli.incidents.collection import server_set

    async def work(session: Session) -> None:
        from kedge.api.timestamps import format_time

        (kind,) = (await session.catalog()).resolve(TYPE)
        window = await _chosen(session, kind, name)
        chosen = window["metadata"]["name"]
        now = datetime.now(UTC)
        if _time(window["spec"]["until"]) > now:
            window = await session.patch(kind, chosen, {"spec": {"until": format_time(now), "stopped": True}})
        path = out or Path(f"{chosen}.kedge")
        async with server_set(session.address, servers) as asked:
            held = await _wait_sent(asked, chosen, within_s)
            for line in await _write_file(asked, window, held, path):
                click.echo(line)
        await session.rest.call("DELETE", session.path(kind, chosen))
        click.echo(f"\nwritten to {path}; replay it with: kedge replay {path}")

    run_session(choice, work)


@incident.command(name="list")
@cluster_options
def list_incidents(choice: ServerChoice) -> None:
    """Print the incidents that are open, and those whose records the server has."""
    from kedge.cli.resources.output import format_rows

    async def work(session: Session) -> None:
        (kind,) = (await session.catalog()).resolve(TYPE)
        windows = {each["metadata"]["name"]: each for each in await _windows(session, kind)}
        found = {each["name"]: each for each in (await session.rest.call("GET", _path()))["items"]}
        rows = [_row(each, windows.get(each), found.get(each)) for each in sorted({*windows, *found})]
        click.echo(format_rows(HEADER, rows) if rows else "no incident is open, and the server has records of none")

    run_session(choice, work)


@incident.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def show(file: Path, output: str) -> None:
    """Print what the FILE of an incident has, and what it lacks."""
    import msgspec

    from kedge.cli.incidents.incident_file import lines_of, summary_of
    from kedge.errors import KedgeError
    from kedge.observe.readers.recording import read_recording

    try:
        recording = read_recording(file)
    except KedgeError as error:
        raise click.ClickException(str(error)) from error
    summary = summary_of(recording)
    if summary is None:
        raise click.ClickException(f"{file} is not the file of an incident: `kedge incident stop` writes one")
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(summary), indent=2))
        return
    for line in lines_of(summary, recording):
        click.echo(line)


@incident.command()
@click.argument("name")
@_SERVERS_OPTION
@cluster_options
def delete(choice: ServerChoice, name: str, servers: tuple[str, ...]) -> None:
    """Remove the records of the incident NAME from the server. Files that were written stay."""
    from kedge.cli.incidents.collection import server_set
    from kedge.errors import NotFound

    async def work(session: Session) -> None:
        async with server_set(session.address, servers) as asked:
            if not await asked.delete(name):
                raise NotFound(
                    f"no server has records of incident {name}: `kedge incident list` prints those there are"
                )
        click.echo(f"the records of {name} are removed")

    run_session(choice, work)


def _path(*names: str) -> str:
    from kedge.server.http.incidents import INCIDENTS_PATH

    return "/".join((INCIDENTS_PATH, *names))


async def _windows(session: Session, kind: Any) -> list[dict[str, Any]]:
    return [each for each in await session.list(kind) if each.get("spec", {}).get("collect")]


async def _chosen(session: Session, kind: Any, name: str) -> dict[str, Any]:
    """The window of an incident: the named one, or the only one."""
    if name:
        found = await session.find(kind, name)
        if found is None or not found.get("spec", {}).get("collect"):
            raise click.ClickException(f"there is no incident {name}: `kedge incident list` prints those that are open")
        return found
    windows = await _windows(session, kind)
    if len(windows) != 1:
        names = ", ".join(each["metadata"]["name"] for each in windows)
        raise click.ClickException(
            f"several incidents are open, so give a name: {names}" if windows else "no incident is open"
        )
    return windows[0]


async def _wait_sent(servers: ServerSet, name: str, within_s: float) -> HeldRecords:
    """Wait until every process that takes part has sent everything, or for so long. Returns what the servers have."""
    from kedge.cli.progress import ProgressBar

    loop = asyncio.get_running_loop()
    end_s = loop.time() + within_s
    bar = ProgressBar("collecting records")
    quiet = 0
    while True:
        held = await servers.held(name)
        bar(sum(each.done for each in held.processes.values()), max(1, len(held.processes)))
        # A process may begin a moment after the others: all must have ended several times in a row.
        quiet = quiet + 1 if held.complete else 0
        if quiet > 2 or loop.time() >= end_s:
            return held
        await asyncio.sleep(_POLL_S)


async def _write_file(servers: ServerSet, window: dict[str, Any], held: HeldRecords, out: Path) -> list[str]:
    from importlib.metadata import version

    import msgspec

    from kedge.cli.incidents.incident_file import lines_of, merge_parts, write_sections
    from kedge.kept import write_kept
    from kedge.observe.records import parse_redacted

    spec, name = window["spec"], window["metadata"]["name"]
    since, until = _time(spec.get("since") or window["metadata"]["creationTimestamp"]), _time(spec["until"])
    with TemporaryDirectory() as folder:
        parts = await servers.fetch(name, held, Path(folder))
        summary, recording = merge_parts(name, since, until, parts, kedge=version("kedge"))
        summary = msgspec.structs.replace(summary, gaps=(*held.gaps, *summary.gaps))
        redact = [parse_redacted(each) for each in spec.get("redact", ())]
        write_kept(out, write_sections(summary, recording, redact=redact))
    return lines_of(summary, recording)


def _row(name: str, window: dict[str, Any] | None, records: dict[str, Any] | None) -> tuple[str, ...]:
    processes = [] if records is None else records["processes"]
    spec = {} if window is None else window["spec"]
    if window is None:
        state = "ended"
    else:
        state = "open" if _time(spec["until"]) > datetime.now(UTC) else "ending"
    sent = f"{sum(each['done'] for each in processes)}/{len(processes)}"
    size = "0" if records is None else str(records["bytes"])
    return name, state, spec.get("since") or "", str(len(processes)), sent, size


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
