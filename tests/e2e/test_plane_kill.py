"""`kill -9` of a real process that runs every controller on a SQLite store: the next one finishes the work."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tests.e2e.plane_load import WEB, live, size_of

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.views import NodeAllocationView, PodView
from kedge.env import system_env
from kedge.keys import Key
from kedge.store.contract import Entry
from kedge.store.sqlite import SqliteStore

KILLS = 6
TIMEOUT_S = 120.0
"""A bound for slow machines."""


def objects(path: Path) -> dict[Key, Object]:
    """All committed objects of the kinds that are checked here."""

    async def read() -> list[Entry]:
        store = await SqliteStore.open(path, system_env())
        try:
            kinds = ("Pod", "ReplicaSet.apps", "Deployment.apps", "NodeAllocation.kedge.dev")
            return [entry for kind in kinds for entry in (await store.list(kind)).entries]
        finally:
            await store.close()

    return {
        each.key: Object(KINDS.of_key_kind(each.key.kind), each.key, each.value, revision=each.modified)
        for each in asyncio.run(read())
    }


def check_committed(found: dict[Key, Object], most: int) -> None:
    """Invariants under kills: bounded replicas, one ReplicaSet a template, and claims that equal the bindings."""
    pods = {each.uid: each.as_view(PodView) for key, each in found.items() if key.kind == "Pod"}
    living = [pod for pod in pods.values() if not pod.finished]
    assert len(living) <= most, [pod.name for pod in living]
    sets = {each.uid for key, each in found.items() if key.kind == "ReplicaSet.apps"}
    for pod in pods.values():
        assert pod.metadata.owner_references[0].uid in sets, f"{pod.name} has no owner"
    templates = Counter(each.view.spec.template.spec.containers[0].image for key, each in found.items() if _is_set(key))
    assert max(templates.values(), default=0) <= 1, f"a template has two ReplicaSets: {templates}"
    claims = {
        (uid, key.name)
        for key, each in found.items()
        if key.kind == "NodeAllocation.kedge.dev"
        for uid in each.as_view(NodeAllocationView).status.entries
    }
    assert claims == {(uid, pod.spec.node_name) for uid, pod in pods.items() if pod.spec.node_name and not pod.finished}


def _is_set(key: Key) -> bool:
    return key.kind == "ReplicaSet.apps"


def expect(receive: Connection, message: str) -> None:
    assert receive.poll(TIMEOUT_S), f"no message {message!r}"
    assert receive.recv() == message


@pytest.mark.slow
def test_a_control_plane_that_is_killed_repeatedly_finishes_its_work(tmp_path: Path) -> None:
    seed = os.environ.get("KEDGE_TORTURE_SEED") or str(random.randrange(10**9))
    print(f"KEDGE_TORTURE_SEED={seed}")
    rng = random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.e2e.plane_load"])
    path, interrupted = tmp_path / "plane.db", 0
    for life in range(KILLS + 1):
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=live, args=(path, life, send), daemon=True)
        process.start()
        send.close()
        try:
            expect(receive, "changed")
            if life == KILLS:
                expect(receive, "done")
            else:
                interrupted += not receive.poll(rng.uniform(0.0, 0.6))
        finally:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            receive.close()
        # Two rollouts may overlap, with a surge of a quarter of the larger size.
        most = max(size_of(life), size_of(life - 1))
        check_committed(objects(path), most + -(-most // 4))
    assert interrupted, "no process was killed during a rollout"
    found = objects(path)
    web = found[WEB].view
    pods = [each.as_view(PodView) for key, each in found.items() if key.kind == "Pod"]
    assert web.status.available_replicas == web.spec.replicas == size_of(KILLS) == len(pods)
    assert {pod.spec.containers[0].image for pod in pods} == {f"web:{KILLS}"}
