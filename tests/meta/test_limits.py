"""Every bound is used, and shows how near it is."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from pathlib import Path

import pytest

from kedge.limits import Limits

SOURCE = Path(__file__).parents[2] / "src" / "kedge"


@cache
def source() -> str:
    return "\n".join(path.read_text() for path in sorted(SOURCE.rglob("*.py")) if path.name != "limits.py")


@pytest.mark.parametrize("field", dataclasses.fields(Limits), ids=lambda field: field.name)
def test_every_limit_is_used_and_its_metric_exists(field: dataclasses.Field[object]) -> None:
    assert re.search(rf"\.{field.name}\b", source()), f"nothing reads limits.{field.name}"
    assert f'"{field.metadata["metric"]}"' in source(), f"nothing makes {field.metadata['metric']}"
