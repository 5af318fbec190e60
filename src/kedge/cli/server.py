"""`kedge server`: the API server alone, over HTTPS, on SQLite or etcd.

It makes its authority, certificate and kubeconfig at its first start and reuses them. Controllers, scheduler and agents
are other processes: they use the same API.
"""

from __future__ import annotations

import asyncio
import ipaddress
import signal
from pathlib import Path

import click

from kedge.cli.state_folder import command_errors
from kedge.cli.wiring import ensure_namespaces
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import Env, system_env
from kedge.errors import Unavailable
from kedge.heap import tune_collector
from kedge.server.http.access import MASTERS
from kedge.server.http.certificates import ADMIN, Authority
from kedge.server.http.server import ApiServer, TlsFiles, bound_tls_buffers, tls_context
from kedge.server.service import Service
from kedge.store import Store

KUBECONFIG = "admin.kubeconfig"


@click.command()
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for all state.")
@click.option("--listen", default="127.0.0.1:6443", show_default=True, help="HOST:PORT; port 0 picks a free one.")
@click.option("--store", "store_url", default="sqlite", show_default=True, help="sqlite, or etcd://H1:PORT,H2:PORT.")
def server(state: Path, listen: str, store_url: str) -> None:
    """Serve the API over HTTPS until SIGTERM or Ctrl-C.

    STATE/admin.kubeconfig makes kubectl an administrator.
    """
    host, port = parse_listen(listen)
    with command_errors(state):
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        asyncio.run(_run(state, host, port, store_url))


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT`, with brackets around an IPv6 address."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is not HOST:PORT, such as 127.0.0.1:6443", param_hint="--listen")
    return host.strip("[]"), int(port)


async def _run(state: Path, host: str, port: int, store_url: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop.set)
    env = system_env()
    tune_collector()
    store = await open_store(state, store_url, env)
    try:
        service = Service(store, env)
        await ensure_namespaces(Client(DirectTransport(service), env, component="server"))
        upkeep = env.spawn(service.run_upkeep(), name="upkeep")
        running = ApiServer(service, env)
        bound = await start_https(running, state, host, port, env)
        click.echo(f"serving {url_of(host, bound)}", err=True)
        await stop.wait()
        await running.stop()
        upkeep.cancel()
    finally:
        await store.close()


async def start_https(running: ApiServer, state: Path, host: str, port: int, env: Env) -> int:
    """Listen with this cluster's certificates, and write the administrator's kubeconfig. Returns the port."""
    now = env.now()
    authority = Authority.ensure(state, now)
    hosts = sorted({host, "localhost", "127.0.0.1", "::1"} - {"0.0.0.0", "::"})
    authority.ensure_serving(state / "serving.pem", hosts, now)
    bound_tls_buffers()
    tls = tls_context(TlsFiles(serving=state / "serving.pem", authority=state / "ca.crt"))
    try:
        bound = await running.start(host, port, tls)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error.strerror or error}: "
            f"pass another --listen ({host}:0 picks a free port), or stop the program that has this one"
        ) from error
    authority.ensure_kubeconfig(state / KUBECONFIG, url_of(host, bound), ADMIN, (MASTERS,), now)
    return bound


def url_of(host: str, port: int) -> str:
    """The address that clients on this machine use."""
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    try:
        shown = f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        shown = host
    return f"https://{shown}:{port}"


async def open_store(state: Path, url: str, env: Env) -> Store:
    """The store that `--store` names."""
    if url == "sqlite":
        from kedge.store.sqlite import SqliteStore

        return await SqliteStore.open(state / "kedge.db", env)
    if url.startswith("etcd://"):
        from kedge.store.etcd import EtcdStore

        return await EtcdStore.open(url.removeprefix("etcd://").split(","), env)
    raise click.BadParameter(f"{url!r} is neither sqlite nor etcd://HOST:PORT,...", param_hint="--store")
