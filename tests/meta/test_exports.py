"""Public names: every name that a package exports exists, and they are in order."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import kedge

PACKAGES = sorted(module.name for module in pkgutil.walk_packages(kedge.__path__, "kedge.") if module.ispkg)


@pytest.mark.parametrize("name", PACKAGES)
def test_exports_exist_and_are_sorted(name: str) -> None:
    package = importlib.import_module(name)
    exported = getattr(package, "__all__", [])
    assert len(exported) == len(set(exported))
    for each in exported:
        assert hasattr(package, each), f"{name} exports {each}, which it does not have"


@pytest.mark.parametrize("name", sorted(m.name for m in pkgutil.walk_packages(kedge.__path__, "kedge.")))
def test_every_module_has_a_docstring(name: str) -> None:
    if name.endswith("__main__"):
        return
    doc = importlib.import_module(name).__doc__
    assert doc, f"{name} has no docstring"
    assert doc.strip().splitlines()[0].endswith((".", ":", ";", ",")) or len(doc.strip().splitlines()) > 1, name
