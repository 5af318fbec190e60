"""A filter or a score that is one module and one line in the list works everywhere: no other file knows its name."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kit.controllers import until
from tests.kit.scheduler import SchedulerHarness, account_in, with_scheduler
from tests.objects import node, pod

from kedge.api.views import NodeView, PodView, decode_as
from kedge.errors import ReplayDiverged
from kedge.keys import Key
from kedge.scheduler import decide, explain, snapshot_of
from kedge.scheduler.pipeline import plugins
from kedge.scheduler.pipeline.plugin import Filter, Score

TIER_FILTER = '''
from kedge.scheduler.pipeline.plugin import NodeFilter
from kedge.scheduler.queue.events import ClusterEvent


class TierFilter(NodeFilter):
    """Pods that request more than half a CPU need a large node."""

    reason = "NodeTier"
    label = "tier"
    unblocked_by = ClusterEvent.NODE

    def __init__(self, snapshot):
        self._snapshot = snapshot

    @classmethod
    def for_shape(cls, context):
        return (cls(context.snapshot),) if context.shape.requirements.requests.get("cpu", 0) > 500 else ()

    def mask(self, rows):
        column = self._snapshot.column("tier")
        return column.ids[rows] == column.find("large")
'''

ALONE_FILTER = '''
import numpy as np

from kedge.scheduler.pipeline.plugin import ClaimFilter
from kedge.scheduler.queue.events import ClusterEvent


class AloneFilter(ClaimFilter):
    """One pod a node."""

    reason = "Alone"
    label = "occupied"
    unblocked_by = ClusterEvent.NODE | ClusterEvent.ROOM
    preemptible = True

    def __init__(self, snapshot):
        self._snapshot = snapshot

    @classmethod
    def for_shape(cls, context):
        return (cls(context.snapshot),)

    def mask(self, rows):
        pods = self._snapshot.resources["pods"]
        return self._snapshot.claimed[pods, rows] < 1
'''

FAST_SCORE = '''
import numpy as np

from kedge.scheduler.pipeline.plugin import POINTS_MAX, RelativeScore


class FastScore(RelativeScore):
    """Nodes with the label fast."""

    weights = {"fast": 5}

    def __init__(self, snapshot, weight):
        self.weight = weight
        self._snapshot = snapshot

    @classmethod
    def for_shape(cls, context, weights):
        return cls(context.snapshot, weights["fast"])

    def rebuild(self):
        self._points = POINTS_MAX * (self._snapshot.column("fast").ids != 0).astype(np.int64)

    def points(self, feasible):
        return self._points
'''


class AddedPlugins:
    """Adds plugins to the list for the length of a test."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._patch = patch
        self.before = plugins.PIPELINE

    def _load(self, name: str, source: str) -> Any:
        path = self._folder / f"{name.lower()}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, name)

    def filter(self, name: str, source: str) -> None:
        made: type[Filter] = self._load(name, source)
        self.use(self.before._replace(filters=(*self.before.filters, made)))

    def score(self, name: str, source: str) -> None:
        made: type[Score] = self._load(name, source)
        self.use(self.before._replace(scores=(*self.before.scores, made)))

    def use(self, pipeline: plugins.Pipeline) -> None:
        self._patch.setattr(plugins, "PIPELINE", pipeline)


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AddedPlugins:
    return AddedPlugins(tmp_path, monkeypatch)


def run(program: Callable[[SchedulerHarness], Any]) -> None:
    with_scheduler()(program)()


def labelled(name: str, **labels: str) -> dict[str, Any]:
    body = node(name, cpu="1")
    body["metadata"].setdefault("labels", {}).update(labels)
    return body


def test_a_new_filter_filters_explains_wakes_and_rechecks(added: AddedPlugins) -> None:
    added.filter("TierFilter", TIER_FILTER)

    async def program(harness: SchedulerHarness) -> None:
        await harness.open_for(labelled("node-a", tier="small"))
        await harness.pod("little", cpu="100m")
        await harness.pod("large", cpu="600m")
        await until(lambda: harness.place("little") and harness.reason("large"))
        assert harness.reason("large") == "0/1 nodes: 1 tier"
        account = account_in(harness.attempts("large")[-1])
        assert (account.legend, account.counts) == (("tier",), {"tier": 1})

        await harness.cluster.authority.patch(Key("Node", "", "node-a"), {"metadata": {"labels": {"tier": "large"}}})
        await until(lambda: len(harness.attempts("large")) == 2)
        assert harness.place("large") == "node-a"
        assert harness.attempts("large")[-1].wakes == (("a node changed", ""),)

        assert harness.recheck_all() == 3
        with_filter = plugins.PIPELINE
        added.use(added.before)
        with pytest.raises(ReplayDiverged):
            harness.recheck_all()
        added.use(with_filter)

    run(program)


def test_a_new_filter_that_evictions_help_is_preempted_for(added: AddedPlugins) -> None:
    added.filter("AloneFilter", ALONE_FILTER)

    async def program(harness: SchedulerHarness) -> None:
        await harness.priority("urgent", 10)
        await harness.open_for(labelled("node-a"))
        await harness.pod("first", cpu="100m")
        await until(lambda: harness.place("first"))
        await harness.pod("second", cpu="100m")
        await until(lambda: harness.reason("second"))
        assert harness.reason("second") == "0/1 nodes: 1 occupied"
        await harness.remove("first")
        await until(lambda: harness.place("second"))
        await harness.pod("urgent", cpu="100m", priorityClassName="urgent")
        await until(lambda: harness.nominated("urgent") == "node-a")
        await until(lambda: (found := harness.find("second")) is not None and found.view.terminating)
        await harness.remove("second")
        await until(lambda: harness.place("urgent"))

    run(program)


def test_a_new_score_is_weighed_and_listed_in_the_explanation(added: AddedPlugins) -> None:
    views = [
        decode_as(NodeView, msgspec.json.encode(labelled(name, **labels)))
        for name, labels in (("a", {}), ("b", {"fast": "yes"}))
    ]
    asked = decode_as(PodView, msgspec.json.encode(pod()))
    before = decide(snapshot_of(views), asked, 0)
    added.score("FastScore", FAST_SCORE)
    snapshot = snapshot_of(views)
    after = decide(snapshot, asked, 0)
    assert (before.node, after.node, after.score - before.score) == ("a", "b", 500)
    assert explain(snapshot, after).top[0].parts["fast"] == 100
