"""Reading the configuration file: every mistake is found before anything starts, with its line.

The file is read as YAML nodes and not as values, because nodes have lines and show a key that is written twice.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
import yaml

from kedge.cli.configuration.fields import LIMITS, SECTIONS, WORDS, ConfigField, config_fields, plain
from kedge.limits import Limits, misordered


class ConfigError(click.ClickException):
    """The file has mistakes: one line each, with file, line, field and the next step."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value in the file."""

    value: Any
    line: int


@dataclass(frozen=True, slots=True)
class Configuration:
    """A file without mistakes; without a path, no file at all."""

    path: Path | None = None
    settings: dict[str, dict[str, Setting]] = field(default_factory=dict)
    """By section and field: only what the file has."""

    @property
    def limits(self) -> Limits:
        return replace(Limits(), **self.values(LIMITS))

    def values(self, section: str) -> dict[str, Any]:
        return {name: each.value for name, each in self.settings.get(section, {}).items()}

    def line(self, section: str, name: str) -> int:
        """The line of a field, or 0 if the file does not have it."""
        found = self.settings.get(section, {}).get(name)
        return found.line if found is not None else 0


def default_place() -> Path:
    """`$XDG_CONFIG_HOME/kedge/config.yaml`, as the XDG rules have it."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "kedge" / "config.yaml"


def find_config(named: Path | None) -> Configuration:
    """The named file, or the one in the default place if it is there.

    Raises:
        ConfigError: the file cannot be read or has mistakes.
    """
    if named is not None:
        return read_config(named)
    usual = default_place()
    return read_config(usual) if usual.is_file() else Configuration()


def read_config(path: Path) -> Configuration:
    """Read a file.

    Raises:
        ConfigError: the file cannot be read or has mistakes; all of them are in the message.
    """
    try:
        reader = _Reader(path, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{path}: cannot be read: {why}: pass another --config") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise ConfigError(f"{where}: not YAML: {getattr(error, 'problem', None) or error}") from error
    found = reader.configuration()
    problems = [*reader.problems, *_contradictions(found)]
    if problems:
        raise ConfigError("\n".join(problems))
    return found


class _Reader:
    """Walks the nodes of one file and collects settings and problems."""

    def __init__(self, path: Path, text: str) -> None:
        self.problems: list[str] = []
        self._path = path
        self._loader = yaml.SafeLoader(text)
        self._root = self._loader.get_single_node()

    def configuration(self) -> Configuration:
        settings: dict[str, dict[str, Setting]] = {}
        known = config_fields()
        if self._root is not None:
            for section, line, node in self._pairs(self._root, "the file", "a section"):
                if section not in known:
                    self._unknown(line, "section", section, SECTIONS)
                else:
                    settings[section] = self._section(section, node)
        return Configuration(self._path, settings)

    def _section(self, section: str, node: yaml.Node) -> dict[str, Setting]:
        known = config_fields()[section]
        found = {}
        for name, line, value_node in self._pairs(node, section, "a field"):
            if name not in known:
                self._unknown(line, "field", f"{section}.{name}", [f"{section}.{each}" for each in known])
                continue
            value = self._value(known[name], value_node)
            if wrong := _wrong(known[name], value):
                self._problem(line, f"{section}.{name}: {wrong}")
            else:
                found[name] = Setting(self._resolved(known[name], value), line)
        return found

    def _pairs(self, node: yaml.Node, where: str, what: str) -> Iterator[tuple[str, int, yaml.Node]]:
        """The keys of a mapping with their lines. An empty value is an empty mapping."""
        if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
            return
        line = node.start_mark.line + 1
        if not isinstance(node, yaml.MappingNode):
            self._problem(line, f"{where} must be a mapping, with one `name: value` for {what} on each line")
            return
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            name = str(getattr(key_node, "value", ""))
            if name in seen:
                self._problem(line, f"{name}, in {where}: written twice, also on line {seen[name]}: remove one")
            else:
                seen[name] = line
                yield name, line, value_node

    def _value(self, field: ConfigField, node: yaml.Node) -> Any:
        try:
            value = self._loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError):
            return node
        return float(value) if field.type is float and type(value) is int else value

    def _resolved(self, field: ConfigField, value: Any) -> Any:
        """A path in the file is relative to the file's folder, not to where a verb is started."""
        return str(self._path.absolute().parent / Path(value).expanduser()) if field.is_path else value

    def _unknown(self, line: int, what: str, name: str, known: list[str] | tuple[str, ...]) -> None:
        near = get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known[:6])}, ..."
        self._problem(line, f"{name}: no such {what}: {hint} (docs/configuration.md lists all)")

    def _problem(self, line: int, text: str) -> None:
        self.problems.append(f"{self._path}:{line}: {text}")


def _wrong(field: ConfigField, value: Any) -> str:
    """The mistake of a value, and a value that is fine; empty if there is none."""
    fits = type(value) is field.type
    if fits and field.type is list:
        fits = all(isinstance(each, str) for each in value)
    if not fits or (isinstance(value, float) and not math.isfinite(value)):
        given = "a structure" if isinstance(value, yaml.Node | dict) else repr(value)
        shown = plain(field.default)
        return f"must be {WORDS[field.type]}, not {given}" + (f": for example {shown}" if shown else "")
    if (field.least is not None and value < field.least) or (field.most is not None and value > field.most):
        unit = "" if field.unit in ("", "count", "share") else f" (in {field.unit})"
        return f"{plain(value)} is out of bounds: it must be {field.bound}{unit}"
    if field.option is not None and field.type is str and not field.is_path:
        try:
            field.option.type.convert(value, None, None)
        except click.BadParameter as error:
            return error.message
    return ""


def _contradictions(found: Configuration) -> Iterator[str]:
    """Limits that are fine alone and not together."""
    limits = found.limits
    for lower, higher, reason in misordered(limits):
        line = found.line(LIMITS, lower) or found.line(LIMITS, higher)
        values = f"{plain(getattr(limits, lower))} and {plain(getattr(limits, higher))}"
        yield f"{found.path}:{line}: limits.{lower} must be below limits.{higher}, not {values}: {reason}"
