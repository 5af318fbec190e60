"""`--config FILE` for verbs that run components. Flags win, then the environment, then the file, then defaults.

The file is read while click parses the command line: its section becomes click's default map, so the types of options
hold for values of the file too. Nothing heavy is imported before that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kedge.cli.configuration.reader import Configuration

_KEY = "kedge.cli.configuration"


def config_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--config` to a verb, which gets the limits of the file as `limits`."""

    @wraps(command)
    def with_limits(*arguments: Any, **others: Any) -> None:
        command(*arguments, limits=current_config().limits, **others)

    return click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        is_eager=True,
        expose_value=False,
        callback=_use,
        help="Configuration file; $XDG_CONFIG_HOME/kedge/config.yaml is used if it exists. Flags win over it.",
    )(with_limits)


def current_config() -> Configuration:
    """The configuration of the verb that runs."""
    found: Configuration = click.get_current_context().meta[_KEY]
    return found


def _use(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    del parameter
    from kedge.cli.configuration.reader import find_config

    found = ctx.meta[_KEY] = find_config(value)
    ctx.default_map = {**(ctx.default_map or {}), **found.values(str(ctx.command.name))}
