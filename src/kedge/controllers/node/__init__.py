"""Nodes: the evidence for and against each one, and the eviction of pods from lost, tainted and drained nodes."""

from __future__ import annotations

from kedge.controllers.node.controller import NAME, NodeLifecycle, lifecycle_controller

__all__ = ["NAME", "NodeLifecycle", "lifecycle_controller"]
