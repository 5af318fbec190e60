"""A store with 100,000 objects of a kind, made quickly: for tests of steps and of memory at that size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kedge.keys import Key
from kedge.store import Put, Store

OBJECTS: Final = 100_000
NODES: Final = 500
_A_COMMIT, _AT_ONCE = 100, 10


def stored_map(number: int) -> Put:
    name, namespace = f"c{number:06}", f"n{number % 10}"
    value = (
        f'{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","namespace":"{namespace}","uid":"u{number}",'
        f'"creationTimestamp":"2030-01-01T00:00:00Z","labels":{{"app":"a{number % 7}"}}}},"data":{{"k":"v{number}"}}}}'
    )
    return Put(Key("ConfigMap", namespace, name), value.encode())


def stored_pod(number: int) -> Put:
    """A pod that runs on one of the nodes; no workload owns it."""
    name, namespace = f"p{number:06}", f"n{number % 10}"
    value = (
        f'{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}","namespace":"{namespace}","uid":"p{number}",'
        f'"creationTimestamp":"2030-01-01T00:00:00Z","labels":{{"app":"a{number % 7}"}}}},'
        f'"spec":{{"nodeName":"node{number % NODES}","containers":[{{"name":"main","image":"a"}}]}},'
        f'"status":{{"phase":"Running"}}}}'
    )
    return Put(Key("Pod", namespace, name), value.encode())


async def fill(store: Store, make: Callable[[int], Put]) -> None:
    """Some commits at once, so that they share a sync; other tasks run in between."""
    commits = []
    for start in range(0, OBJECTS, _A_COMMIT):
        commits.append(store.commit([], [make(n) for n in range(start, start + _A_COMMIT)]))
        await asyncio.sleep(0)
        if len(commits) == _AT_ONCE:
            await asyncio.gather(*commits)
            commits = []
