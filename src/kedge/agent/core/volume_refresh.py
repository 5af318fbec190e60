"""Brings the files of running containers up to date after a change of their ConfigMaps, Secrets or labels.

As a kubelet does it: after a while, not at once, and without a restart. A reference that cannot be resolved leaves the
files as they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from kedge.agent.core.account_tokens import AccountTokens
from kedge.agent.core.config import Surroundings, container_setup
from kedge.agent.core.driver import ContainerProcess, Driver
from kedge.agent.core.plan import latest
from kedge.api.views import PodView
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.metrics import Counter


class VolumeRefresh:
    """The refresh of one pod."""

    def __init__(
        self,
        driver: Driver,
        env: Env,
        count: Counter,
        surroundings: Callable[[PodView], Awaitable[Surroundings]],
        tokens: AccountTokens,
    ) -> None:
        self._driver = driver
        self._env = env
        self._count = count
        self._surroundings = surroundings
        self._tokens = tokens
        self._next_s = env.monotonic() + env.limits.agent_refresh_s

    def left_s(self, pod: PodView) -> float | None:
        """How long until the next refresh; None for a pod that has no files of the API."""
        if not has_files(pod) and not self._tokens.may_renew(pod):
            return None
        return max(0.0, self._next_s - self._env.monotonic())

    async def refresh(self, pod: PodView, processes: Sequence[ContainerProcess]) -> None:
        """Write the files of running containers again, if it is time."""
        if self.left_s(pod) != 0.0:
            return
        self._next_s = self._env.monotonic() + self._env.limits.agent_refresh_s
        with suppress(OperatingError):  # also `CannotStart`: an object is gone, or lacks a key
            around = await self._surroundings(pod)
            for container in (*pod.spec.init_containers, *pod.spec.containers):
                process = latest(processes, container.name)
                if process is not None and process.running:
                    await self._driver.update_volumes(pod, container_setup(pod, container, around))
                    self._count.inc()
            if not has_files(pod):  # a token alone changes when it is renewed, and at no other time
                token_s = self._tokens.left_s(pod.uid)
                self._next_s = self._env.monotonic() + max(self._env.limits.agent_refresh_s, token_s or 0.0)


def has_files(pod: PodView) -> bool:
    return any(each.config_map or each.secret or each.downward_api or each.projected for each in pod.spec.volumes)
