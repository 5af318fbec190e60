"""The search for objects that a workload adopts, in steps of the event loop: a namespace may have many without a
controller, and all other work of the process waits while one step compares them. `ownership` has the rule."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Final

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.selectors import LabelSelector
from kedge.controllers.shared.holds import split_held
from kedge.controllers.shared.ownership import ORPHANS, to_adopt
from kedge.env import Env
from kedge.runtime import Context
from kedge.runtime.steps import StepBudget

_COMPARED_AT_ONCE: Final = 200
"""Objects that are compared between two looks at the clock: at most 2 ms."""
_SHARE: Final = 0.2
"""Part of `Limits.step_s_max` for one step of the search: runs of other keys and the read of the index were before."""


class OrphanSearch:
    """Searches one kind for one controller."""

    def __init__(self, env: Env, kind: Kind, controller: str) -> None:
        self._kind = kind
        self._controller = controller
        self._step = StepBudget(env, f"{controller} orphans", share=_SHARE)

    async def find(
        self, ctx: Context, namespace: str, selector: LabelSelector, now: datetime, *, most: int | None = None
    ) -> tuple[list[Object], list[datetime]]:
        """The objects to adopt, and the ends of the holds on others. It ends early once it has `most` objects.

        The objects are those of one read. The cache may go on meanwhile: each write names the version that it is for.
        """
        adopt: list[Object] = []
        ends: list[datetime] = []
        orphans = ctx.by_index(self._kind, ORPHANS, namespace)
        self._step.begin()
        for start in range(0, len(orphans), _COMPARED_AT_ONCE):
            if start and self._step.used_up():
                await asyncio.sleep(0)
                self._step.begin()
            free, held = split_held(
                to_adopt(orphans[start : start + _COMPARED_AT_ONCE], selector), self._controller, now
            )
            adopt += free
            ends += held
            if most is not None and len(adopt) >= most:
                break
        return adopt, ends
