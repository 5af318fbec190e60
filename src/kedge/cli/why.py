"""`kedge why`: why a pod or a Deployment is as it is, from the API and the decision log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from kedge.cli.up import default_state
from kedge.errors import KedgeError


@click.command()
@click.argument("name")
@click.option("--namespace", "-n", default="default", show_default=True)
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="Folder that `kedge up` was given.")
def why(name: str, namespace: str, state: Path | None) -> None:
    """Explain the state of NAME, a pod or a Deployment."""
    folder = state or default_state()
    try:
        click.echo(asyncio.run(_answer(name, namespace, folder)))
    except KedgeError as error:
        raise click.ClickException(str(error)) from error


async def _answer(name: str, namespace: str, state: Path) -> str:
    from kedge.api.requests import ListOptions
    from kedge.api.wellknown import DEPLOYMENT_KIND, POD_KIND
    from kedge.client.contract import Client
    from kedge.client.http import HttpTransport, read_kubeconfig
    from kedge.env import system_env
    from kedge.errors import NotFound
    from kedge.keys import Key
    from kedge.observe.readers.why import why_pod, why_workload
    from kedge.observe.recording.segments import read_decisions

    transport = HttpTransport(read_kubeconfig(state / "admin.kubeconfig"))
    client = Client(transport, system_env(), component="why")
    decisions = list(read_decisions(state / "decisions", report=lambda _: None))
    try:
        pod = await client.find(Key(POD_KIND, namespace, name))
        if pod is not None:
            return why_pod(pod, decisions).text()
        workload = await client.find(Key(DEPLOYMENT_KIND, namespace, name))
        if workload is None:
            raise NotFound(
                f"there is no pod and no Deployment {name} in the namespace {namespace}: check the name, or use -n"
            )
        listed = await client.list(client.kinds.of_key_kind(POD_KIND), ListOptions(namespace=namespace))
        own = [each for each in listed.objects if each.key.name.startswith(f"{name}-")]
        return why_workload(workload, own, decisions).text()
    finally:
        await transport.close()
