"""Every filter and score, in order: the one place where a new one is added.

The first filter that fails on a node is its reason in an explanation, so users see the order. Scores are summed: their
order is only that of the parts in an explanation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kedge.scheduler.pipeline.filters.host_ports import HostPortFilter
from kedge.scheduler.pipeline.filters.node_flags import CordonFilter, SuspectFilter, TerminatingFilter
from kedge.scheduler.pipeline.filters.node_labels import NodeAffinityFilter, NodeNameFilter, NodeSelectorFilter
from kedge.scheduler.pipeline.filters.pod_affinity import (
    AffinityFilter,
    AntiAffinityFilter,
    AntiAffinityOfOthersFilter,
)
from kedge.scheduler.pipeline.filters.refused import RefusedFilter
from kedge.scheduler.pipeline.filters.resources import ResourceFilter
from kedge.scheduler.pipeline.filters.taints import TaintFilter
from kedge.scheduler.pipeline.filters.topology_spread import TopologySpreadFilter
from kedge.scheduler.pipeline.filters.zone_quota import ZoneQuotaFilter
from kedge.scheduler.pipeline.filters.zone_skew import ZoneSkewFilter
from kedge.scheduler.pipeline.plugin import Filter, Score, Weights
from kedge.scheduler.pipeline.scores.allocation import AllocationScore
from kedge.scheduler.pipeline.scores.image_locality import ImageLocalityScore
from kedge.scheduler.pipeline.scores.node_affinity import NodeAffinityScore
from kedge.scheduler.pipeline.scores.pod_affinity import PodAffinityScore
from kedge.scheduler.pipeline.scores.taints import TaintScore
from kedge.scheduler.pipeline.scores.topology_spread import TopologySpreadScore
from kedge.scheduler.policy.settings import Settings


class Pipeline(NamedTuple):
    filters: tuple[type[Filter], ...]
    scores: tuple[type[Score], ...]


PIPELINE: Final = Pipeline(
    filters=(
        TerminatingFilter,
        CordonFilter,
        SuspectFilter,
        NodeNameFilter,
        TaintFilter,
        NodeSelectorFilter,
        NodeAffinityFilter,
        HostPortFilter,
        ResourceFilter,
        ZoneQuotaFilter,
        TopologySpreadFilter,
        AffinityFilter,
        AntiAffinityFilter,
        AntiAffinityOfOthersFilter,
        ZoneSkewFilter,
        RefusedFilter,
    ),
    scores=(
        AllocationScore,
        NodeAffinityScore,
        PodAffinityScore,
        TopologySpreadScore,
        TaintScore,
        ImageLocalityScore,
    ),
)


def default_weights() -> Mapping[str, int]:
    """Every score by name, with the weight that kube-scheduler gives it."""
    return {name: weight for score in PIPELINE.scores for name, weight in score.weights.items()}


def weights_under(settings: Settings) -> Weights:
    """Every score's weight under a policy. A score that the policy does not name has its default weight."""
    named = dict(settings.weights)
    return {name: named.get(name, weight) for name, weight in default_weights().items()}
