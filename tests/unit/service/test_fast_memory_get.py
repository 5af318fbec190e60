"""The fast get returns what `reads.get` returns, or None."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.objects import CONFIG_MAP, config_map, make_world

from kedge.api.objects import Object
from kedge.api.requests import Get, GetOptions
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.limits import Limits
from kedge.server.service import reads
from kedge.server.service.core import Core
from kedge.server.service.fast.memory_get import get_nowait

NAMES = ("a", "b", "missing")
SHORT = dataclasses.replace(Limits(), watch_future_wait_s=0.001)


async def plain(core: Core, request: Get) -> Object | type[OperatingError]:
    try:
        return await reads.get(core, request)
    except OperatingError as error:
        return type(error)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(NAMES[:2]), st.sampled_from(("create", "change", "delete"))), max_size=8),
    st.sampled_from(NAMES),
    st.sampled_from(("", "0")),
)
def test_the_fast_get_returns_what_the_plain_one_returns_or_none(
    steps: list[tuple[str, str]], name: str, version: str
) -> None:
    async def scene() -> None:
        world = await make_world(limits=SHORT)
        core, present = world.service._core, set[str]()
        for number, (each, verb) in enumerate(steps):
            key = Key(CONFIG_MAP.key_kind, "default", each)
            if verb == "create" and each not in present:
                await world.service.create(CONFIG_MAP, config_map(each), namespace="default")
                present.add(each)
            elif verb == "change" and each in present:
                change: dict[str, Any] = {"data": {"step": str(number)}}
                await world.service.patch(key, change)
            elif verb == "delete" and each in present:
                await world.service.delete(key)
                present.remove(each)
        request = Get(Key(CONFIG_MAP.key_kind, "default", name), GetOptions(resource_version=version))
        fast = get_nowait(core, request.key)
        assert (fast is not None) == (name in present)
        if fast is not None:
            slow = await plain(core, request)
            assert isinstance(slow, Object)
            assert (fast.json(), fast.revision) == (slow.json(), slow.revision)

    asyncio.run(scene())
