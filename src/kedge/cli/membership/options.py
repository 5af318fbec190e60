"""Options that give a component its server and its identity: a kubeconfig, or `--join` with a token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kedge.cli.kubeconfig_option import KubeconfigType
from kedge.client.http.failover import parse_server
from kedge.errors import Terminal

if TYPE_CHECKING:
    from kedge.cli.membership.certificates import ComponentIdentity
    from kedge.cli.membership.component_membership import Membership
    from kedge.client.http import ServerAddress
    from kedge.env import Env


def server_url(text: str) -> str:
    """The type of `--server` and `--join`: an https URL."""
    try:
        parse_server(text)
    except Terminal as error:
        raise click.BadParameter(str(error)) from error
    return text


_OPTIONS = (
    click.option(
        "--kubeconfig",
        type=KubeconfigType(),
        envvar="KUBECONFIG",
        help="The server and this component's identity; not used with --join.",
    ),
    click.option(
        "--server",
        "servers",
        type=server_url,
        multiple=True,
        metavar="URL",
        help="An API server, instead of the kubeconfig's; repeat it for each server of the cluster.",
    ),
    click.option(
        "--join",
        type=server_url,
        metavar="URL",
        help="Join the cluster of this server with --token; the certificate is kept in the state folder and renewed.",
    ),
    click.option(
        "--token",
        envvar="KEDGE_TOKEN",
        default="",
        metavar="TOKEN",
        help="Output of kedge token create; needed until the component has joined.",
    ),
)


@dataclass(frozen=True, slots=True)
class IdentitySource:
    """Where a component has its server and its identity from."""

    files: tuple[Path, ...]
    """The kubeconfig files; with `join` the one in the state folder."""
    servers: tuple[str, ...] = ()
    join: str = ""
    token: str = ""

    def addresses(self) -> list[ServerAddress]:
        """The servers, with the identity as the files have it now."""
        from kedge.client.http import read_kubeconfig, with_servers

        return list(with_servers(read_kubeconfig(*self.files), self.servers))

    def membership(self, identity: ComponentIdentity, env: Env, notify: Callable[[str], None]) -> Membership | None:
        """The membership to ensure and renew; None for a component with a kubeconfig of its own."""
        if not self.join:
            return None
        from kedge.cli.membership.component_membership import Membership
        from kedge.cli.membership.join_token import parse_join_token

        token = parse_join_token(self.token) if self.token else None
        return Membership(self.join, token, self.files[0], identity, env, notify=notify)


def identity_options(component: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options to a command with `--state`, which gets them as one `IdentitySource` named `source`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_source(
            *arguments: Any,
            kubeconfig: tuple[Path, ...] | None,
            servers: tuple[str, ...],
            join: str | None,
            token: str,
            **others: Any,
        ) -> None:
            if join:
                files: tuple[Path, ...] = (others["state"] / f"{component}.kubeconfig",)
            elif kubeconfig:
                files = kubeconfig
            else:
                raise click.UsageError("Missing option '--kubeconfig' (env var: 'KUBECONFIG'), or --join with --token.")
            command(*arguments, source=IdentitySource(files, servers, join or "", token), **others)

        for option in reversed(_OPTIONS):
            with_source = option(with_source)
        return with_source

    return decorate
