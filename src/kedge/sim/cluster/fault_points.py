"""Fault points of a simulated cluster, and the faults declared at each.

`faults` strikes at the API, at the disk and at the cluster as a whole, `agents` at machines, `admission` at policies.
Kernel faults (lost messages, partitions, crashes) are in `kedge.sim.kernel.fault_registry`.
"""

from __future__ import annotations

from kedge.sim.kernel.fault_registry import EVERY_PLAN, FAULTS, LASTING_RATES, Fault, Placement

DISK, LIST, WATCH = "disk of store", "list of api", "watch of api"
STATUS, CHANGE, CLUSTER_EVENT = "status of api", "change of api", "event of cluster"
PULL, START, RUN = "pull of image", "start of process", "run of process"
SQLITE = "sync of sqlite"
STOP, PROBE, ADMISSION = "stop of process", "probe", "admission policies"

_NOT_CLUSTER_SWARM = tuple(plan for plan in EVERY_PLAN if plan is not Placement.CLUSTER_SWARM)

FAULTS.declare(
    Fault("slow", DISK, "a commit waits for the disk"),
    Fault("power cut", SQLITE, "the machine of the store loses power during a sync", lasts=True),
    Fault("full", SQLITE, "the disk of the store is full for a while", lasts=True),
    Fault("stale", LIST, "the first page of a list comes from an old revision"),
    Fault("compact", WATCH, "all history is compacted before the watch opens"),
    Fault("stall", WATCH, "the watch goes silent and never ends", lasts=True, plans=_NOT_CLUSTER_SWARM),
    Fault("late", STATUS, "a status write is applied late"),
    Fault("conflict", CHANGE, "another writer changes the object first"),
    Fault("node death", CLUSTER_EVENT, "a machine loses power for seconds to minutes", lasts=True),
    Fault("reboot", CLUSTER_EVENT, "a machine restarts within two seconds"),
    Fault("depose", CLUSTER_EVENT, "a leader loses its lease without notice"),
    Fault("shrink", CLUSTER_EVENT, "the allocatable CPU of a node shrinks", lasts=True),
    Fault("grow", CLUSTER_EVENT, "the allocatable CPU of a node is its capacity again"),
    Fault("compact", CLUSTER_EVENT, "all history is compacted"),
    Fault("crash process", CLUSTER_EVENT, "a container process of a node crashes"),
    Fault("remove node", CLUSTER_EVENT, "a Node object is deleted; its agent registers it again"),
    Fault("slow", PULL, "an image pull takes up to 20 s"),
    Fault("fail", PULL, "an image pull fails"),
    Fault("slow", START, "a container takes long to start"),
    Fault("crash", RUN, "a container process crashes after a while", rates=LASTING_RATES),
    Fault("ignore", STOP, "a process ignores the stop signal until it is killed"),
    Fault("zombie", STOP, "a process outlives even the kill for a while", lasts=True),
    Fault("fail", PROBE, "a probe fails"),
    Fault("everywhere", ADMISSION, "the admission policies change on every server", lasts=True),
    Fault("one server", ADMISSION, "the admission policies change on one server first", lasts=True),
)
