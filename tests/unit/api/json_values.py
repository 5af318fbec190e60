"""Arbitrary JSON, for property tests."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.integers(-(10**30), 10**30) | st.decimals(allow_nan=False, allow_infinity=False, places=3)
leaves = st.none() | st.booleans() | texts | numbers | st.just(Decimal("1E+400"))
values: st.SearchStrategy[Any] = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)
objects: st.SearchStrategy[dict[str, Any]] = st.dictionaries(texts, values, max_size=5)
