"""Every regular expression of the source, and texts made from its own parts on which a backtracking one is slow."""

from __future__ import annotations

import ast
import itertools
import re
import string
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as sre_parser  # type: ignore[attr-defined]
from typing import Any

SOURCE = Path(__file__).parents[2] / "src" / "kedge"
_CALLS = ("compile", "match", "fullmatch", "search", "findall", "finditer", "sub", "split")
_LETTERS = "a1 " + string.printable
_WRONG_ENDS = ("\x00", "!", "\n\x00", "")
_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
_CATEGORIES = {
    sre.CATEGORY_DIGIT: "1",
    sre.CATEGORY_WORD: "a",
    sre.CATEGORY_SPACE: " ",
    sre.CATEGORY_NOT_DIGIT: "a",
    sre.CATEGORY_NOT_WORD: " ",
    sre.CATEGORY_NOT_SPACE: "a",
}


@dataclass(frozen=True)
class SourceRegex:
    """One regular expression, with the methods that its module calls on it."""

    place: str
    pattern: str
    flags: int
    methods: tuple[str, ...]

    @property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern, self.flags)


def source_regexes(root: Path = SOURCE) -> tuple[list[SourceRegex], list[str]]:
    """Every regular expression that stands in the source, and the places of those that are made at run time."""
    found: list[SourceRegex] = []
    made: list[str] = []
    for path in sorted(root.rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if not (isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "re"):
                continue
            if call.func.attr not in _CALLS:
                continue
            place = f"{path.relative_to(root)}:{call.lineno}"
            try:
                pattern = ast.literal_eval(call.args[0])
            except ValueError:
                made.append(place)
                continue
            if isinstance(pattern, bytes):
                pattern = pattern.decode("latin-1")  # as a text it repeats and backtracks alike
            flags = eval(ast.unparse(call.args[1]), {"re": re}) if call.func.attr == "compile" and call.args[1:] else 0
            found.append(SourceRegex(place, pattern, int(flags), _methods(call, tree, text)))
    return found, made


def _methods(call: ast.Call, tree: ast.Module, text: str) -> tuple[str, ...]:
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr != "compile":
        return (call.func.attr,)
    names = [
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is call
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    used = {method for name in names for method in re.findall(rf"\b{re.escape(name)}\.([a-z]+)\(", text)}
    return tuple(sorted(used & set(_CALLS))) or ("fullmatch", "search")


# -- texts -----------------------------------------------------------------------------------------


def attacks(regex: SourceRegex) -> Iterator[tuple[str, str, str]]:
    """Texts as (begin, pumped, end): `begin` leads to a repetition, `pumped` is what it repeats, `end` fits nothing."""
    parsed = sre_parser.parse(regex.pattern, regex.flags)
    seen: set[tuple[str, str, str]] = set()
    for begin, pumped in _pumps(parsed, ""):
        for start in {begin, ""}:
            for end in _WRONG_ENDS:
                if (start, pumped, end) not in seen:
                    seen.add((start, pumped, end))
                    yield start, pumped, end


def _pumps(sequence: Any, begin: str) -> Iterator[tuple[str, str]]:
    for op, argument in sequence:
        if op in _REPEATS:
            lowest, highest, body = argument
            if highest == sre.MAXREPEAT:
                for piece in _samples(body):
                    yield begin, piece
                    if begin:
                        yield "", begin + piece
            yield from _pumps(body, begin)
            begin += _sample(body) * max(lowest, 1)
            continue
        for inner in _inner(op, argument):
            yield from _pumps(inner, begin)
        begin += _of_one(op, argument)


def _inner(op: Any, argument: Any) -> list[Any]:
    if op is sre.SUBPATTERN:
        return [argument[3]]
    if op is sre.BRANCH:
        return list(argument[1])
    if op is sre.ATOMIC_GROUP:
        return [argument]
    return []


def _sample(sequence: Any) -> str:
    return "".join(_of_one(op, argument) for op, argument in sequence)


def _samples(sequence: Any) -> set[str]:
    """A few different texts that the sequence matches, so that neighbours which overlap are met."""
    whole = _sample(sequence)
    if len(sequence) != 1:
        return {whole}
    op, argument = sequence[0]
    if op is sre.IN:
        return (
            {_of_item(item) for item in argument if item[0] is not sre.NEGATE}
            if argument[0][0] is not sre.NEGATE
            else {letter for letter in "a1 .-\"'\\" if _matches(argument, letter)}
        )
    if op is sre.ANY:
        return set("a [(")
    if op is sre.BRANCH:
        return {_sample(each) for each in argument[1]}
    if op is sre.SUBPATTERN:
        return _samples(argument[3])
    return {whole}


def _of_one(op: Any, argument: Any) -> str:
    if op is sre.LITERAL:
        return chr(argument)
    if op is sre.NOT_LITERAL:
        return "a" if argument != ord("a") else "b"
    if op is sre.ANY:
        return "a"
    if op is sre.IN:
        return next(letter for letter in _LETTERS if _matches(argument, letter))
    if op is sre.BRANCH:
        return _sample(argument[1][0])
    if op in _REPEATS:
        lowest, _, body = argument
        return str(_sample(body) * max(lowest, 1))
    return "".join(_sample(each) for each in _inner(op, argument))


def _of_item(item: tuple[Any, Any]) -> str:
    op, argument = item
    if op is sre.LITERAL:
        return chr(argument)
    if op is sre.RANGE:
        return chr(argument[0])
    return _CATEGORIES[argument]


def _matches(items: Any, letter: str) -> bool:
    negated = items[0][0] is sre.NEGATE
    found = any(_has(op, argument, letter) for op, argument in items if op is not sre.NEGATE)
    return found != negated


def _has(op: Any, argument: Any, letter: str) -> bool:
    if op is sre.LITERAL:
        return bool(ord(letter) == argument)
    if op is sre.RANGE:
        return bool(argument[0] <= ord(letter) <= argument[1])
    tests = {
        sre.CATEGORY_DIGIT: letter.isdigit(),
        sre.CATEGORY_WORD: letter.isalnum() or letter == "_",
        sre.CATEGORY_SPACE: letter.isspace(),
    }
    opposites = {
        sre.CATEGORY_NOT_DIGIT: sre.CATEGORY_DIGIT,
        sre.CATEGORY_NOT_WORD: sre.CATEGORY_WORD,
        sre.CATEGORY_NOT_SPACE: sre.CATEGORY_SPACE,
    }
    return tests[argument] if argument in tests else not tests[opposites[argument]]


# -- time ------------------------------------------------------------------------------------------

_LENGTHS = (10, 20, 200, 1_000, 8_000)
_GROWTH_MAX = 3.0
"""How much more CPU a character may cost in the longer text. Quadratic time gives 8 from 1,000 to 8,000 characters."""
_SHORT_S = 0.001
"""Below it nothing is compared: 8,000 characters in quadratic time take a hundred times as long."""


def superlinear_attack(regex: SourceRegex) -> tuple[str, str, str] | None:
    """An attack whose CPU time grows faster than its length, or None. CPU time, so load on the machine adds little."""
    compiled = regex.compiled
    for method in regex.methods:
        for attack in attacks(regex):
            if attack[1] and _is_superlinear(compiled, method, attack):
                return attack
    return None


def _is_superlinear(compiled: re.Pattern[str], method: str, attack: tuple[str, str, str]) -> bool:
    """Lengths rise step by step, so that exponential time is found while it is still short."""
    begin, pumped, end = attack
    texts = [begin + pumped * max(1, length // len(pumped)) + end for length in _LENGTHS]
    for shorter, longer in itertools.pairwise(texts):
        if _cpu_s(compiled, method, longer, tries=1) > _SHORT_S:
            before, after = (_cpu_s(compiled, method, text, tries=5) / len(text) for text in (shorter, longer))
            if after > _GROWTH_MAX * before and after * len(longer) > _SHORT_S:
                return True
    return False


def _cpu_s(compiled: re.Pattern[str], method: str, text: str, *, tries: int) -> float:
    """CPU time of one call, the best of several."""
    best = float("inf")
    for _ in range(tries):
        before = time.thread_time()
        if method == "sub":
            compiled.sub("", text)
        elif method == "finditer":
            deque(compiled.finditer(text), maxlen=0)
        else:
            getattr(compiled, method)(text)
        best = min(best, time.thread_time() - before)
    return best
