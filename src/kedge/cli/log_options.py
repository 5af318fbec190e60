"""`--log-format` and `--log-level`: the log of a verb that runs until it is stopped. It goes to standard error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from kedge.cli.configuration.option import current_config

_KEY = "kedge.cli.log"


def log_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add both options to a verb that has `--config`. The log is set up before the verb runs, so it gets neither."""
    for name, choices, default, meaning in (
        ("--log-format", ("text", "json"), "text", "Log lines for people, or one JSON object a line."),
        (
            "--log-level",
            ("debug", "info", "warning"),
            "warning",
            "info has a line for each decision and write, debug for all else.",
        ),
    ):
        command = click.option(
            name,
            type=click.Choice(choices),
            default=default,
            show_default=True,
            expose_value=False,
            callback=_use,
            help=meaning,
        )(command)
    return command


def _use(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    chosen: dict[str, str] = ctx.meta.setdefault(_KEY, {})
    chosen[str(parameter.name)] = value
    if len(chosen) == 2 and not ctx.resilient_parsing:
        import sys
        import time

        from kedge.logs import LEVELS, LogOutput, install_output

        output = LogOutput(
            lambda: sys.stderr,
            log_format=chosen["log_format"],
            lines_per_s=current_config().limits.log_lines_max,
            monotonic=time.monotonic,
        )
        install_output(output, LEVELS[chosen["log_level"]])
    return value


def log_arguments() -> list[str]:
    """The log options of the verb that runs, for another process that it starts."""
    chosen: dict[str, Any] = click.get_current_context().meta.get(_KEY, {})
    return [word for name, value in sorted(chosen.items()) for word in (f"--{name.replace('_', '-')}", str(value))]
