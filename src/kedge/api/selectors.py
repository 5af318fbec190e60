"""Selectors of labels, nodes and fields, compiled once and evaluated often.

Label selectors are text (`app in (a,b),!old`) or objects; node selectors are objects; field selectors are text. A
malformed text is a `BadRequest` with the position. `validation` reports malformed selectors in objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kedge.api.codec import decode_json
from kedge.api.names import label_value_problem, qualified_name_problem
from kedge.api.views import LabelSelectorSpec, NodeSelectorRequirement, NodeSelectorSpec, NodeSelectorTerm
from kedge.caches import remembered, weighed
from kedge.errors import BadRequest

if TYPE_CHECKING:
    from kedge.api.kinds import Kind

_INT64_MAX = 2**63 - 1

# -- requirements on labels ------------------------------------------------------------------------

IN, NOT_IN, EXISTS, DOES_NOT_EXIST, GT, LT = "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label. `NotIn` and `DoesNotExist` hold for objects that lack the label."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case _:
                return value is not None and self._compares(value)

    def _compares(self, value: str) -> bool:
        have, bound = parse_int64(value), parse_int64(next(iter(self.values), ""))
        if have is None or bound is None:
            return False
        return have > bound if self.operator == GT else have < bound

    def __str__(self) -> str:
        listed = ",".join(sorted(self.values))
        match self.operator:
            case "In":
                return f"{self.key}={listed}" if len(self.values) == 1 else f"{self.key} in ({listed})"
            case "NotIn":
                # A set also for one value, as in Kubernetes: kubectl cannot read `!=` in the selector of a scale.
                return f"{self.key} notin ({listed})" if listed else f"{self.key}!="
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
            case _:
                return f"{self.key}{'>' if self.operator == GT else '<'}{listed}"


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All requirements must hold. With none it matches everything; `NOTHING` matches nothing."""

    requirements: tuple[Requirement, ...] = ()
    never: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        return not self.never and all(requirement.matches(labels) for requirement in self.requirements)

    @property
    def empty(self) -> bool:
        """Whether it matches everything."""
        return not self.requirements and not self.never

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


EVERYTHING: Final = LabelSelector()
NOTHING: Final = LabelSelector(never=True)


@weighed(entries=1024, bytes_max=8 << 20)
def label_selector(spec: LabelSelectorSpec | None) -> LabelSelector:
    """Compile a `LabelSelector` object. Absent matches nothing; present and empty matches everything."""
    if spec is None:
        return NOTHING
    requirements = [Requirement(key, IN, frozenset((value,))) for key, value in spec.match_labels.items()]
    requirements += [Requirement(e.key, e.operator, frozenset(e.values)) for e in spec.match_expressions]
    return LabelSelector(_in_order(requirements))


def labels_selector(labels: Mapping[str, str]) -> LabelSelector:
    """Compile a plain map, as a Service has: every label must have its value."""
    return LabelSelector(_in_order(Requirement(key, IN, frozenset((value,))) for key, value in labels.items()))


def _in_order(requirements: Iterable[Requirement]) -> tuple[Requirement, ...]:
    return tuple(sorted(requirements, key=lambda requirement: requirement.key))


# -- label selectors as text -----------------------------------------------------------------------

_TOKEN = re.compile(r"\s*(==|!=|=|!|>|<|\(|\)|,|[^\s=!<>(),]+)\s*")


def parse_label_selector(text: str) -> LabelSelector:
    """Parse the argument of `kubectl get -l`: `app=web,tier in (a, b),!old,size!=3`. Empty text matches everything.

    Raises:
        BadRequest: malformed; the message has the token that was found and the one expected.
    """
    tokens = _Tokens(text)
    if tokens.peek() == "":
        return EVERYTHING
    requirements = [_requirement(tokens)]
    while tokens.peek() == ",":
        tokens.next()
        requirements.append(_requirement(tokens))
    if tokens.peek() != "":
        raise tokens.unexpected("',' or the end")
    return LabelSelector(_in_order(requirements))


