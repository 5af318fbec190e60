"""The fields of the configuration file, derived from the options of verbs and from `kedge.limits`.

A new option or limit is a new field: nothing is listed twice. Reading a file is the job of `reader`.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import click

from kedge.limits import Limits

LIMITS = "limits"
VERBS = ("up", "server", "scheduler", "controllers", "agent")
"""Verbs that take `--config`; each has a section of its name."""
SECTIONS = (*VERBS, LIMITS)
ONLY_FLAGS = frozenset({"config", "detach", "demo", "keep", "help", "replace_keys"})
"""Options about one call, which a file would make surprising."""

WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", list: "a list of texts"}


@dataclass(frozen=True, slots=True)
class ConfigField:
    """One field: where it is, which values it may have, and its effect."""

    section: str
    name: str
    type: type
    """`int`, `float`, `str`, `bool`, or `list` of strings."""
    default: Any
    meaning: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    is_path: bool = False
    shown_default: str = ""
    """In the words of the option, where the default depends on the machine."""
    environment: str = ""
    """A variable that sets it too, and wins over the file."""
    option: click.Option | None = None

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def bound(self) -> str:
        """The values that it may have, in words."""
        if self.least is not None and self.most is not None:
            return f"{plain(self.least)} to {plain(self.most)}"
        if self.least is not None:
            return f"{plain(self.least)} or more"
        if self.option is not None and isinstance(self.option.type, click.Choice):
            return " or ".join(map(str, self.option.type.choices))
        if self.is_path:
            return "a path"
        shape = self.option.metavar if self.option is not None and self.type is str else None
        return shape or WORDS[self.type]


def plain(value: Any) -> str:
    """A value as a person writes it in the file."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


@cache
def config_fields() -> dict[str, dict[str, ConfigField]]:
    """Every field by section and name, in the order of declaration."""
    found = {verb: {each.name: each for each in _of_verb(verb)} for verb in VERBS}
    found[LIMITS] = {each.name: _of_limit(each) for each in dataclasses.fields(Limits)}
    return found


def _of_verb(verb: str) -> list[ConfigField]:
    command = getattr(importlib.import_module(f"kedge.cli.{verb}"), verb)
    assert isinstance(command, click.Command)
    options = [each for each in command.params if isinstance(each, click.Option) and each.name not in ONLY_FLAGS]
    return [_of_option(verb, each) for each in options]


def _of_option(verb: str, option: click.Option) -> ConfigField:
    ranged = option.type if isinstance(option.type, click.IntRange) else None
    kind = list if option.multiple else bool if option.is_flag else int if ranged is not None else str
    # click has a mark of its own for an option without a default.
    default = option.default if isinstance(option.default, str | int | float) else False if kind is bool else None
    shown = option.show_default if isinstance(option.show_default, str) else ""
    return ConfigField(
        section=verb,
        name=str(option.name),
        type=kind,
        default=([] if option.multiple else default),
        meaning=(option.help or "").rstrip("."),
        least=ranged.min if ranged is not None else None,
        most=ranged.max if ranged is not None else None,
        is_path=isinstance(option.type, click.Path),
        shown_default="required" if option.required else shown,
        environment=option.envvar if isinstance(option.envvar, str) else "",
        option=option,
    )


def _of_limit(limit: dataclasses.Field[Any]) -> ConfigField:
    return ConfigField(
        section=LIMITS,
        name=limit.name,
        type=type(limit.default),
        default=limit.default,
        meaning=limit.metadata["reason"],
        unit=unit_of(limit.name),
        least=limit.metadata["least"],
        most=limit.metadata["most"],
    )


def unit_of(name: str) -> str:
    """The unit of a limit: its name ends with it, or with it and a qualifier."""
    if "bytes" in name.split("_"):
        return "bytes"
    if "_milli" in name:
        return "thousandths"
    if "_share" in name:
        return "share"
    return "seconds" if re.search(r"_s(_max|_min|_alarm)?$", name) else "count"
