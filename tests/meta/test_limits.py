"""Every bound is used, shows how near it is, and is in the docs with the other fields of the configuration file."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from pathlib import Path

import pytest

from kedge.agent.process import keeper_bounds
from kedge.cli.configuration.page import config_tables, with_tables
from kedge.limits import Limits

SOURCE = Path(__file__).parents[2] / "src" / "kedge"
PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


@cache
def source() -> str:
    return "\n".join(path.read_text() for path in sorted(SOURCE.rglob("*.py")) if path.name != "limits.py")


@pytest.mark.parametrize("field", dataclasses.fields(Limits), ids=lambda field: field.name)
def test_every_limit_is_used_and_its_metric_exists(field: dataclasses.Field[object]) -> None:
    assert re.search(rf"\.{field.name}\b", source()), f"nothing reads limits.{field.name}"
    assert f'"{field.metadata["metric"]}"' in source(), f"nothing makes {field.metadata['metric']}"


def test_every_bound_of_the_keeper_is_used_and_has_its_reason_in_the_docs() -> None:
    names = [name for name in vars(keeper_bounds) if name.isupper()]
    assert len(names) >= 8
    page = PAGE.read_text(encoding="utf-8")
    for name in names:
        assert re.search(rf"^\| `{name}` \| \S+ \| .+ \|$", page, re.M), f"{name} has no reason"
        assert len(re.findall(rf"\b{name}\b", source())) > 2, f"nothing reads {name}"


def test_the_tables_in_the_docs_are_made_from_the_fields() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page, "run python -m kedge.cli.configuration.page docs/configuration.md"
    assert config_tables() in page