class _Tokens:
    def __init__(self, text: str) -> None:
        self.text = text
        self._words: list[str] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                break
            self._words.append(match[1])
            at = match.end()
        self._at = 0

    def peek(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def next(self) -> str:
        word = self.peek()
        self._at += 1
        return word

    def unexpected(self, wanted: str) -> BadRequest:
        found = repr(self.peek()) if self.peek() else "the end"
        return BadRequest(f"unable to parse label selector {self.text!r}: found {found}, expected {wanted}")

    def refuse(self, why: str) -> BadRequest:
        return BadRequest(f"unable to parse label selector {self.text!r}: {why}")


_PUNCTUATION = frozenset({"=", "==", "!=", "!", ">", "<", "(", ")", ",", ""})


def _requirement(tokens: _Tokens) -> Requirement:
    if tokens.peek() == "!":
        tokens.next()
        return Requirement(_key(tokens), DOES_NOT_EXIST)
    key = _key(tokens)
    match tokens.peek():
        case "" | ",":
            return Requirement(key, EXISTS)
        case "=" | "==":
            tokens.next()
            return Requirement(key, IN, frozenset((_exact_value(tokens),)))
        case "!=":
            tokens.next()
            return Requirement(key, NOT_IN, frozenset((_exact_value(tokens),)))
        case ">" | "<" as sign:
            tokens.next()
            value = _exact_value(tokens)
            if parse_int64(value) is None:
                raise tokens.refuse(f"{value!r} must be an integer after {sign!r}")
            return Requirement(key, GT if sign == ">" else LT, frozenset((value,)))
        case "in" | "notin" as word:
            tokens.next()
            return Requirement(key, IN if word == "in" else NOT_IN, _value_set(tokens))
        case _:
            raise tokens.unexpected("one of '=', '==', '!=', 'in', 'notin', '>', '<'")


def _key(tokens: _Tokens) -> str:
    if tokens.peek() in _PUNCTUATION:
        raise tokens.unexpected("a label key")
    key = tokens.next()
    problem = qualified_name_problem(key)
    if problem:
        raise tokens.refuse(f"label key {key!r}: {problem}")
    return key


def _exact_value(tokens: _Tokens) -> str:
    if tokens.peek() in ("", ","):
        return ""
    return _value(tokens)


def _value(tokens: _Tokens) -> str:
    if tokens.peek() in _PUNCTUATION:
        raise tokens.unexpected("a label value")
    value = tokens.next()
    problem = label_value_problem(value)
    if problem:
        raise tokens.refuse(f"label value {value!r}: {problem}")
    return value


def _value_set(tokens: _Tokens) -> frozenset[str]:
    if tokens.peek() != "(":
        raise tokens.unexpected("'('")
    tokens.next()
    if tokens.peek() == ")":
        raise tokens.refuse("for 'in' and 'notin' the set of values can't be empty")
    values = set()
    while True:
        values.add("" if tokens.peek() in (",", ")") else _value(tokens))
        match tokens.next():
            case ",":
                continue
            case ")":
                return frozenset(values)
            case _:
                tokens._at -= 1
                raise tokens.unexpected("',' or ')'")


# -- node selectors --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """Requirements on a node's labels and on its name, all of which must hold. With none it matches no node."""

    expressions: tuple[Requirement, ...]
    fields: tuple[Requirement, ...]

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        if not self.expressions and not self.fields:
            return False
        if not all(requirement.matches(labels) for requirement in self.expressions):
            return False
        return not self.fields or all(requirement.matches({"metadata.name": name}) for requirement in self.fields)


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Any one of the terms must hold."""

    terms: tuple[NodeTerm, ...]

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        return any(term.matches(name, labels) for term in self.terms)


@weighed(entries=1024, bytes_max=8 << 20)
def node_selector(spec: NodeSelectorSpec) -> NodeSelector:
    return NodeSelector(tuple(node_term(term) for term in spec.node_selector_terms))


@weighed(entries=1024, bytes_max=8 << 20)
def node_term(term: NodeSelectorTerm) -> NodeTerm:
    """Compile one term, of a preference for instance."""
    return NodeTerm(_compiled(term.match_expressions), _compiled(term.match_fields))


def _compiled(requirements: Iterable[NodeSelectorRequirement]) -> tuple[Requirement, ...]:
    return tuple(Requirement(r.key, r.operator, frozenset(r.values)) for r in requirements)


_INTEGER = re.compile(r"([+-]?)0*(\d{1,19})", re.ASCII)


def parse_int64(text: str) -> int | None:
    """An integer as Go's `ParseInt` accepts it, with any number of leading zeros, or None."""
    match = _INTEGER.fullmatch(text)
    if match is None:
        return None
    number = int(match[1] + match[2])
    return number if -_INT64_MAX - 1 <= number <= _INT64_MAX else None


# -- field selectors -------------------------------------------------------------------------------

_ALWAYS_SELECTABLE = frozenset({"metadata.name", "metadata.namespace"})
_STORED_AT = {"status.successful": "status.succeeded", "source": "source.component", "spec.host": "spec.nodeName"}
"""Where a selectable field is stored, if not under its own path."""
_WHEN_ABSENT = {
    "spec.unschedulable": "false",
    "spec.hostNetwork": "false",
    "status.replicas": "0",
    "status.successful": "0",
}
"""The value of a field that Kubernetes always sets, when the object lacks it; any other field is empty."""


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Every field must have, or must not have, its value. An absent field has the value ""."""

    requirements: tuple[tuple[str, bool, str], ...] = ()
    """Path, whether it must be equal, value."""

    @property
    def empty(self) -> bool:
        return not self.requirements

    def exact(self, path: str) -> str | None:
        """The value that the selector requires of `path`, if any."""
        for wanted, equal, value in self.requirements:
            if wanted == path and equal:
                return value
        return None

    def matches(self, value: bytes) -> bool:
        """Whether a stored object matches. Only the selected fields are decoded."""
        if not self.requirements:
            return True
        found = read_fields(tuple([path for path, _, _ in self.requirements]), value)
        return all((found[path] == wanted) is equal for path, equal, wanted in self.requirements)

    def __str__(self) -> str:
        return ",".join(f"{path}{'=' if equal else '!='}{_escape(value)}" for path, equal, value in self.requirements)


ANY_FIELDS: Final = FieldSelector()


def parse_field_selector(kind: Kind, text: str) -> FieldSelector:
    """Parse the argument of `kubectl get --field-selector`: `spec.nodeName=n1,status.phase!=Running`.

    Raises:
        BadRequest: malformed, or a field that this kind cannot be selected by.
    """
    requirements = []
    for term in _split_terms(text):
        path, equal, value = _split_term(term, text)
        if path not in _ALWAYS_SELECTABLE and path not in kind.selectable:
            supported = ", ".join(sorted(_ALWAYS_SELECTABLE | kind.selectable))
            raise BadRequest(f'"{path}" is not a known field selector of {kind.resource}: only {supported}')
        requirements.append((path, equal, value))
    return FieldSelector(tuple(requirements))


def _split_terms(text: str) -> list[str]:
    terms, start, escaped = [], 0, False
    for at, char in enumerate(text):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == ",":
            terms.append(text[start:at])
            start = at + 1
    terms.append(text[start:])
    return [term for term in terms if term]


_FIELD_TERM = re.compile(r"([^=!\\]*)(==|!=|=)(.*)", re.DOTALL)


def _split_term(term: str, text: str) -> tuple[str, bool, str]:
    match = _FIELD_TERM.fullmatch(term)
    if match is None or not match[1]:
        raise BadRequest(f"invalid field selector {text!r}: can't understand {term!r}, use field=value or field!=value")
    return match[1], match[2] != "!=", _unescape(match[3], text)


def _unescape(value: str, text: str) -> str:
    out, escaped = [], False
    for char in value:
        if escaped:
            if char not in "\\,=":
                raise BadRequest(f"invalid field selector {text!r}: \\{char} is not an escape")
            out.append(char)
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "=":
            raise BadRequest(f"invalid field selector {text!r}: write '=' in a value as '\\='")
        else:
            out.append(char)
    if escaped:
        raise BadRequest(f"invalid field selector {text!r}: it ends in the middle of an escape")
    return "".join(out)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")


_READ_MAX = 128
"""Objects whose fields are cached: watches by a field evaluate the same change one after the other, each with its own
value. A thousand agents need one decoding of a pod, not a thousand."""


_READ_BYTES_MAX = 16 * 1024
"""Larger objects are decoded for each watch, so that the cache does not keep them."""


def read_fields(paths: tuple[str, ...], value: bytes) -> Mapping[str, str]:
    """Fields of a stored object as text. The result is shared and must not be changed."""
    return _read_fields(paths, value) if len(value) <= _READ_BYTES_MAX else _field_reader(paths)(value)


@remembered(entries=_READ_MAX, entry_bytes=2 * _READ_BYTES_MAX)
def _read_fields(paths: tuple[str, ...], value: bytes) -> Mapping[str, str]:
    return _field_reader(paths)(value)


@remembered(entries=_READ_MAX, entry_bytes=4096)  # the fields that selectors of a kind may name
def _field_reader(paths: tuple[str, ...]) -> Callable[[bytes], dict[str, str]]:
    """A decoder of just these fields."""
    tree: dict[str, Any] = {}
    parts = [(path, _STORED_AT.get(path, path).split(".")) for path in paths]
    for _, (*parents, leaf) in parts:
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node.setdefault(leaf, None)
    decoder = msgspec.json.Decoder(_partial_struct("Fields", tree))

    def read(value: bytes) -> dict[str, str]:
        try:
            decoded: Any = decoder.decode(value)
        except msgspec.ValidationError:
            decoded = decode_json(value)
        return {path: _text(_dig(decoded, steps)) or _WHEN_ABSENT.get(path, "") for path, steps in parts}

    return read


def _partial_struct(name: str, tree: Mapping[str, Any]) -> Any:
    members = [
        (
            f"m_{part}",
            Any if below is None else _partial_struct(part, below) | None,
            msgspec.field(name=part, default=None),
        )
        for part, below in tree.items()
    ]
    return msgspec.defstruct(name, members)


def _dig(value: Any, steps: Iterable[str]) -> Any:
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else getattr(value, f"m_{step}", None)
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(_text(item.get("ip", "")) if isinstance(item, dict) else _text(item) for item in value)
    return "" if value is None else str(value)
