"""Addresses to listen on: `HOST:PORT` as a type of options, so that it is checked wherever it was written."""

from __future__ import annotations

import click


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT`, with brackets around an IPv6 address."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is not HOST:PORT, such as 127.0.0.1:6443")
    return host.strip("[]"), int(port)


WILDCARDS = frozenset({"0.0.0.0", "::"})
"""Hosts that stand for all addresses of a machine."""


def listen_address(text: str) -> str:
    """The type of options: a text that `parse_listen` takes."""
    parse_listen(text)
    return text


METRICS_OPTION = click.option(
    "--metrics-listen",
    type=listen_address,
    metavar="HOST:PORT",
    default=None,
    help="Address for /metrics, as plain HTTP, such as 127.0.0.1:9464; without it the process serves none.",
)
LISTEN_OPTION = click.option(
    "--listen",
    type=listen_address,
    metavar="HOST:PORT",
    default="127.0.0.1:6443",
    show_default=True,
    help="Address of the API server; port 0 picks a free one.",
)
