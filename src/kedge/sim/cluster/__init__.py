"""A simulated cluster: the production components on simulated hosts, links and machines.

`cluster` composes it; `links` and `relay` carry requests and store events; `agents` simulates machines; `faults` holds
the faults that strike at API semantics. Judges of a run are in `kedge.sim.judges`.
"""

from kedge.sim.cluster.cluster import (
    Cluster,
    Component,
    ComponentFactory,
    ControlPlaneProcess,
    Node,
    ProcessContext,
    ProcessFactory,
)
from kedge.sim.cluster.fault_points import DISK
from kedge.sim.cluster.links import (
    API,
    STORE,
    Commit,
    RemoteStore,
    RemoteTransport,
    RemoteWatch,
    WatchedStore,
)

__all__ = [
    "API",
    "DISK",
    "STORE",
    "Cluster",
    "Commit",
    "Component",
    "ComponentFactory",
    "ControlPlaneProcess",
    "Node",
    "ProcessContext",
    "ProcessFactory",
    "RemoteStore",
    "RemoteTransport",
    "RemoteWatch",
    "WatchedStore",
]
