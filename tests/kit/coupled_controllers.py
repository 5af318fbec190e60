"""Small controllers with planted couplings, on a simulated cluster, and what `kedge coupling` shows of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from tests.kit.controllers import FunctionReconciler
from tests.objects import NAMESPACE

from kedge import Action, Context, Controller
from kedge.api.kinds import KINDS
from kedge.cli.perturbed_decisions import PerturbedRuns
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.readers.coupling import Coupling, CouplingEdge, coupling_of
from kedge.observe.readers.recording import Recording, decode_recording
from kedge.runtime import ControllerSpec, Reconciler, WatchSpec
from kedge.runtime.cache import CacheChange, CacheSet
from kedge.sim.cluster import Cluster, ProcessContext
from kedge.sim.kernel import NO_FAULTS, Simulation, run

CONFIG_MAP = KINDS.of_key_kind("ConfigMap")
LIMITS = Limits(decisions_sample_every=1, resync_every_s=20.0, queue_resync_spread_s=1.0)
"""Every decision is kept, and a silent change is seen at the next resync."""


DEFAULT = Key("Namespace", "", "default")
"""The one key of every planted controller. Its caches of ConfigMaps wake it, or do not."""


class Planted:
    """A controller from a function. Changes of the ConfigMaps in `wakes` wake it; it reads all others silently."""

    def __init__(self, name: str, work: Callable[[Context], Awaitable[None]], *, wakes: Collection[str] = ()) -> None:
        async def reconcile(ctx: Context, _: Key) -> Action:
            await work(ctx)
            return Action.await_change()

        def keys_of(change: CacheChange, _: CacheSet) -> list[Key]:
            return [DEFAULT] if change.key.name in wakes else []

        self.name = name
        self.reconciler: Reconciler = FunctionReconciler(reconcile)
        watch = WatchSpec(kind=CONFIG_MAP, keys_of=keys_of if wakes else None)
        self._spec = ControllerSpec(name=name, kind=NAMESPACE, watches=[watch], workers=1)

    def made(self, context: ProcessContext) -> Controller:
        return Controller(self._spec, self.reconciler, context.runtime())


def config(name: str) -> Key:
    return Key("ConfigMap", "default", name)


def value_of(ctx: Context, name: str, annotation: str) -> str:
    """An annotation of a ConfigMap, as the cache has it; empty without one."""
    found = ctx.get(config(name))
    return "" if found is None else found.metadata.annotations.get(annotation, "")


async def set_value(ctx: Context, name: str, annotation: str, value: str) -> None:
    """Write an annotation if it differs."""
    found = ctx.get(config(name))
    if found is not None and found.metadata.annotations.get(annotation) != value:
        await ctx.patch(found, {"metadata": {"annotations": {annotation: value}}}, any_version=True)


Steps = Callable[[Cluster], Awaitable[None]]


def world(planted: Sequence[Planted], steps: Steps, *, limits: Limits = LIMITS, seed: int = 0) -> Recording:
    """Run the controllers in one process while the steps of a person happen. The recording is read as from a file."""
    found: list[Recording] = []

    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, limits=limits)
        recording = cluster.record()
        await cluster.authority.create(NAMESPACE, {"metadata": {"name": "default"}})
        cluster.boot("plane", [each.made for each in planted])
        await asyncio.sleep(1)
        await steps(cluster)
        found.append(decode_recording(recording.sections()))

    report = run(program, seed, faults=NO_FAULTS)
    assert report.violation is None, report.violation
    return found[0]


async def create(cluster: Cluster, *names: str, **annotations: str) -> None:
    for name in names:
        body = {"metadata": {"name": name, "namespace": "default", "annotations": annotations}}
        await cluster.authority.create(CONFIG_MAP, body)


async def change(cluster: Cluster, name: str, **annotations: str | None) -> None:
    await cluster.authority.patch(config(name), {"metadata": {"annotations": annotations}})


def coupling(recording: Recording, controller: str, planted: Sequence[Planted], **options: Any) -> Coupling:
    """As `kedge coupling CONTROLLER` has it."""
    runs = PerturbedRuns.of(recording, {each.name: each.reconciler for each in planted})

    async def judged() -> Coupling:
        await runs.note_fields(recording.decisions)
        return await runs.judged(coupling_of(recording, controller, **options), recording.decisions)

    return asyncio.run(judged())


def between(found: Coupling) -> dict[tuple[str, str], CouplingEdge]:
    """The edges from other controllers, by writer and field. People's changes are not planted couplings."""
    return {(each.writer, each.field): each for each in found.edges if each.writer != "user"}


def flooded_world() -> Recording:
    """A controller with one worker that takes its time for each ConfigMap, and one that changes forty at once."""

    async def slow(ctx: Context, key: Key) -> Action:
        if ctx.get(key) is not None:
            await asyncio.sleep(0.5)
        return Action.await_change()

    class Slow(Planted):
        def __init__(self) -> None:
            self.name = "slow"
            self.reconciler = FunctionReconciler(slow)
            self._spec = ControllerSpec(name="slow", kind=CONFIG_MAP, workers=1)

    async def flood(ctx: Context) -> None:
        if value_of(ctx, "load", "flood"):
            for number in range(40):
                await set_value(ctx, f"map-{number}", "flooded", "yes")

    async def steps(cluster: Cluster) -> None:
        await create(cluster, "load", "other", *(f"map-{number}" for number in range(40)))
        await asyncio.sleep(60)
        await change(cluster, "load", flood="yes")
        await asyncio.sleep(2)
        await change(cluster, "other", changed="yes")
        await asyncio.sleep(60)

    return world([Slow(), Planted("flooder", flood, wakes=("load",))], steps)
