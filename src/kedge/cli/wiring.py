"""The composition root of production: every controller and the schedulers as one process, on any transport.

`sim/cluster` is the other root; both make the same components and pass ports in. Stores, servers and agents are
processes of their own; a caller that runs all of them in one process starts those parts itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kedge.api.wellknown import NAMESPACE_KIND, RECORDING_WINDOW_KIND, SYSTEM_NAMESPACES
from kedge.client.contract import Client, Transport
from kedge.controllers import SHARED_LEASE, all_controllers
from kedge.controllers.shared.generation_signals import GenerationSignals
from kedge.controllers.shared.kinds import POD
from kedge.controllers.shared.pod_signals import PodSignals
from kedge.env import Env
from kedge.errors import AlreadyExists
from kedge.heap import collect_in_time, tune_collector
from kedge.keys import Key
from kedge.observe.recording.log import DecisionLog
from kedge.observe.recording.process_events import ended, started
from kedge.observe.recording.recorder import Recorder
from kedge.observe.recording.rules import KeepRules
from kedge.observe.recording.span_exporter import SendSpans, SpanExporter
from kedge.runtime import ControllerRuntime
from kedge.runtime.cache import CacheSet
from kedge.runtime.cache.kept_inputs import KeptInputs
from kedge.runtime.incident_sender import IncidentSender, IncidentServer
from kedge.runtime.lease import SharedElection
from kedge.runtime.recording_windows import ADMISSION_KINDS, RULED_KINDS, RecordingWindows
from kedge.scheduler import DEFAULT_NAME, Scheduler

NAMESPACES = ("default", *SYSTEM_NAMESPACES)
"""Namespaces that a control plane needs before it starts."""


class ControlPlane:
    """One process of a control plane. `run` it once; of several, one leads and the others keep their caches warm."""

    def __init__(
        self,
        transport: Transport,
        env: Env,
        *,
        decisions: Path,
        component: str = "control-plane",
        schedulers: Sequence[str] = (DEFAULT_NAME,),
        controllers: bool = True,
        send_spans: SendSpans | None = None,
        incidents: IncidentServer | None = None,
        rules: KeepRules = KeepRules(),  # noqa: B008  frozen
    ) -> None:
        """`decisions` is the folder of its decision log, which is of this process alone. `rules` select its records.

        Without `controllers` it is a process of schedulers alone. `send_spans` takes the spans of kept decisions,
        `incidents` the log for incidents.

        Raises:
            Terminal: that folder cannot be used. Choose another.
        """
        self._env = env
        self._component = component
        self.client = Client(transport, env, component=component)
        self.caches = CacheSet(self.client, env)
        self.log = DecisionLog(decisions, env)
        self.recorder = Recorder(env, log=self.log, rules=rules)
        self.exporter = SpanExporter(env, self.recorder, send_spans) if send_spans is not None else None
        process = f"{component}-{env.new_uid()[:8]}"
        self._incidents = (
            None
            if incidents is None
            else IncidentSender(env, self.log, self.recorder, process=process, server=incidents)
        )
        self._windows = RecordingWindows(self.recorder, env)
        self._window_caches = CacheSet(self.client, env)
        """Not among the caches that a new leader waits for: no decision depends on them."""
        identity = f"{component}-{env.new_uid()[:8]}"
        election = SharedElection(self.client, env, SHARED_LEASE, identity=identity, note=self.recorder.note)
        runtime = ControllerRuntime(self.client, env, self.caches, self.recorder, election)
        self.controllers = all_controllers(runtime) if controllers else []
        self.schedulers = [
            Scheduler(self.client, env, name=name, caches=self.caches, recorder=self.recorder) for name in schedulers
        ]
        deciders = [each.process for each in self.schedulers]
        inputs = KeptInputs(env, process=component, deciders=deciders, caches=lambda: self.caches)
        self.log.keep_inputs(inputs.pieces)

    async def run(self) -> None:
        """Work until `stop`. If it is cancelled, everything stops at once. A component that raises ends the process."""
        tune_collector()
        await ensure_namespaces(self.client)
        background = [
            self._env.spawn(self.log.run(), name="decision log"),
            self._env.spawn(collect_in_time(), name="garbage collector"),
        ]
        if self.controllers:
            signals = PodSignals(self._env, self.caches.cache(POD))
            GenerationSignals(self._env, self.caches)
            background.append(self._env.spawn(self._windows.run_burns(signals.past_alert), name="burn windows"))
        if self.exporter is not None:
            background.append(self._env.spawn(self.exporter.run(), name="span exporter"))
        if self._incidents is not None:
            background.append(self._env.spawn(self._incidents.run(), name="incidents"))
        self._follow_windows()
        self.recorder.note(started(self._env, self._component))
        try:
            async with asyncio.TaskGroup() as group:
                for controller in self.controllers:
                    group.create_task(controller.run(), name=controller.name)
                for scheduler in self.schedulers:
                    group.create_task(scheduler.run(), name=scheduler.name)
        finally:
            await self.caches.stop()
            await self._window_caches.stop()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            self.log.flush()  # the decisions before the end
            self.recorder.note(ended(self._env, self._component))
            self.log.close()

    def _follow_windows(self) -> None:
        """Follow the kinds that open recording windows, in the caches of the controllers where there are any."""
        shared, admission = (RULED_KINDS, ADMISSION_KINDS) if self.controllers else ((), ())
        for name in (RECORDING_WINDOW_KIND, *RULED_KINDS, *admission):
            caches = self.caches if name in shared else self._window_caches
            cache = caches.cache(self.client.kinds.of_key_kind(name))
            self._windows.follow([cache])
            if name == RECORDING_WINDOW_KIND and self._incidents is not None:
                self._incidents.follow(cache)

    async def stop(self, *, within_s: float | None = None) -> tuple[Key, ...]:
        """Finish the runs in progress, start no more, release the leases; then `run` returns. Returns the keys left."""
        for scheduler in self.schedulers:
            scheduler.stop()
        undone = await asyncio.gather(*(each.stop(within_s=within_s) for each in self.controllers))
        return tuple(key for keys in undone for key in keys)

    @property
    def leading(self) -> bool:
        """Whether every component of this process is at work."""
        at_work = [each.statistics().leading for each in self.controllers]
        return all([*at_work, *(each.leading for each in self.schedulers)])


async def ensure_namespaces(client: Client) -> None:
    """Create the missing namespaces. Safe to repeat, also concurrently."""
    kind = client.kinds.of_key_kind(NAMESPACE_KIND)
    for name in NAMESPACES:
        body: dict[str, Any] = {"metadata": {"name": name}}
        if await client.find(Key(kind.key_kind, "", name)) is None:
            try:
                await client.create(kind, body)
            except AlreadyExists:
                continue  # another process was faster


STOP_S = 10.0
"""Components that have not stopped by then are cancelled: everything they did is in the store."""


async def stop_plane(plane: ControlPlane) -> None:
    """Stop a control plane within a bound."""
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_S):
            await plane.stop(within_s=STOP_S / 2)


async def run_until(plane: ControlPlane, stop: asyncio.Event) -> None:
    """Run a control plane until `stop` is set, or until it fails: then its error is raised."""
    running = asyncio.ensure_future(plane.run())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        await stop_plane(plane)
        running.cancel()
    stopping.cancel()
    with suppress(asyncio.CancelledError):
        await running
