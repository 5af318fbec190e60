"""A controller that declares its writes makes no others."""

from __future__ import annotations

import pytest
from tests.kit.controllers import POD, REPLICA_SET, ControllerHarness, until, with_harness

from kedge.api.requests import Create, Delete, Get, Patch
from kedge.errors import Forbidden
from kedge.keys import Key
from kedge.runtime import Action, Context, writes
from kedge.runtime.spec import check_right

KEY = Key("Pod", "default", "web-0")
RIGHTS = frozenset(each.place for each in (*writes("patch", POD, "status"), *writes("delete", None)))


def test_a_right_is_to_a_verb_a_kind_and_a_subresource() -> None:
    check_right(Get(KEY), RIGHTS, "test")
    check_right(Patch(KEY, {}, subresource="status"), RIGHTS, "test")
    check_right(Delete(KEY), RIGHTS, "test")
    with pytest.raises(Forbidden, match="controller test may not patch Pod: add it to `writes`"):
        check_right(Patch(KEY, {}), RIGHTS, "test")
    with pytest.raises(Forbidden, match="may not create Pod"):
        check_right(Create(POD, {}), RIGHTS, "test")


@with_harness()
async def test_a_write_that_is_not_declared_is_refused_before_it_is_sent(harness: ControllerHarness) -> None:
    refused: list[str] = []

    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        await ctx.write_status(found, {"replicas": 0})
        try:
            await ctx.delete(found)
        except Forbidden as error:
            refused.append(str(error))
        return Action.await_change()

    await harness.create("web")
    harness.open(work, name="narrow", writes=writes("patch", REPLICA_SET, "status"))
    await until(lambda: bool(refused))
    assert "controller narrow may not delete ReplicaSet.apps" in refused[0]
    assert (await harness.get("web")).metadata.deletion_timestamp is None
