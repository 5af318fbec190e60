"""How the source reads: one class name for one thing, short files and functions, nothing written twice, plain words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = sorted((ROOT / "src").rglob("*.py"))
PYTHON = sorted(path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
TEXTS = [path for ending in ("txt", "yaml", "js", "html", "css") for path in (ROOT / "src").rglob(f"*.{ending}")]
"""Texts that users read: descriptions of types and fields, scenarios, the page."""
SETTINGS = [path for name in (".ci", "deploy") for path in (ROOT / name).rglob("*") if path.is_file()]
"""Scripts, units and images, whose comments are read too."""
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *TEXTS, *SETTINGS, ROOT / "Makefile", ROOT / "pyproject.toml"]
)

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
REPEATED_LINES_MAX = 5

TABLES = {"limits.py"}
"""Files that are one long table, relative to `src/kedge`: a reader looks a row up, and never reads them through."""

NOUNS_IN_ING = {"autoscaling", "binding", "coupling", "recording", "wiring"}
"""Names of modules that end like a gerund and are nouns of the field."""

PERSONS = re.compile(r"\b(who|whoever|whom|whomever|nobody|somebody|anybody|everybody|anew)\b", re.I)
HEADLESS = re.compile(r"(?:^|[.:;!?]\s+)(?:What|Who|Whom|Whoever|Whatever|Those)\b(?![^.?!]{0,200}\?)")
ONE_OF_THEM = re.compile(r"\bone\s+(?:#\s*)?of\s+(?:#\s*)?(?:them|those)\b", re.I)
"""Also across the end of a line, in a page or in a comment."""
SPEECH = re.compile(
    r"\b(tells?|told|telling|says?|said|saying|speaks?|spoken?|speaking|hears?|heard|hearing|worded|wording)\b", re.I
)
"""Verbs of speech. The noun `word` is a word of the field: in a command line, in a file."""
INVERTED = re.compile(r"(?:^|[.:;!?]\s+)Of (?:an?|the|its|all|each|every|one|two|several|many|these|those)\b")
HEADLESS_TEST = re.compile(r"^test_(?:what|who|whoever|whatever|those)_")

Tree = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_a_class_name_is_defined_once() -> None:
    places = defaultdict(list)
    for path in SOURCE:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{shown(path)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_modules_are_named_by_subject_and_not_by_a_gerund() -> None:
    modules = [path for folder in ("src", "benchmarks", "tests/kit") for path in (ROOT / folder).rglob("*.py")]
    stems = {stem for path in modules for stem in (path.stem, path.parent.name)}
    assert sorted(stem for stem in stems if stem.endswith("ing") and stem not in NOUNS_IN_ING) == []
    assert stems >= NOUNS_IN_ING, "remove names that no module has from the list"


def test_no_source_file_is_longer_than_500_lines() -> None:
    lengths = {shown(path): path.read_text().count("\n") for path in SOURCE}
    tables = {f"src/kedge/{name}" for name in TABLES}
    assert {path: lines for path, lines in lengths.items() if lines > FILE_LINES_MAX and path not in tables} == {}


def test_no_function_is_longer_than_60_lines() -> None:
    long = {}
    for path in SOURCE:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long[f"{shown(path)}: {node.name}"] = lines
    assert long == {}


def statements(path: Path) -> Iterator[list[tuple[int, str]]]:
    """The lines of each function body, without its signature, docstring, comments and lone punctuation."""
    lines = path.read_text().splitlines()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            if body:
                numbered = range(body[0].lineno, (node.end_lineno or node.lineno) + 1)
                code = [(number, lines[number - 1].strip()) for number in numbered]
                yield [(number, line) for number, line in code if re.search(r"\w", line) and not line.startswith("#")]


def test_no_run_of_six_lines_is_repeated_in_the_source() -> None:
    run = REPEATED_LINES_MAX + 1
    places = defaultdict(set)
    for path in SOURCE:
        for body in statements(path):
            for first in range(len(body) - run + 1):
                window = body[first : first + run]
                places[tuple(line for _, line in window)].add(f"{shown(path)}:{window[0][0]}")
    assert sorted(sorted(found) for found in places.values() if len(found) > 1) == []


@cache
def sentences(path: Path) -> list[tuple[int, str]]:
    """Every docstring, comment and string of a file, with its line."""
    return [(line, " ".join(text.split())) for line, text in _texts(path.read_text())]


def _texts(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name.replace("_", " ")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#: ")


def test_things_are_not_called_persons_and_sentences_begin_with_a_noun() -> None:
    found = []
    for path in PYTHON:
        if path == Path(__file__):
            continue
        for line, plain in sentences(path):
            if PERSONS.search(plain) or HEADLESS.search(plain) or HEADLESS_TEST.search(plain.replace(" ", "_")):
                found.append(f"{shown(path)}:{line}: {plain[:120]}")
    for path in PAGES:
        for number, row in enumerate(path.read_text().splitlines(), 1):
            if PERSONS.search(row) or any(HEADLESS.search(part) for part in re.split(r"  +", row.lstrip("#*-| "))):
                found.append(f"{shown(path)}:{number}: {row[:120]}")
    assert found == []


def test_verbs_are_of_the_field_and_the_main_clause_comes_first() -> None:
    found = []
    for path in PYTHON:
        if path == Path(__file__):
            continue
        for line, plain in sentences(path):
            if SPEECH.search(plain) or INVERTED.search(plain):
                found.append(f"{shown(path)}:{line}: {plain[:120]}")
    for path in PAGES:
        for number, row in enumerate(path.read_text().splitlines(), 1):
            if SPEECH.search(row) or INVERTED.search(row.lstrip("#*-| ")):
                found.append(f"{shown(path)}:{number}: {row[:120]}")
    assert found == []


def test_a_thing_is_named_and_not_one_of_them() -> None:
    found = []
    for path in (*PYTHON, *PAGES):
        if path == Path(__file__):
            continue
        text = path.read_text().replace("_", " ")
        for match in ONE_OF_THEM.finditer(text):
            found.append(f"{shown(path)}:{text.count(chr(10), 0, match.start()) + 1}: {' '.join(match[0].split())}")
    assert found == []
