"""`kedge config`: check a configuration file, and show the values that are in effect."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kedge.cli.configuration.fields import ConfigField
    from kedge.cli.configuration.reader import Configuration

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
Row = tuple[str, str, str, str]


@click.group()
def config() -> None:
    """Check a configuration file, and show the values that are in effect. docs/configuration.md has every field."""


@config.command()
@click.argument("file", type=_FILE)
def check(file: Path) -> None:
    """Check FILE without starting anything. Exit code 1 if it has mistakes: each is one line with the field."""
    from kedge.cli.configuration.reader import ConfigError, read_config
    from kedge.cli.store_options import check_choice, choice_of

    found = read_config(file)
    try:
        check_choice(choice_of(found.values("server")))
    except click.UsageError as error:
        raise ConfigError(f"{file}: server: {error.message}") from error
    count = sum(map(len, found.settings.values()))
    click.echo(f"{file}: {count} fields are set and fine")


@config.command()
@click.option("--config", "file", type=_FILE, help="Configuration file, instead of the one in the default place.")
@click.option("--changed", is_flag=True, help="Only fields that differ from their default.")
def show(file: Path | None, changed: bool) -> None:
    """Print every field, its value, its default and where the value is from. A * marks values that differ."""
    from kedge.cli.configuration.reader import default_place, find_config

    found = find_config(file)
    click.echo(f"file: {found.path or f'none (no {default_place()})'}", err=True)
    rows = [row for row in _rows(found) if not changed or row[0].startswith("*")]
    table = [("  FIELD", "VALUE", "DEFAULT", "FROM"), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    for row in table:
        click.echo("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip())


def _rows(found: Configuration) -> Iterator[Row]:
    from kedge.cli.configuration.fields import config_fields, plain

    for section, fields in config_fields().items():
        for each in fields.values():
            value, source = _effective(found, section, each)
            default = plain(each.default) or (f"({each.shown_default})" if each.shown_default else "-")
            shown = plain(value) or default
            yield (f"{'* ' if value != each.default else '  '}{each.path}", shown, default, source)


def _effective(found: Configuration, section: str, field: ConfigField) -> tuple[object, str]:
    """A value and its source: as for a verb that is started now, without flags."""
    if field.environment and (value := os.environ.get(field.environment)):
        return value, f"${field.environment}"
    setting = found.settings.get(section, {}).get(field.name)
    return (setting.value, f"{found.path}:{setting.line}") if setting is not None else (field.default, "default")
