"""Options that name a store: `--store` and, for etcd, certificates and user in etcdctl's words.

Shared by every command that opens a store. The options are checked here, before anything is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kedge.env import Env
from kedge.store import Store

if TYPE_CHECKING:
    from kedge.store.encryption import ValueCipher

_FILE = click.Path(path_type=Path, dir_okay=False)
_OPTIONS = (
    click.option("--store", default="sqlite", show_default=True, help="sqlite, or etcd://H1:PORT,H2:PORT,H3:PORT."),
    click.option("--etcd-cafile", type=_FILE, help="Authority of etcd's certificates, in PEM: connect with TLS."),
    click.option("--etcd-certfile", type=_FILE, help="Client certificate for etcd, in PEM."),
    click.option("--etcd-keyfile", type=_FILE, help="Key of --etcd-certfile, in PEM."),
    click.option("--etcd-user", help="User of etcd, where it has authentication on."),
    click.option("--etcd-password-file", type=_FILE, help="File with the password of --etcd-user in its first line."),
    click.option("--etcd-prefix", default="/kedge", show_default=True, help="Keys in etcd begin with this."),
)

_ETCD_PARTS = ("cafile", "certfile", "keyfile", "user", "password_file", "prefix")


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """A store as the options name it."""

    url: str = "sqlite"
    cafile: Path | None = None
    certfile: Path | None = None
    keyfile: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    prefix: str = "/kedge"

    @property
    def is_sqlite(self) -> bool:
        return self.url == "sqlite"

    async def open(self, state: Path, env: Env, *, compactor: bool = True, cipher: ValueCipher | None = None) -> Store:
        """Open it; SQLite's file is in `state`. Without a cipher, encrypted values are taken as they are."""
        if self.is_sqlite:
            from kedge.store.sqlite import SqliteStore

            return await SqliteStore.open(state / "kedge.db", env, cipher=cipher)
        from kedge.store.etcd import EtcdStore

        return await EtcdStore.open(self.endpoints, env, **self.access(), compactor=compactor, cipher=cipher)

    @property
    def endpoints(self) -> list[str]:
        return [each for each in self.url.removeprefix("etcd://").split(",") if each]

    def access(self) -> dict[str, Any]:
        """The arguments for etcd that the options name: prefix, certificates and user."""
        from kedge.store.etcd import EtcdLogin, EtcdTls

        tls = EtcdTls.read(self.cafile, self.certfile, self.keyfile) if self.cafile is not None else None
        login = EtcdLogin.read(self.user, self.password_file) if self.user and self.password_file else None
        return {"prefix": self.prefix, "tls": tls, "login": login}


def store_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which gets them as one `StoreChoice` named `store`."""

    @wraps(command)
    def with_choice(
        *arguments: Any,
        store: str,
        etcd_cafile: Path | None,
        etcd_certfile: Path | None,
        etcd_keyfile: Path | None,
        etcd_user: str | None,
        etcd_password_file: Path | None,
        etcd_prefix: str,
        **others: Any,
    ) -> None:
        choice = StoreChoice(
            store, etcd_cafile, etcd_certfile, etcd_keyfile, etcd_user, etcd_password_file, etcd_prefix
        )
        check_choice(choice)
        command(*arguments, store=choice, **others)

    for option in reversed(_OPTIONS):
        with_choice = option(with_choice)
    return with_choice


def choice_of(values: Mapping[str, Any]) -> StoreChoice:
    """A store as values by the names of the options name it; other values are left alone."""
    names = {"url": "store", **{each: f"etcd_{each}" for each in _ETCD_PARTS}}
    return StoreChoice(**{part: values[name] for part, name in names.items() if name in values})


def check_choice(choice: StoreChoice) -> None:
    """Refuse options that contradict each other, before anything is opened."""
    if not choice.is_sqlite and not choice.url.startswith("etcd://"):
        raise click.BadParameter(f"{choice.url!r} is neither sqlite nor etcd://HOST:PORT,...", param_hint="--store")
    etcd_only = (choice.cafile, choice.certfile, choice.keyfile, choice.user, choice.password_file)
    if choice.is_sqlite and any(etcd_only):
        raise click.UsageError("the options --etcd-* are for etcd: pass --store etcd://HOST:PORT,... too")
    if choice.certfile and not choice.cafile:
        raise click.UsageError("--etcd-certfile is used with TLS alone: pass --etcd-cafile too")
    if bool(choice.certfile) != bool(choice.keyfile):
        raise click.UsageError("--etcd-certfile and --etcd-keyfile belong together: pass both, or neither")
    if bool(choice.user) != bool(choice.password_file):
        raise click.UsageError("--etcd-user and --etcd-password-file belong together: pass both, or neither")
