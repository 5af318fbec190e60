"""`kedge backup`: one file with every object at one revision, from a running server or from the store itself."""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import click

from kedge.cli.state_folder import command_errors
from kedge.cli.store_options import StoreChoice, store_options

PROGRESS_S = 2.0
"""A command that takes longer reports its progress this often, on stderr."""
_CHUNK_BYTES = 1 << 18


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--kubeconfig", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Ask this server.")
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="State folder of a server on SQLite.")
@store_options
def backup(file: Path, kubeconfig: Path | None, state: Path | None, store: StoreChoice) -> None:
    """Write a backup to FILE.

    Name the source: --kubeconfig for a running server, --state for a server on SQLite that runs or not, or --store etcd://...
    FILE holds every Secret. It is verified before it gets its name, and never replaces a file.
    """
    if sum([kubeconfig is not None, state is not None, not store.is_sqlite]) != 1:
        raise click.UsageError("name one source: --kubeconfig FILE, --state DIR, or --store etcd://HOST:PORT,...")
    with command_errors(file.parent):
        asyncio.run(_backup(file, kubeconfig, state, store))


async def _backup(file: Path, kubeconfig: Path | None, state: Path | None, store: StoreChoice) -> None:
    from kedge.store.backup import read_backup_head, write_backup_file

    if kubeconfig is None and state is not None:
        kubeconfig = _running_server(state)
    parts = _of_server(kubeconfig) if kubeconfig is not None else _of_store(state, store)
    total = await write_backup_file(file, parts, reporter("bytes written"))
    revision = read_backup_head(file).revision
    click.echo(f"{file}: {total.objects} objects at revision {revision}, verified", err=True)


def _running_server(state: Path) -> Path | None:
    """The kubeconfig of the server that has the store of `state` open; None if none has."""
    import sqlite3

    path = state / "kedge.db"
    if not path.exists():
        raise click.ClickException(f"{path} does not exist: pass the --state that the server was given")
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=0)
    try:
        db.execute("SELECT 1 FROM facts").fetchone()
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return state / "admin.kubeconfig"
    except sqlite3.Error:
        pass  # opening it as a store names what is wrong
    finally:
        db.close()
    return None


async def _of_store(state: Path | None, choice: StoreChoice) -> AsyncIterator[bytes]:
    from kedge.api.timestamps import format_time
    from kedge.env import system_env
    from kedge.store.backup import Exporter, encode_backup

    env = system_env()
    opened = await choice.open(state or Path(), env, compactor=False)
    try:
        assert isinstance(opened, Exporter)
        async for part in encode_backup(await opened.export(), format_time(env.now())):
            yield part
    finally:
        await opened.close()


async def _of_server(kubeconfig: Path) -> AsyncIterator[bytes]:
    """Read it in this thread: the command has nothing else to do."""
    from kedge.client.http import read_kubeconfig
    from kedge.errors import Unavailable, from_status

    address = read_kubeconfig(kubeconfig)
    where = f"{address.host}:{address.port}"
    if address.tls is not None:
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            address.host, address.port, timeout=60, context=address.tls
        )
    else:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
    headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}
    try:
        connection.request("GET", "/kedge/backup", headers=headers)
        reply = connection.getresponse()
        if reply.status != 200:
            import json

            raise from_status(json.loads(reply.read() or b"{}"))
        while data := reply.read(_CHUNK_BYTES):
            yield data
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"the server {where} did not send all of it ({error}): is it running? repeat") from error
    finally:
        connection.close()


def reporter(what: str) -> Callable[[int], None]:
    """Report a count on stderr, at most every `PROGRESS_S`, the first time after that long."""
    last_s = time.monotonic()

    def report(count: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= PROGRESS_S:
            last_s = time.monotonic()
            click.echo(f"{count:,} {what}", err=True)

    return report
