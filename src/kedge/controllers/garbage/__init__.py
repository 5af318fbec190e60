"""Garbage collection: objects without a live owner, foreground deletion, orphaning, stuck finalizers."""

from __future__ import annotations

from kedge.controllers.garbage.controller import NAME, GarbageCollector, garbage_controller

__all__ = ["NAME", "GarbageCollector", "garbage_controller"]
