"""The worlds of the zoo: small clusters with only the components that their entries concern. A seed costs little.

Each is a target that must hold in every seed while nothing is taken out. Periodic work (resync, relist, flush) is
off: it would hide a lost wake-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kedge.sim.zoo.strategies import (
    BROKEN_WATCHES,
    CUT_OFF,
    GENERAL,
    OF_DISKS,
    OF_QUEUES,
    OF_RACES,
    OF_SILENCE,
    OF_VIEWS,
    OLD_LISTS,
    SLOW_RESERVES,
    Strategy,
)


@dataclass(frozen=True, slots=True)
class ZooWorld:
    """A target, and the strategies that hunt in it."""

    reference: str
    strategies: tuple[Strategy, ...] = GENERAL


STANDARD = "standard"
RACES = (*GENERAL, *OF_RACES)
WORLDS: Mapping[str, ZooWorld] = {
    **{name: ZooWorld(f"{__name__}.runtime:{name}", OF_VIEWS) for name in ("groups", "outage")},
    **{name: ZooWorld(f"{__name__}.workloads:{name}") for name in ("workloads", "rollouts", "serving")},
    "quotas": ZooWorld(f"{__name__}.service:quotas"),
    "garbage": ZooWorld(f"{__name__}.service:garbage", RACES),
    "placement": ZooWorld(f"{__name__}.placement:placement", RACES),
    "nodes": ZooWorld(f"{__name__}.agents:nodes", RACES),
    "unanswered": ZooWorld(f"{__name__}.runtime:unanswered", OF_SILENCE),
    **{name: ZooWorld(f"{__name__}.queues:{name}", OF_QUEUES) for name in ("rivals", "tenants")},
    "replaced": ZooWorld(f"{__name__}.placement:placement", (BROKEN_WATCHES,)),
    "agents": ZooWorld(f"{__name__}.agents:agents", (*RACES, OLD_LISTS)),
    "apart": ZooWorld(f"{__name__}.placement:apart", (*GENERAL, CUT_OFF)),
    "crowded": ZooWorld(f"{__name__}.placement:crowded"),
    "gangs": ZooWorld(f"{__name__}.placement:gangs", (*GENERAL, SLOW_RESERVES)),
    "restarts": ZooWorld(f"{__name__}.agents:restarts", OF_VIEWS),
    **{name: ZooWorld(f"{__name__}.changes:{name}") for name in ("canary", "autoscaled")},
    **{name: ZooWorld(f"{__name__}.repair:{name}", RACES) for name in ("orphans", "evictions")},
    **{name: ZooWorld(f"{__name__}.operators:{name}") for name in ("maintenance", "priorities", "edits")},
    **{name: ZooWorld(f"{__name__}.settings:{name}") for name in ("policies", "clocks")},
    "disks": ZooWorld(f"{__name__}.disks:disks", OF_DISKS),
    STANDARD: ZooWorld("kedge.sim.standard:standard"),
}
