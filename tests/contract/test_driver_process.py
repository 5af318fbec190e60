"""The process driver passes the conformance suite of drivers, check by check, with real processes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.kit.agent import pod_view

from kedge.agent.conformance import Behaviour, check_driver, check_names
from kedge.agent.process import ProcessDriver
from kedge.api.views import PodView

_PROGRAMS = {
    Behaviour.RUNS: ["sleep", "600"],
    Behaviour.ENDS_WITH_3: ["sh", "-c", "exit 3"],
    Behaviour.IGNORES_SIGTERM: ["sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"],
}


class ProcessSubject:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.driver = ProcessDriver(folder, environment=os.environ)

    def pod(self, uid: str, behaviour: Behaviour, containers: int = 1) -> PodView:
        made = [{"name": f"c{n}", "image": "x", "command": _PROGRAMS[behaviour]} for n in range(containers)]
        return pod_view(metadata={"uid": uid}, containers=made)

    async def replace_driver(self) -> None:
        await self.driver.close()
        self.driver = ProcessDriver(self._folder, environment=os.environ)


@pytest.mark.parametrize("name", check_names())
def test_the_process_driver(name: str, tmp_path: Path) -> None:
    async def run() -> None:
        subject = ProcessSubject(tmp_path)
        try:
            await check_driver(subject, name)
        finally:
            await subject.driver.shutdown(grace_s=0)
            await subject.driver.close()

    asyncio.run(run())
