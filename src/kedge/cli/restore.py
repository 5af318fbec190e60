"""`kedge restore`: a new store from a backup, on SQLite or etcd. It never writes over a store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from kedge.cli.backup import reporter
from kedge.cli.state_folder import command_errors
from kedge.cli.store_options import StoreChoice, store_options


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="State folder for a store on SQLite.")
@store_options
def restore(file: Path, state: Path | None, store: StoreChoice) -> None:
    """Make a store from the backup FILE: in --state for SQLite, or in --store etcd://... below an empty --etcd-prefix.

    Start servers on it afterwards. Its revision is far ahead of the backup's, so that every client lists again.
    """
    if (state is not None) != store.is_sqlite:
        raise click.UsageError("name one target: --state DIR for SQLite, or --store etcd://HOST:PORT,...")
    with command_errors(state):
        if state is not None:
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
        asyncio.run(_restore(file, state, store))


async def _restore(file: Path, state: Path | None, store: StoreChoice) -> None:
    from kedge.env import system_env
    from kedge.store.backup import check_backup, read_backup, read_backup_head

    env = system_env()
    head = read_backup_head(file)
    check_backup(file)  # all of it, before anything is written
    entries = [entry for part in read_backup(file) for entry in part]
    progress = reporter("objects written")
    if state is not None:
        from kedge.store.sqlite import restore_to_sqlite

        where, rows = state / "kedge.db", env.limits.backup_rows_max
        total = await restore_to_sqlite(
            where, entries, head.revision, head.incarnation, slice_rows=rows, progress=progress
        )
        click.echo(f"{where}: {total.objects} objects of revision {head.revision}, verified", err=True)
        return
    from kedge.store.etcd import restore_to_etcd

    total = await restore_to_etcd(store.endpoints, env, entries, head.revision, **store.access(), progress=progress)
    click.echo(f"{store.url}{store.prefix}: {total.objects} objects of revision {head.revision}, verified", err=True)
