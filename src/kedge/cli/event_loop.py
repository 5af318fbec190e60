"""`--event-loop`: asyncio's own loop, or uvloop, which needs less CPU for each request over HTTPS."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import click

ASYNCIO, UVLOOP = "asyncio", "uvloop"

EVENT_LOOP_OPTION = click.option(
    "--event-loop",
    "event_loop",
    type=click.Choice((ASYNCIO, UVLOOP)),
    default=ASYNCIO,
    show_default=True,
    help="uvloop needs about a fifth less CPU over HTTPS; it comes with kedge[uvloop].",
)


def run_on(event_loop: str, main: Coroutine[Any, Any, None]) -> None:
    """Run a program on the chosen loop.

    Raises:
        UsageError: uvloop is chosen and not installed.
    """
    if event_loop == ASYNCIO:
        asyncio.run(main)
        return
    try:
        import uvloop
    except ImportError as error:
        main.close()
        raise click.UsageError(
            "uvloop is not installed: install kedge[uvloop], or leave out --event-loop uvloop"
        ) from error
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)
