"""Labels, annotations, taints and key kinds are constants of `kedge.api.wellknown`; the source repeats none of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import kedge
from kedge.api import wellknown
from kedge.api.kinds import KINDS

SOURCE = Path(kedge.__file__).parent
DOMAINS = ("kubernetes.io", "k8s.io", "kedge.dev")
KEY_KINDS = frozenset(kind.key_kind for kind in KINDS)
BARE_LABELS = frozenset(
    value for name, value in vars(wellknown).items() if name.endswith("_LABEL") and not any(d in value for d in DOMAINS)
)
"""Labels without a domain."""

TABLES = ("api/wellknown.py", "api/kinds.py", "server/http/cells.py")
BELOW = ("keys.py", "errors.py", "store/", "sim/kernel/")
"""Layers that may not import `kedge.api`, or that know no kinds."""


def literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """String literals, but docstrings, `__all__` and the `kind` of a manifest."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant() as docstring):
                skipped.add(docstring)
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=names)):
                skipped.update(names)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "kind":
                        skipped.add(value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.lineno, node.value


def test_well_known_names_are_written_once() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name in TABLES or name.startswith(BELOW):
            continue
        for line, text in literals(ast.parse(path.read_text())):
            if text in KEY_KINDS | BARE_LABELS or any(domain in text for domain in DOMAINS):
                found.append(f"{name}:{line}: {text!r}")
    assert not found, "use the constant of kedge.api.wellknown, or add one there:\n" + "\n".join(found)


def test_no_two_constants_have_the_same_value() -> None:
    values = [value for name, value in vars(wellknown).items() if name.isupper() and isinstance(value, str)]
    assert len(values) == len(set(values))


def test_the_kind_constants_name_registered_kinds() -> None:
    internal = {
        wellknown.FENCE_KIND, wellknown.OPERATION_KIND, wellknown.DISRUPTION_BUDGETS_KIND,
        wellknown.DEFAULT_PRIORITY_KIND, wellknown.ENCRYPTION_KEYS_KIND,
    }  # fmt: skip
    constants = {value for name, value in vars(wellknown).items() if name.endswith("_KIND")}
    assert constants - internal <= KEY_KINDS
