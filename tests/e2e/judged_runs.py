"""Judges the whole run of a cluster that a test drives with commands: recorded beside the test, judged at its end.

The recorder has a thread and a loop of its own. It follows the cluster over restarts, also to another port. If the test
has stopped the cluster, its store is served once more, so that the last commits are judged too.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from tests.kit.api_server import ServerProcess

from kedge.cli.live_history import HistoryRecorder
from kedge.client.contract import Client
from kedge.client.http import FailoverTransport, read_kubeconfig
from kedge.env import system_env
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.records import CommitRecord, StoreState
from kedge.sim.judges.recorded import judge_history

THREAD_S = 300.0
"""A bound for slow machines."""
ANSWER_S = 5.0
FOLLOW_S = 0.2

_Result = TypeVar("_Result")


def limits_with(changed: Mapping[str, float]) -> Limits:
    return replace(Limits(), **cast("dict[str, Any]", dict(changed)))


def check_history(start: StoreState, commits: Iterable[CommitRecord], limits: Limits | None = None) -> int:
    """The judges saw a run, in order and each commit once, and none broke an invariant. Returns how many there were."""
    found = list(commits)
    revisions = [each.revision for each in found]
    assert revisions == sorted(set(revisions))
    assert len(revisions) >= 3, "the judges saw no run"
    assert judge_history(start, found, limits) == []
    return len(revisions)


class RunRecorder:
    """Records a cluster from another thread."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="recorder", daemon=True)
        self._thread.start()

    def start(self) -> StoreState:
        return self._run(self._start())

    def answers(self) -> bool:
        """Whether the cluster is up."""
        return self._run(self._answers())

    def stop(self) -> list[CommitRecord]:
        """Everything that was committed since the start."""
        return self._run(self._recorder.stop(within_s=THREAD_S / 2))

    def close(self) -> None:
        try:
            self._run(self._close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(THREAD_S)
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(THREAD_S)

    async def _start(self) -> StoreState:
        env = system_env()
        self._address = read_kubeconfig(self._kubeconfig)
        self._transport = FailoverTransport([self._address], env)
        self._client = Client(self._transport, env, component="judge")
        self._following = asyncio.ensure_future(self._follow())
        self._recorder = HistoryRecorder(self._client, env)
        return await self._recorder.start()

    async def _follow(self) -> None:
        """Use the address of the last start."""
        while True:
            await asyncio.sleep(FOLLOW_S)
            with suppress(OSError, OperatingError, ValueError):
                found = read_kubeconfig(self._kubeconfig)
                if found.url != self._address.url:
                    self._address = found
                    await self._transport.use([found])

    async def _answers(self) -> bool:
        with suppress(OperatingError, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self._client.find(Key("Namespace", "", "default"))
                return True
        return False

    async def _close(self) -> None:
        every = asyncio.all_tasks() - {asyncio.current_task()}
        for task in every:
            task.cancel()
        await asyncio.gather(*every, return_exceptions=True)
        await self._transport.close()


@contextmanager
def judged_beside(server: ServerProcess) -> Iterator[None]:
    """Record every commit of the body; afterwards none of them may break an invariant of the simulator."""
    recorder = RunRecorder(server.kubeconfig)
    try:
        start = recorder.start()
        yield
        with served_again(server, recorder):
            commits = recorder.stop()
    finally:
        recorder.close()
    check_history(start, commits, limits_with(limits_of(server.options)))


@contextmanager
def served_again(server: ServerProcess, recorder: RunRecorder) -> Iterator[None]:
    """Serve the store of a cluster, if the test has ended it. One that is only slow is waited for."""
    deadline = time.monotonic() + THREAD_S
    while not recorder.answers():
        if server.is_running:
            assert time.monotonic() < deadline, f"no answer in {THREAD_S} s: {server.log}"
            continue
        again = ServerProcess(server.state)
        again.start()
        try:
            yield
        finally:
            again.end()
        return
    yield


def limits_of(options: tuple[str, ...]) -> dict[str, float]:
    """The limits of the configuration file that a component was started with."""
    if "--config" not in options:
        return {}
    file = Path(options[options.index("--config") + 1])
    return dict((yaml.safe_load(file.read_text()) or {}).get("limits", {}))
