"""Kept blocks of lists: the bytes are always those of the versions that were listed, and their memory is bounded."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kedge.api.codec import splice
from kedge.keys import Key
from kedge.limits import Limits
from kedge.metrics import Metrics
from kedge.server.http.list_blocks import BLOCK_BYTES, UNUSED_LISTS, ListBlocks
from kedge.store import Entry

NAMES = 400


class Pods:
    """Objects of one kind that change, and lists of them."""

    def __init__(self, seed: int, limits: Limits | None = None) -> None:
        self.random = Random(seed)
        self.metrics = Metrics()
        self.blocks = ListBlocks(limits or Limits(), self.metrics)
        self.found: dict[Key, Entry] = {}
        self.revision = 0

    def write(self, name: int) -> None:
        self.revision += 1
        key = Key("pods", "ab"[name % 2], f"p-{name:03}")
        padding = b"x" * self.random.choice((10, 500, 3_000, 40_000 if name == 7 else 100))
        value = b'{"kind":"Pod","metadata":{"name":"p","n":"%b"}}' % padding
        before = self.found.get(key)
        self.found[key] = Entry(key, value, before.created if before is not None else self.revision, self.revision)

    def remove(self, name: int) -> None:
        self.found.pop(Key("pods", "ab"[name % 2], f"p-{name:03}"), None)

    def entries(self, namespace: str = "") -> list[Entry]:
        return [self.found[key] for key in sorted(self.found) if namespace in ("", key.namespace)]

    def listed(self, namespace: str = "") -> list[bytes]:
        """The blocks of a list, which are held against the plain way."""
        entries = self.entries(namespace)
        blocks = list(self.blocks.blocks(entries))
        assert b",".join(blocks) == b",".join([splice(each.value, each.modified) for each in entries])
        return blocks

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@given(st.integers(0, 2**32), st.integers(1, 40), st.sampled_from((0, 50_000, 10**7)))
def test_a_list_is_that_of_the_versions_whatever_is_kept(seed: int, lists: int, kept: int) -> None:
    pods = Pods(seed, Limits(http_list_blocks_bytes_max=kept))
    for name in range(0, NAMES, 3):
        pods.write(name)
    for _ in range(lists):
        for _ in range(pods.random.randrange(30)):
            pods.random.choice((pods.write, pods.remove))(pods.random.randrange(NAMES))
        pods.listed(pods.random.choice(("", "a", "b")))
        assert pods.counted("kedge_http_list_blocks_bytes") <= kept


def test_an_object_that_does_not_change_is_read_once_and_a_change_costs_its_block() -> None:
    pods = Pods(1)
    for name in range(NAMES):
        pods.write(name)
    blocks = len(pods.listed())
    assert pods.counted("kedge_http_listed_objects_total", source="object") == NAMES
    pods.listed()
    assert pods.counted("kedge_http_listed_objects_total", source="object") == NAMES
    assert pods.counted("kedge_http_listed_objects_total", source="block") == NAMES
    pods.write(200)
    pods.listed()
    read = pods.counted("kedge_http_listed_objects_total", source="object") - NAMES
    assert 0 < read <= 4 * NAMES / blocks


def test_blocks_stay_large_while_objects_come_and_go() -> None:
    pods = Pods(2)
    for name in range(0, NAMES, 2):
        pods.write(name)
    for _ in range(300):
        pods.random.choice((pods.write, pods.remove))(pods.random.randrange(NAMES))
        blocks = pods.listed()
    assert sum(map(len, blocks)) / len(blocks) > BLOCK_BYTES / 2


def test_lists_longer_than_what_is_kept_still_use_some_blocks() -> None:
    pods = Pods(3, Limits(http_list_blocks_bytes_max=100_000))
    for name in range(NAMES):
        pods.write(name)
    for _ in range(UNUSED_LISTS):
        pods.listed()
    assert pods.counted("kedge_http_listed_objects_total", source="block") > 0


def test_blocks_of_objects_that_are_gone_make_room() -> None:
    pods = Pods(4, Limits(http_list_blocks_bytes_max=100_000))
    for name in range(100):
        pods.write(name)
    pods.listed()
    for name in range(100):
        pods.remove(name)
    for name in range(300, 330):
        pods.write(name)
    for _ in range(UNUSED_LISTS + 1):
        pods.listed()
    before = pods.counted("kedge_http_listed_objects_total", source="object")
    pods.listed()
    assert pods.counted("kedge_http_listed_objects_total", source="object") == before
