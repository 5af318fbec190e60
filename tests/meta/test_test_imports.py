"""Tests share code through `tests/kit` and support modules; no test module imports another test module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_test_module(name: str) -> bool:
    return name.startswith("tests.") and any(part.startswith("test_") for part in name.split(".")[1:])


def test_no_module_under_tests_imports_a_test_module() -> None:
    found = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in imported_modules(path)
        if imports_test_module(name) and (ROOT / Path(*name.split("."))).with_suffix(".py").exists()
    }
    assert not found, "move what they share to tests/kit"


def test_the_check_finds_both_forms_of_import(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("from tests.sim import test_agent\nfrom tests.sim.test_queue import settle\nimport asyncio\n")
    assert {each for each in imported_modules(module) if imports_test_module(each)} == {
        "tests.sim.test_agent",
        "tests.sim.test_queue",
        "tests.sim.test_queue.settle",
    }
