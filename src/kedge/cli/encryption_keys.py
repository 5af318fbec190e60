"""`--encryption-keys FILE`: the cipher of a store, read again on SIGHUP. `kedge server` and `kedge up` share it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kedge.env import Env
from kedge.errors import KedgeError

if TYPE_CHECKING:
    from kedge.store import Store
    from kedge.store.encryption import ValueCipher

ENCRYPTION_KEYS_OPTION = click.option(
    "--encryption-keys",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Encrypt Secrets in the store with the first key of FILE, which `kedge secrets add-key FILE` makes; SIGHUP"
    " reads it again.",
)


def make_cipher(path: Path | None, env: Env) -> ValueCipher:
    """The cipher for a store that is about to be opened; without a file it writes values in clear."""
    from kedge.store.encryption import ValueCipher, read_key_file

    return ValueCipher(env, read_key_file(path)) if path is not None else ValueCipher(env)


async def start_cipher(path: Path | None, cipher: ValueCipher, store: Store, env: Env) -> None:
    """Check the keys against the store, and read the file again at each SIGHUP. A file that cannot be used then is
    reported, and the old keys stay.

    Raises:
        Misconfigured: a key that the store needs is missing or wrong.
    """
    from kedge.store.encryption import read_key_file

    await cipher.start(store)

    async def reload() -> None:
        assert path is not None
        try:
            await cipher.use_file(store, read_key_file(path))
        except KedgeError as error:
            click.echo(f"the encryption keys stay as they were: {error}", err=True)
        else:
            click.echo(f"encryption keys read again: {cipher.writer.name} writes", err=True)

    if path is not None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, lambda: env.spawn(reload(), name="encryption keys"))
