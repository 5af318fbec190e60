"""`kedge ui`: the page of a running cluster, or of a recording, in a browser of this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kedge.cli.state_folder import command_errors
from kedge.cli.up import state_in_use

if TYPE_CHECKING:
    from kedge.ui import Documents


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="Folder that `kedge up` was given.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of 127.0.0.1; without it a free one.")
@click.option("--open/--no-open", "opens", default=True, show_default=True, help="Open the link in a browser.")
@click.option(
    "--document",
    metavar="NAME?PARAMETERS",
    help="Print one document of the page as JSON instead, such as 'place?revision=341'.",
)
def ui(file: Path | None, state: Path | None, port: int, opens: bool, document: str | None) -> None:
    """Show time, place, the beliefs of components beside the truth, and every decision, in a browser.

    Without FILE it prints a link to the page of the running cluster, which its API server serves with your own rights.
    FILE is a recording, a failure that `kedge hunt` kept, or a run that `kedge scenario run --out` kept: its page is
    served on 127.0.0.1 until Ctrl-C. A link works once.
    """
    if file is None and (document is not None or port):
        raise click.UsageError("--document and --port go with FILE: a running cluster has its own address")
    with command_errors():
        if file is None:
            _show(asyncio.run(_live_link(state_in_use(state))), "the cluster", opens=opens)
            return
        documents = _documents(file)
        if document is not None:
            _print_document(documents, document)
            return
        try:
            asyncio.run(_serve(documents, port, opens=opens))
        except KeyboardInterrupt:
            click.echo("stopped", err=True)


def _documents(file: Path) -> Documents:
    from kedge.cli.declared_components import declared_fields
    from kedge.cli.incidents.incident_file import summary_of
    from kedge.observe.readers.recording import read_recording
    from kedge.ui import Documents

    recording = read_recording(file)
    declared = declared_fields(recording)
    return Documents(recording, file.name, declared_fields=declared, whole_logs=summary_of(recording) is None)


def _print_document(documents: Documents, wanted: str) -> None:
    import json

    from kedge.server.http.parameters import parse_query

    name, _, query = wanted.partition("?")
    made = documents.document(name, parse_query(query.encode("ascii", "replace")))
    click.echo(json.dumps(made, indent=2, default=str))


async def _serve(documents: Documents, port: int, *, opens: bool) -> None:
    from kedge.cli.page_actions import page_actions
    from kedge.env import system_env
    from kedge.ui import PageServer, RecordingSource

    source = RecordingSource(documents, page_actions(documents.history.recording))
    server = PageServer(source, system_env())
    link = await server.start(port)
    try:
        _show(link, documents.history.title, opens=opens)
        click.echo("stop with Ctrl-C", err=True)
        await asyncio.Event().wait()
    finally:
        await server.stop()


def _show(link: str, title: str, *, opens: bool) -> None:
    click.echo(f"the page of {title}: {link}")
    click.echo("the link works once", err=True)
    if opens:
        import webbrowser

        webbrowser.open(link)


async def _live_link(state: Path) -> str:
    """A link of the API server, for the user of the state folder's kubeconfig."""
    from kedge.cli.live import live_cluster
    from kedge.cli.server import KUBECONFIG
    from kedge.client.http import read_kubeconfig
    from kedge.errors import NotFound
    from kedge.server.http.page_hook import LINK_PATH

    async with live_cluster(state) as cluster:
        try:
            found = await cluster.rest.call("POST", LINK_PATH)
        except NotFound as error:
            raise NotFound("this server has no page: it is of an older kedge, or no kedge") from error
    address = read_kubeconfig(state / KUBECONFIG)
    return f"{address.url}{found['path']}"
