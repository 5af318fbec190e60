"""The operator of `kopf_operator` on kedge's runtime: `python -m benchmarks.http.kedge_operator KUBECONFIG NAME`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from kedge import Action, Context, Controller
from kedge.api.kinds import KINDS
from kedge.client.contract import Client
from kedge.client.http import HttpTransport, read_kubeconfig
from kedge.env import system_env
from kedge.heap import collect_in_time, tune_collector
from kedge.keys import Key
from kedge.observe.recording.recorder import Recorder
from kedge.runtime import ControllerRuntime, ControllerSpec

HANDLED = "example/handled"
WORKERS = 64


class Marker:
    """Copies one value of each ConfigMap to an annotation."""

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        if found is not None:
            turn = found.edit()["data"]["turn"]
            if found.metadata.annotations.get(HANDLED) != turn:
                await ctx.patch(found, {"metadata": {"annotations": {HANDLED: turn}}})
        return Action.await_change()


async def operate(kubeconfig: Path, namespace: str) -> None:
    tune_collector()
    env = system_env()
    env.spawn(collect_in_time(), name="garbage collector")
    client = Client(HttpTransport(read_kubeconfig(kubeconfig)), env, component="marker")
    spec = ControllerSpec(name="marker", kind=KINDS.of_key_kind("ConfigMap"), namespace=namespace, workers=WORKERS)
    await Controller(spec, Marker(), ControllerRuntime(client, env, recorder=Recorder(env))).run()


if __name__ == "__main__":
    asyncio.run(operate(Path(sys.argv[1]), sys.argv[2]))
