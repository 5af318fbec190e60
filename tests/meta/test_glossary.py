"""Every term of the glossary is still a word of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.M)


def rows() -> list[tuple[str, str, str]]:
    found = [tuple(part.strip() for part in row) for row in ROW.findall((ROOT / "docs" / "glossary.md").read_text())]
    return [(term, meaning, near) for term, meaning, near in found if term not in ("term", "---")]


def code() -> str:
    return "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py")).lower()


def test_terms_are_in_order_and_have_a_neighbour() -> None:
    terms = [term for term, _, _ in rows()]
    assert len(terms) > 30
    assert terms == sorted(terms)
    assert all(meaning and near for _, meaning, near in rows())


@pytest.mark.parametrize("term", [term for term, _, _ in rows()])
def test_a_term_is_still_in_the_code(term: str) -> None:
    words = r"[\s_]+".join(re.escape(word) for word in term.split())
    assert re.search(rf"(?<![a-z]){words}(?:e?s|e?d)?(?![a-z])", code()), (
        f"no code uses {term!r}: remove it from docs/glossary.md"
    )
