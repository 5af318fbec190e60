"""`kedge token`: create, list and delete bearer tokens of users, and tokens with which components join.

The server stores only their SHA-256, as Secrets.
"""

from __future__ import annotations

import asyncio
import secrets
import string
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from kedge.cli.kubeconfig_option import KUBECONFIG_OPTION
from kedge.cli.state_folder import command_errors

if TYPE_CHECKING:
    from kedge.api.objects import Object
    from kedge.client.contract import Client
    from kedge.env import Env

_T = TypeVar("_T")
JOINING_S = 86_400.0
"""A token for joining is used soon after it was made."""
_ID_ALPHABET = string.ascii_lowercase + string.digits


@click.group()
def token() -> None:
    """Create, list and delete tokens of users, and tokens with which components join."""


@token.command()
@KUBECONFIG_OPTION
@click.option(
    "--for",
    "component",
    type=click.Choice(["agent", "scheduler", "controllers"]),
    help="The component that joins with it; agent if there is no --user.",
)
@click.option("--user", default="", help="Name of the user: the token is for requests of this user.")
@click.option("--group", "groups", multiple=True, help="A group of the user; may be repeated.")
@click.option(
    "--ttl", default="", help="How long it is valid, such as 24h. Without it: a day for joining, for ever for a user."
)
def create(kubeconfig: tuple[Path, ...], component: str | None, user: str, groups: tuple[str, ...], ttl: str) -> None:
    """Make a token and print it. It is shown this once: the server has only its hash.

    Without --user it is for `kedge agent --join URL --token TOKEN`, and has the hash of the cluster's authority.
    """
    if component and (user or groups):
        raise click.UsageError("--for is for components that join, --user and --group for users: leave one out")
    if user or groups:
        _create_for_user(kubeconfig, user, groups, _seconds(ttl))
    else:
        _create_for_joining(kubeconfig, component or "agent", _seconds(ttl) or JOINING_S)


def _create_for_joining(kubeconfig: tuple[Path, ...], component: str, valid_s: float) -> None:
    from cryptography import x509

    from kedge.api.access import joining_group
    from kedge.api.bootstrap_tokens import bootstrap_secret
    from kedge.api.wellknown import SECRET_KIND, SYSTEM_NAMESPACE
    from kedge.cli.local import authorities_of
    from kedge.cli.membership.join_token import JoinToken, new_bootstrap_token
    from kedge.client.http import read_kubeconfig
    from kedge.server.http.certificates import key_fingerprint

    with command_errors():
        authorities = authorities_of(read_kubeconfig(*kubeconfig))
    if not authorities:
        raise click.UsageError("the kubeconfig has no authority, whose hash is in the token: use admin.kubeconfig")
    digest = key_fingerprint(x509.load_pem_x509_certificate(authorities.encode()))

    async def work(client: Client, env: Env) -> str:
        made = new_bootstrap_token()
        expires = env.now() + timedelta(seconds=valid_s)
        body = bootstrap_secret(made, [joining_group(component)], expires, f"kedge token create --for {component}")
        await client.create(client.kinds.of_key_kind(SECRET_KIND), body, namespace=SYSTEM_NAMESPACE)
        return str(JoinToken(digest, made))

    click.echo(_run(kubeconfig, work))


def _create_for_user(kubeconfig: tuple[Path, ...], user: str, groups: tuple[str, ...], valid_s: float | None) -> None:
    from kedge.api.tokens import SECRET_BYTES, format_token, token_secret
    from kedge.api.wellknown import SECRET_KIND, SYSTEM_NAMESPACE

    if not user or any("\n" in text or not text for text in (user, *groups)):
        raise click.BadParameter("a user or group is a text without line breaks, and not empty")

    async def work(client: Client, env: Env) -> str:
        expires = None if valid_s is None else env.now() + timedelta(seconds=valid_s)
        made = format_token("".join(secrets.choice(_ID_ALPHABET) for _ in range(10)), secrets.token_bytes(SECRET_BYTES))
        kind = client.kinds.of_key_kind(SECRET_KIND)
        await client.create(kind, token_secret(made, user, groups, expires), namespace=SYSTEM_NAMESPACE)
        return made

    click.echo(_run(kubeconfig, work))


@token.command(name="list")
@KUBECONFIG_OPTION
def list_tokens(kubeconfig: tuple[Path, ...]) -> None:
    """Print the tokens: ID, user, groups and expiry."""
    from kedge.api.requests import ListOptions
    from kedge.api.timestamps import format_time
    from kedge.api.tokens import parse_token_secret
    from kedge.api.wellknown import BOOTSTRAP_TOKEN_TYPE, SECRET_KIND, SYSTEM_NAMESPACE, TOKEN_TYPE

    async def work(client: Client, env: Env) -> str:
        kind = client.kinds.of_key_kind(SECRET_KIND)
        found_secrets: list[Object] = []
        for secret_type in (TOKEN_TYPE, BOOTSTRAP_TOKEN_TYPE):
            options = ListOptions(namespace=SYSTEM_NAMESPACE, field_selector=f"type={secret_type}")
            found_secrets.extend((await client.list(kind, options)).objects)
        rows = [("ID", "USER", "GROUPS", "EXPIRES")]
        for each in found_secrets:
            found = parse_token_secret(each.edit())
            if found is None:
                rows.append((each.key.name, "<damaged>", "", "delete it with kubectl"))
                continue
            expires = "never" if found.expires is None else format_time(found.expires)
            if found.expires is not None and found.expires <= env.now():
                expires += " (expired)"
            rows.append((found.id, found.user, ",".join(found.groups) or "-", expires))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)

    click.echo(_run(kubeconfig, work))


@token.command()
@KUBECONFIG_OPTION
@click.argument("token_id", metavar="ID")
def delete(kubeconfig: tuple[Path, ...], token_id: str) -> None:
    """Revoke the token ID: requests with it are refused from now on."""
    from kedge.api.tokens import is_token_id, token_key

    if not is_token_id(token_id):
        raise click.BadParameter(f"{token_id!r} is not the ID of a token: `kedge token list` prints them")

    async def work(client: Client, env: Env) -> str:
        del env
        await client.delete(token_key(token_id))
        return f"token {token_id} deleted"

    click.echo(_run(kubeconfig, work))


def _seconds(ttl: str) -> float | None:
    from kedge.api.durations import parse_duration

    if not ttl:
        return None
    try:
        found = parse_duration(ttl) / 1e9
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--ttl") from error
    if found <= 0:
        raise click.BadParameter(f"{ttl} is not in the future", param_hint="--ttl")
    return found


def _run(kubeconfig: tuple[Path, ...], work: Callable[[Client, Env], Awaitable[_T]]) -> _T:
    async def run() -> _T:
        from kedge.client.contract import Client
        from kedge.client.http import HttpTransport, read_kubeconfig
        from kedge.env import system_env

        env = system_env()
        transport = HttpTransport(read_kubeconfig(*kubeconfig))
        try:
            return await work(Client(transport, env, component="token"), env)
        finally:
            await transport.close()

    with command_errors():
        return asyncio.run(run())
