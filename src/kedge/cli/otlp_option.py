"""`--otlp-endpoint`: the endpoint to which a process sends the spans of its kept decisions."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kedge.observe.recording.span_exporter import SendSpans

HEADERS_VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"
"""OpenTelemetry's own variable for headers such as an API key: a secret does not belong on a command line."""

OTLP_ENDPOINT_OPTION = click.option(
    "--otlp-endpoint",
    metavar="URL",
    default="",
    envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
    help="Send the spans of kept decisions to this OTLP/HTTP endpoint; needs kedge[otlp].",
)


@asynccontextmanager
async def span_sender(url: str) -> AsyncIterator[SendSpans | None]:
    """The sender to the endpoint of the option; None if it is empty.

    Raises:
        UsageError: the URL is none of HTTP.
        Terminal: `kedge[otlp]` is not installed.
    """
    if not url:
        yield None
        return
    from kedge.cli.otlp_endpoint import OtlpEndpoint, parse_headers
    from kedge.observe.readers.otlp import require_protobuf

    require_protobuf()
    endpoint = OtlpEndpoint(url, parse_headers(os.environ.get(HEADERS_VARIABLE, "")))
    try:
        yield endpoint.send
    finally:
        await endpoint.close()
