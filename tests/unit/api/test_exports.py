"""The public names of the layer."""

from __future__ import annotations

import pytest

import kedge.api
import kedge.api.views


@pytest.mark.parametrize("package", [kedge.api, kedge.api.views], ids=lambda package: package.__name__)
def test_every_public_name_exists_and_is_listed_once(package: object) -> None:
    names: list[str] = vars(package)["__all__"]
    assert len(names) == len(set(names))
    for name in names:
        assert hasattr(package, name)
