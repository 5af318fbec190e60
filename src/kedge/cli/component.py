"""Components in processes of their own: shared by `kedge scheduler`, `kedge controllers` and `kedge agent`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import click

from kedge.cli.event_loop import ASYNCIO, run_on
from kedge.cli.listen_address import parse_listen
from kedge.cli.state_folder import DECISIONS, command_errors, folder_lock
from kedge.cli.up import default_state
from kedge.client.contract import Transport
from kedge.client.http import FailoverTransport, read_kubeconfig, with_servers
from kedge.client.http.failover import parse_server
from kedge.env import Env, system_env
from kedge.errors import Terminal, Unavailable
from kedge.limits import Limits


def server_url(text: str) -> str:
    """The type of `--server`: an https URL."""
    try:
        parse_server(text)
    except Terminal as error:
        raise click.BadParameter(str(error)) from error
    return text


SERVER_OPTION = click.option(
    "--server",
    "servers",
    type=server_url,
    multiple=True,
    metavar="URL",
    help="An API server, instead of the kubeconfig's; repeat it for each server of the cluster.",
)

STATE_OPTION = click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    default=default_state,
    show_default="$XDG_STATE_HOME/kedge",
    help="Folder for the decision log, which the verbs why and timeline read.",
)
COPIES_MAX: Final = 64
"""Processes of one component with one state folder, on one machine."""

Work = Callable[[Transport, Env, asyncio.Event], Awaitable[None]]


@contextmanager
def own_log_folder(state: Path, component: str) -> Iterator[Path]:
    """A folder for the decision log of this process: the first that no other process of the component uses.

    Raises:
        Unavailable: all of them are in use.
    """
    with ExitStack() as held:
        yield _take_folder(held, state / DECISIONS, component)


def _take_folder(held: ExitStack, parent: Path, component: str) -> Path:
    for number in range(1, COPIES_MAX + 1):
        folder = parent / f"{component}-{number}"
        with suppress(Unavailable):
            held.enter_context(folder_lock(folder / "lock", f"kedge {component}"))
            return folder
    raise Unavailable(f"{COPIES_MAX} processes of kedge {component} use {parent}: pass another --state")


def run_component(
    kubeconfigs: Sequence[Path],
    servers: Sequence[str],
    name: str,
    limits: Limits,
    work: Work,
    *,
    event_loop: str = ASYNCIO,
    metrics_listen: str | None = None,
) -> None:
    """Run a component until SIGTERM or Ctrl-C. `work` gets the event that is set then."""
    env = system_env(limits=limits)

    async def measured(transport: Transport, env: Env, stop: asyncio.Event) -> None:
        async with _metrics_served(metrics_listen, name, env):
            await work(transport, env, stop)

    with command_errors():
        run_on(event_loop, _run(kubeconfigs, servers, name, env, measured))


@asynccontextmanager
async def _metrics_served(listen: str | None, name: str, env: Env) -> AsyncIterator[None]:
    if listen is None:
        yield
        return
    from kedge.server.http.metrics_listener import MetricsListener

    host, port = parse_listen(listen)
    listener = MetricsListener(env)
    bound = await listener.start(host, port)
    click.echo(f"{name} serves http://{host}:{bound}/metrics", err=True)
    try:
        yield
    finally:
        await listener.stop()


async def _run(kubeconfigs: Sequence[Path], servers: Sequence[str], name: str, env: Env, work: Work) -> None:
    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    addresses = with_servers(read_kubeconfig(*kubeconfigs), servers)
    transport = FailoverTransport(addresses, env)
    click.echo(f"{name} uses {', '.join(each.url for each in addresses)}", err=True)
    following = env.spawn(_follow(kubeconfigs, servers, transport, env), name="follow the kubeconfig")
    try:
        await work(transport, env, stop)
    finally:
        following.cancel()
        await transport.close()


async def _follow(kubeconfigs: Sequence[Path], servers: Sequence[str], transport: FailoverTransport, env: Env) -> None:
    """Use a kubeconfig that was rewritten, such as one with a renewed certificate, without a restart.

    A file that cannot be read leaves the identity as it is: it may be half written, and is read again after its next
    change.
    """
    known = _versions(kubeconfigs)
    names = ", ".join(map(str, kubeconfigs))
    while True:
        await asyncio.sleep(env.limits.client_kubeconfig_s)
        found = _versions(kubeconfigs)
        if found is None or found == known:
            continue
        known = found
        try:
            addresses = with_servers(read_kubeconfig(*kubeconfigs), servers)
        except Terminal as error:
            click.echo(f"{names} has changed and is not used: {error}", err=True)
            continue
        await transport.use(addresses)
        click.echo(f"{names} has changed: uses {', '.join(each.url for each in addresses)}", err=True)


def _versions(paths: Sequence[Path]) -> list[tuple[int, int, int]] | None:
    """Values that differ after each change of the files; None while one is missing."""
    try:
        found = [path.stat() for path in paths]
    except OSError:
        return None
    return [(each.st_ino, each.st_mtime_ns, each.st_size) for each in found]
