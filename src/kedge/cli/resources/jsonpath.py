"""JSONPath as kubectl has it: templates with `{.path}`, `{range .path}...{end}` and `{"text"}`.

Steps: `.name`, `['name']`, `[0]`, `[-1]`, `[1:3]`, `[*]`, `.*`, `..name` and filters `[?(@.path=="value")]` with
`==`, `!=`, `<`, `<=`, `>`, `>=` or the path alone, which holds where the path has a value.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from kedge.errors import BadRequest

_STEP = re.compile(
    r"""\.\.(?P<deep>[\w-]+|\*)
    |\.(?P<name>(?:[\w/-]|\\.)+|\*)
    |\[(?P<quoted>'[^']*'|"[^"]*")\]
    |\[(?P<all>\*)\]
    |\[(?P<from>-?\d*):(?P<to>-?\d*)\]
    |\[(?P<index>-?\d+(?:,-?\d+)*)\]
    |\[\?\((?P<filter>(?:[^()'"]|'[^']*'|"[^"]*")+)\)\]""",
    re.X,
)
_FILTER = re.compile(r"@(?P<left>[^=!<>]*+)(?:(?P<op>==|!=|<=|>=|<|>)\s*+(?P<right>.+))?$")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Step = Callable[[Any], Iterator[Any]]


class RangeBlock(NamedTuple):
    """`{range PATH}` with the parts up to its `{end}`."""

    path: tuple[Step, ...]
    parts: tuple[Any, ...]


class JsonPath:
    """A template, parsed once and printed for any number of documents."""

    def __init__(self, template: str) -> None:
        """
        Raises:
            BadRequest: the template is malformed; the message names the place.
        """
        text = template if "{" in template else f"{{{template if template[:1] in '.[$@' else '.' + template}}}"
        self._parts = _parse(text)

    def text(self, document: Any) -> str:
        return "".join(_printed(self._parts, document))

    def values(self, document: Any) -> list[Any]:
        """The values of every path in the template, in order."""
        return [value for part in self._parts if isinstance(part, tuple) for value in _walk(part, document)]


def _parse(template: str) -> tuple[Any, ...]:
    stack: list[list[Any]] = [[]]
    ranges: list[tuple[Step, ...]] = []
    for token, inside in _tokens(template):
        if not inside:
            stack[-1].append(token)
        elif token.startswith("range "):
            ranges.append(_path(token.removeprefix("range ").strip(), template))
            stack.append([])
        elif token == "end":
            if not ranges:
                raise BadRequest(f"jsonpath {template!r}: {{end}} has no {{range}} before it")
            parts = tuple(stack.pop())
            stack[-1].append(RangeBlock(ranges.pop(), parts))
        elif token[:1] in "'\"":
            stack[-1].append(_literal(token, template))
        else:
            stack[-1].append(_path(token, template))
    if ranges:
        raise BadRequest(f"jsonpath {template!r}: {{range}} needs an {{end}}")
    return tuple(stack[0])


def _tokens(template: str) -> Iterator[tuple[str, bool]]:
    """Pieces of text, and whether each was inside braces. Braces inside quotes do not count."""
    place = 0
    for found in re.finditer(r"\{((?:[^{}'\"]|'[^']*'|\"(?:[^\"\\]|\\.)*\")*)\}", template):
        if found.start() > place:
            yield template[place : found.start()], False
        yield found[1].strip(), True
        place = found.end()
    rest = template[place:]
    if "{" in rest:
        raise BadRequest(f"jsonpath {template!r}: a brace at {place + rest.index('{')} is not closed")
    if rest:
        yield rest, False


def _literal(token: str, template: str) -> str:
    try:
        return str(json.loads(token)) if token[0] == '"' else token[1:-1]
    except ValueError as error:
        raise BadRequest(f"jsonpath {template!r}: {token} is not a string") from error


def _path(token: str, template: str) -> tuple[Step, ...]:
    text = token[1:] if token[:1] in ("$", "@") else token
    if text and text[0] not in ".[":
        text = f".{text}"
    steps: list[Step] = []
    place = 0
    if text in ("", "."):
        return ()
    while place < len(text):
        found = _STEP.match(text, place)
        if found is None:
            raise BadRequest(f"jsonpath {template!r}: {text[place:]!r} is no step: use .name, [0], [*] or [?(@.x==1)]")
        steps.append(_step(found, template))
        place = found.end()
    return tuple(steps)


def _step(found: re.Match[str], template: str) -> Step:
    groups = found.groupdict()
    if groups["deep"] is not None:
        return lambda value: _deep(value, found["deep"])
    if groups["name"] is not None and groups["name"] != "*":
        name = re.sub(r"\\(.)", r"\1", found["name"])
        return lambda value: _named(value, name)
    if groups["quoted"] is not None:
        return lambda value: _named(value, found["quoted"][1:-1])
    if groups["from"] is not None:
        part = slice(*(int(each) if each else None for each in (found["from"], found["to"])))
        return lambda value: iter(value[part] if isinstance(value, list) else ())
    if groups["index"] is not None:
        places = [int(each) for each in found["index"].split(",")]
        return lambda value: (value[at] for at in places if isinstance(value, list) and -len(value) <= at < len(value))
    if groups["filter"] is not None:
        holds = _filter(found["filter"].strip(), template)
        return lambda value: (each for each in _children(value) if holds(each))
    return _children


def _filter(text: str, template: str) -> Callable[[Any], bool]:
    found = _FILTER.match(text)
    if found is None:
        raise BadRequest(f'jsonpath {template!r}: the filter {text!r} must be like @.name=="web"')
    left = _path(found["left"].strip(), template)
    if found["op"] is None:
        return lambda value: any(True for _ in _walk(left, value))
    right, compare = _operand(found["right"].strip(), template), _OPERATORS[found["op"]]

    def holds(value: Any) -> bool:
        try:
            return any(compare(each, right) for each in _walk(left, value))
        except TypeError:
            return False  # values of different types are not ordered

    return holds


def _operand(text: str, template: str) -> Any:
    if text[:1] == "'":
        return text.strip("'")
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadRequest(f"jsonpath {template!r}: {text} is neither a number nor a string in quotes") from error


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        return iter(value.values())
    return iter(value if isinstance(value, list) else ())


def _named(value: Any, name: str) -> Iterator[Any]:
    if isinstance(value, dict) and name in value:
        yield value[name]


def _deep(value: Any, name: str) -> Iterator[Any]:
    yield from _children(value) if name == "*" else _named(value, name)
    for each in _children(value):
        yield from _deep(each, name)


def _walk(path: Sequence[Step], document: Any) -> Iterator[Any]:
    if not path:
        yield document
        return
    for value in path[0](document):
        yield from _walk(path[1:], value)


def _printed(parts: Sequence[Any], document: Any) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, RangeBlock):
            for value in _walk(part.path, document):
                yield from _printed(part.parts, value)
        else:
            yield " ".join(_shown(value) for value in _walk(part, document))


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
