"""A long patch is decoded, merged and validated in several steps of the event loop, a short one in one."""

from __future__ import annotations

from typing import Any

import pytest
from tests.objects import config_map

from kedge.api.requests import Patch, PatchType
from kedge.keys import Key
from kedge.limits import Limits
from kedge.server.service.patches import patched

KEY = Key("ConfigMap", "shop", "one")


def steps_and_result(fields: int, patch_type: PatchType) -> tuple[int, dict[str, Any]]:
    change = {"data": {f"m{number}": "1" for number in range(fields)}}
    running = patched(config_map("one"), Patch(KEY, change, patch_type), Limits())
    steps = 1
    while True:
        try:
            running.send(None)
        except StopIteration as end:
            return steps, end.value
        steps += 1


@pytest.mark.parametrize("patch_type", [PatchType.MERGE, PatchType.STRATEGIC])
def test_a_long_merge_patch_ends_a_step_after_its_decoding_and_after_its_merge(patch_type: PatchType) -> None:
    steps, result = steps_and_result(5_000, patch_type)
    assert steps == 3
    assert result["data"]["m4999"] == "1"
    assert len(result["data"]) >= 5_000


@pytest.mark.parametrize("patch_type", [PatchType.MERGE, PatchType.STRATEGIC])
def test_a_short_merge_patch_is_one_step(patch_type: PatchType) -> None:
    assert steps_and_result(10, patch_type)[0] == 1
