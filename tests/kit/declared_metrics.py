"""Every metric that the source declares, read from the calls of `counter`, `gauge` and `histogram`."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "kedge"
KINDS = {"counter": "counter", "gauge": "gauge", "histogram": "histogram", "Counter": "counter"}


@dataclass(frozen=True, order=True)
class DeclaredMetric:
    name: str
    kind: str
    help_text: str
    labels: tuple[str, ...]
    place: str
    """The folder of the module, relative to the source."""

    @property
    def samples(self) -> tuple[str, ...]:
        """The names under which its samples are exported."""
        if self.kind == "histogram":
            return tuple(self.name + end for end in ("_bucket", "_sum", "_count"))
        return (self.name,)


def declared_metrics() -> list[DeclaredMetric]:
    """In order of name; a metric that several modules use appears once for each different declaration."""
    found = {each for path in SOURCE.rglob("*.py") for each in _of_module(path)}
    return sorted(found)


def _of_module(path: Path) -> Iterator[DeclaredMetric]:
    tree = ast.parse(path.read_text())
    place = path.relative_to(SOURCE).as_posix()
    names = _constants(tree)
    for node, rows in _calls(tree, []):
        label_node = node.args[2] if len(node.args) > 2 else None
        labels = _strings(label_node, names) if label_node is not None else ()
        kind = KINDS[_called(node)]
        first, second = node.args[:2]
        if isinstance(first, ast.Constant):
            help_text = second.value if isinstance(second, ast.Constant) else ""
            yield DeclaredMetric(str(first.value), kind, str(help_text), labels, place)
            continue
        for row in rows:
            help_text = second.value if isinstance(second, ast.Constant) else row[1]
            yield DeclaredMetric(str(row[0]), kind, str(help_text), labels, place)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _calls(node: ast.AST, rows: list[tuple[str, ...]]) -> Iterator[tuple[ast.Call, list[tuple[str, ...]]]]:
    """Each declaration, with the rows of the literal table that a loop around it goes through."""
    if isinstance(node, ast.For):
        rows = _rows(node.iter) or rows
    elif isinstance(node, ast.ListComp | ast.GeneratorExp):
        rows = _rows(node.generators[0].iter) or rows
    elif isinstance(node, ast.FunctionDef):
        tables = [each for each in ast.walk(node) if isinstance(each, ast.AnnAssign | ast.Assign) and each.value]
        rows = [row for each in tables if each.value is not None for row in _rows(each.value)]
    if isinstance(node, ast.Call) and _called(node) in KINDS and len(node.args) >= 2 and _is_name(node.args[0]):
        yield node, rows
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, rows)


def _is_name(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.startswith("kedge_")
    return isinstance(node, ast.Name) and node.id == "series"


def _rows(node: ast.expr) -> list[tuple[str, ...]]:
    """The rows of a table whose first column has names of metrics."""
    if not isinstance(node, ast.Tuple):
        return []
    rows = [
        tuple(each.value for each in row.elts if isinstance(each, ast.Constant) and isinstance(each.value, str))
        for row in node.elts
        if isinstance(row, ast.Tuple)
    ]
    return [row for row in rows if len(row) >= 2 and row[0].startswith("kedge_")]


def _constants(tree: ast.Module) -> dict[str, tuple[str, ...]]:
    """Tuples of strings by the name of the variable, which functions assign before they declare."""
    found = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        pairs = [(node.targets[0], node.value)]
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(node.targets[0].elts, node.value.elts, strict=False))
        for target, value in pairs:
            if isinstance(target, ast.Name) and isinstance(value, ast.Tuple):
                found[target.id] = _strings(value, {})
    return found


def _strings(node: ast.expr, names: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    if isinstance(node, ast.Name):
        return names[node.id]
    assert isinstance(node, ast.Tuple), ast.dump(node)
    return tuple(each.value for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, str))


# -- the page --------------------------------------------------------------------------------------

BEGIN, END = "<!-- metrics: checked by tests/meta/test_metrics.py -->", "<!-- end of metrics -->"
_TABLE = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.S)


def metrics_table() -> str:
    """One row a metric, in order of name."""
    rows = ["| metric | type | labels | meaning | package |", "|---|---|---|---|---|"]
    known: dict[str, DeclaredMetric] = {}
    for each in declared_metrics():
        known.setdefault(each.name, each)
    for each in known.values():
        labels = ", ".join(f"`{label}`" for label in each.labels)
        package = "/".join(each.place.split("/")[:2]).removesuffix(".py")
        rows.append(f"| `{each.name}` | {each.kind} | {labels} | {each.help_text} | `{package}` |")
    return "\n".join(rows)


def with_table(page: str) -> str:
    """The page with its table made from the source."""
    return _TABLE.sub(lambda _: f"{BEGIN}\n{metrics_table()}\n{END}", page)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(with_table(Path(name).read_text(encoding="utf-8")), encoding="utf-8")
