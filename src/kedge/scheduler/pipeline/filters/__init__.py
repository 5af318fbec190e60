"""Filters: which nodes a shape of pods may go to, as boolean masks, each with its reason code.

`nodes` and `resources` look at one node at a time and are property-tested equal to `placement.predicates`;
`spread` and `affinity` look at the pods on other nodes too.
"""

from kedge.scheduler.pipeline.filters.affinity import AffinityFilter, AntiAffinityFilter
from kedge.scheduler.pipeline.filters.blockers import Blocker
from kedge.scheduler.pipeline.filters.nodes import node_failures, selected, tolerated
from kedge.scheduler.pipeline.filters.resources import fits_all, fits_row, shortages_all
from kedge.scheduler.pipeline.filters.spread import SpreadFilter

__all__ = [
    "AffinityFilter",
    "AntiAffinityFilter",
    "Blocker",
    "SpreadFilter",
    "fits_all",
    "fits_row",
    "node_failures",
    "selected",
    "shortages_all",
    "tolerated",
]
