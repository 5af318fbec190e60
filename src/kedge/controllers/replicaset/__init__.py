"""ReplicaSets: as many pods of one template as are requested, one per slot."""

from __future__ import annotations

from kedge.controllers.replicaset.controller import NAME, ReplicaSetReconciler, replica_set_controller

__all__ = ["NAME", "ReplicaSetReconciler", "replica_set_controller"]
