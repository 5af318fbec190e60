"""YAML with locations: each value and each key has its file, line and column.

`schema` and `steps` read files through `Fields`, so that an error names the place and what to write instead. Nothing
here depends on what a scenario is.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import yaml

from kedge.api.durations import parse_duration
from kedge.errors import KedgeError

_T = TypeVar("_T")


class ScenarioError(KedgeError):
    """A scenario file is invalid. The message has the location and what to write instead."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A location in a file."""

    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def fail(self, message: str) -> NoReturn:
        raise ScenarioError(f"{self}: {message}")


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A value and its location. Mappings and lists hold nodes in turn."""

    value: Any
    where: SourceLocation
    keys: dict[str, SourceLocation] | None = None
    """The location of each key of a mapping."""

    def plain(self) -> Any:
        """The value without locations, as in an object's manifest."""
        if isinstance(self.value, dict):
            return {name: each.plain() for name, each in self.value.items()}
        if isinstance(self.value, list):
            return [each.plain() for each in self.value]
        return self.value

    def fail(self, message: str) -> NoReturn:
        self.where.fail(message)


def parse(text: str, file: str) -> YamlNode:
    """Read one YAML document.

    Raises:
        ScenarioError: it is not YAML, is empty, or has a key twice.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            SourceLocation(file).fail("the file is empty: begin with `scenario: NAME`")
        return _node_of(loader, node, file)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = SourceLocation(file, mark.line + 1, mark.column + 1) if mark is not None else SourceLocation(file)
        raise ScenarioError(f"{where}: this is not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ScenarioError(f"{SourceLocation(file)}: this is not YAML: {error}") from error
    finally:
        loader.dispose()


def _node_of(loader: yaml.SafeLoader, node: yaml.Node, file: str) -> YamlNode:
    where = SourceLocation(file, node.start_mark.line + 1, node.start_mark.column + 1)
    if isinstance(node, yaml.SequenceNode):
        return YamlNode([_node_of(loader, each, file) for each in node.value], where)
    if not isinstance(node, yaml.MappingNode):
        return YamlNode(loader.construct_object(node), where)
    found: dict[str, YamlNode] = {}
    keys: dict[str, SourceLocation] = {}
    for key, value in node.value:
        at = SourceLocation(file, key.start_mark.line + 1, key.start_mark.column + 1)
        name = str(key.value)  # the plain text: `on` and `1` are names here
        if name in found:
            at.fail(f"{name!r} is here twice: remove one (the first is on line {keys[name].line})")
        found[name], keys[name] = _node_of(loader, value, file), at
    return YamlNode(found, where, keys)


# -- reading -------------------------------------------------------------------------------------


class Fields:
    """Reads a mapping field by field; `done` rejects fields that were not read."""

    def __init__(self, part: YamlNode, what: str) -> None:
        if not isinstance(part.value, dict):
            part.fail(f"{what} must be a mapping, such as `name: value`, not {describe(part.value)}")
        self.part = part
        self._what = what
        self._left = dict(part.value)
        self._known: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def need(self, name: str, read: Callable[[YamlNode], _T]) -> _T:
        self._known.append(name)
        if name not in self._left:
            near = difflib.get_close_matches(name, self._left, n=1, cutoff=0.6)
            if near:
                self._place(near[0]).fail(f"{self._what} has no `{near[0]}`: did you mean `{name}`?")
            self.part.fail(f"{self._what} lacks `{name}`: add it")
        return read(self._left.pop(name))

    def take(self, name: str, read: Callable[[YamlNode], _T], default: _T) -> _T:
        self._known.append(name)
        return read(self._left.pop(name)) if name in self._left else default

    def names(self) -> list[str]:
        return list(self._left)

    def done(self, *, also: Iterable[str] = ()) -> None:
        for name in self._left:
            self._place(name).fail(f"{self._what} has no `{name}`{suggest(name, [*self._known, *also])}")

    def _place(self, name: str) -> SourceLocation:
        return (self.part.keys or {}).get(name, self.part.where)


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known word, or all of them."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f": did you mean `{near[0]}`?"
    return f": it has {', '.join(f'`{name}`' for name in names)}" if names else ": remove it"


def describe(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return f"{value!r}"


def text(part: YamlNode) -> str:
    if not isinstance(part.value, str) or not part.value:
        part.fail(f"expected a string, got {describe(part.value)}: put it in quotes")
    return str(part.value)


def number(part: YamlNode) -> int:
    if not isinstance(part.value, int) or isinstance(part.value, bool) or part.value < 0:
        part.fail(f"expected a whole number from 0 up, got {describe(part.value)}")
    return int(part.value)


def flag(part: YamlNode) -> bool:
    if not isinstance(part.value, bool):
        part.fail(f"expected `true` or `false`, got {describe(part.value)}")
    return bool(part.value)


def seconds(part: YamlNode) -> float:
    """A duration such as `8s` or `1m30s`, in seconds."""
    try:
        nanoseconds = parse_duration(part.value) if isinstance(part.value, str) else -1
    except ValueError:
        nanoseconds = -1
    if nanoseconds < 0:
        part.fail(f"expected a duration, such as 8s or 1m30s, got {describe(part.value)}")
    return nanoseconds / 1e9


def rate(part: YamlNode) -> float:
    """How fast a clock runs, such as 1.05."""
    if isinstance(part.value, bool) or not isinstance(part.value, int | float) or part.value <= 0:
        part.fail(f"expected a rate above 0, such as 1.05, got {describe(part.value)}")
    return float(part.value)


def texts(part: YamlNode) -> tuple[str, ...]:
    return tuple(text(each) for each in items(part))


def items(part: YamlNode) -> list[YamlNode]:
    if not isinstance(part.value, list):
        part.fail(f"expected a list, each item after a dash, got {describe(part.value)}")
    return list(part.value)


def mapping(part: YamlNode) -> dict[str, Any]:
    if not isinstance(part.value, dict):
        part.fail(f"expected a mapping, such as `name: value`, got {describe(part.value)}")
    plain: dict[str, Any] = part.plain()
    return plain


def plain_mapping(fields: Fields, name: str) -> dict[str, Any]:
    """An optional mapping."""
    return fields.need(name, mapping) if name in fields else {}


def anything(part: YamlNode) -> Any:
    return part.plain()
