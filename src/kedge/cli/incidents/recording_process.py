"""The recorder of a process without controllers: an agent, or a server with a log of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kedge.api.wellknown import RECORDING_WINDOW_KIND
from kedge.client.contract import Client
from kedge.env import Env
from kedge.observe.recording.log import DecisionLog
from kedge.observe.recording.process_events import ProcessHead, ended, started
from kedge.observe.recording.recorder import Recorder
from kedge.observe.recording.rules import KeepRules
from kedge.runtime.cache import CacheSet
from kedge.runtime.incident_sender import IncidentSender, IncidentServer
from kedge.runtime.recording_windows import RecordingWindows


@asynccontextmanager
async def recording_process(
    client: Client, env: Env, folder: Path, server: IncidentServer, *, process: str, rules: KeepRules
) -> AsyncIterator[Recorder]:
    """The recorder of a process with its log in `folder`. Everything is written when the block ends.

    Raises:
        Terminal: that folder cannot be used. Choose another.
    """
    log = DecisionLog(folder, env)
    recorder = Recorder(env, log=log, rules=rules)
    log.keep_inputs(ProcessHead(env, process).pieces)
    recorder.note(started(env, process))
    following = _follow_windows(client, env, recorder, log, server, process=process)
    tasks = [env.spawn(log.run(), name="decision log"), env.spawn(following, name="windows")]
    try:
        yield recorder
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        log.flush()  # the decisions before the end
        recorder.note(ended(env, process))
        log.close()


async def _follow_windows(
    client: Client, env: Env, recorder: Recorder, log: DecisionLog, server: IncidentServer, *, process: str
) -> None:
    """Keep what the windows of the cluster ask for, and send it for incidents, until cancelled."""
    caches = CacheSet(client, env)
    cache = caches.cache(client.kinds.of_key_kind(RECORDING_WINDOW_KIND))
    sender = IncidentSender(env, log, recorder, process=f"{process}-{env.new_uid()[:8]}", server=server)
    RecordingWindows(recorder, env).follow([cache])
    sender.follow(cache)
    try:
        await sender.run()
    finally:
        await caches.stop()
