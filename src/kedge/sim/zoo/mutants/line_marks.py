"""Mark the statements that a run executes: each adds its line to a set of its module.

`worlds_run` runs worlds over modules marked in this way, in an overlay.
"""

from __future__ import annotations

import ast

from kedge.sim.zoo.mutants.operators import blocks_of

MARKS = "_lines_reached"
"""The name of the set, in each marked module."""


def marked(source: str) -> str:
    """The module with a mark before every statement of every function."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            _mark_block(node.body, docstring=ast.get_docstring(node, clean=False) is not None)
    begin = 1 if ast.get_docstring(tree, clean=False) is not None else 0
    while begin < len(tree.body) and _is_future(tree.body[begin]):
        begin += 1
    tree.body[begin:begin] = ast.parse(f"{MARKS} = set()").body
    return ast.unparse(ast.fix_missing_locations(tree))


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _mark_block(block: list[ast.stmt], *, docstring: bool = False) -> None:
    found: list[ast.stmt] = []
    for place, statement in enumerate(list(block)):
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for inner in blocks_of(statement):
                _mark_block(inner)
        if not (docstring and place == 0) and not isinstance(statement, (ast.Global, ast.Nonlocal)):
            found.extend(ast.parse(f"{MARKS}.add({statement.lineno})").body)
        found.append(statement)
    block[:] = found
