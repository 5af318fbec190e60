"""The recorder of a process without controllers: an agent, or a server with a log of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from kedge.api.wellknown import RECORDING_WINDOW_KIND
from kedge.client.contract import Client
from kedge.env import Env
from kedge.observe.recording.log import DecisionLog
from kedge.observe.recording.process_events import ProcessHead, ended, started
from kedge.observe.recording.recorder import Recorder
from kedge.observe.recording.rules import KeepRules
from kedge.observe.recording.span_exporter import SendSpans, SpanExporter
from kedge.runtime.cache import CacheSet
from kedge.runtime.incident_sender import IncidentSender, IncidentServer
from kedge.runtime.recording_windows import RecordingWindows


@asynccontextmanager
async def recording_process(
    client: Client,
    env: Env,
    folder: Path,
    server: IncidentServer,
    *,
    process: str,
    rules: KeepRules,
    send_spans: SendSpans | None = None,
    ruled_kinds: Iterable[str] = (),
) -> AsyncIterator[Recorder]:
    """The recorder of a process with its log in `folder`. Everything is written when the block ends.

    `send_spans` takes the spans of kept decisions. Changes of `ruled_kinds` open recording windows.

    Raises:
        Terminal: that folder cannot be used. Choose another.
    """
    log = DecisionLog(folder, env)
    recorder = Recorder(env, log=log, rules=rules)
    log.keep_inputs(ProcessHead(env, process).pieces)
    recorder.note(started(env, process))
    sender = IncidentSender(env, log, recorder, process=f"{process}-{env.new_uid()[:8]}", server=server)
    following = _follow_windows(client, env, recorder, sender, ruled_kinds)
    tasks = [env.spawn(log.run(), name="decision log"), env.spawn(following, name="windows")]
    if send_spans is not None:
        tasks.append(env.spawn(SpanExporter(env, recorder, send_spans).run(), name="span exporter"))
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
    client: Client, env: Env, recorder: Recorder, sender: IncidentSender, ruled_kinds: Iterable[str]
) -> None:
    """Keep what the windows of the cluster ask for, and send it for incidents, until cancelled."""
    caches = CacheSet(client, env)
    cache, *ruled = (caches.cache(client.kinds.of_key_kind(each)) for each in (RECORDING_WINDOW_KIND, *ruled_kinds))
    RecordingWindows(recorder, env).follow([cache, *ruled])
    sender.follow(cache)
    try:
        await sender.run()
    finally:
        await caches.stop()
