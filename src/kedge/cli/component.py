"""Components in processes of their own: shared by `kedge scheduler`, `kedge controllers` and `kedge agent`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kedge.cli.event_loop import ASYNCIO, run_on
from kedge.cli.listen_address import parse_listen
from kedge.cli.membership.options import IdentitySource
from kedge.cli.state_folder import DECISIONS, command_errors, folder_lock
from kedge.cli.up import default_state
from kedge.client.http import FailoverTransport, read_kubeconfig, with_servers
from kedge.env import Env, system_env
from kedge.errors import Terminal, Unavailable
from kedge.limits import Limits

if TYPE_CHECKING:
    from kedge.cli.membership.certificates import ComponentIdentity


STATE_OPTION = click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    default=default_state,
    show_default="$XDG_STATE_HOME/kedge",
    help="Folder for the decision log, which the verbs why and timeline read.",
)
COPIES_MAX: Final = 64
"""Processes of one component with one state folder, on one machine."""

Work = Callable[[FailoverTransport, Env, asyncio.Event], Awaitable[None]]


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
    source: IdentitySource,
    name: str,
    limits: Limits,
    work: Work,
    *,
    identity: Callable[[], ComponentIdentity],
    event_loop: str = ASYNCIO,
    metrics_listen: str | None = None,
) -> None:
    """Run a component until SIGTERM or Ctrl-C. `work` gets the event that is set then. A component that joins becomes
    `identity`."""
    env = system_env(limits=limits)

    async def measured(transport: FailoverTransport, env: Env, stop: asyncio.Event) -> None:
        async with _metrics_served(metrics_listen, name, env):
            await work(transport, env, stop)

    with command_errors():
        run_on(event_loop, _run(source, identity, name, env, measured))


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


async def _run(
    source: IdentitySource, identity: Callable[[], ComponentIdentity], name: str, env: Env, work: Work
) -> None:
    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)

    def notify(text: str) -> None:
        click.echo(f"{name} {text}", err=True)

    membership = source.membership(identity(), env, notify) if source.join else None
    if membership is not None and not await _finished(membership.ensure_joined(), stop):
        return
    addresses = source.addresses()
    transport = FailoverTransport(addresses, env)
    notify(f"uses {', '.join(each.url for each in addresses)}")
    beside = [env.spawn(_follow(source.files, source.servers, transport, env), name="follow the kubeconfig")]
    if membership is not None:
        beside.append(env.spawn(membership.run_renewals(transport), name="renew the certificate"))
    try:
        await work(transport, env, stop)
    finally:
        for task in beside:
            task.cancel()
        await transport.close()


async def _finished(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Wait for work; it is cancelled once `stop` is set. Returns whether it has finished."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return False
    await working
    return True


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
