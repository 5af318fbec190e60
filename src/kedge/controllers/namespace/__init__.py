"""Namespaces: one that is being deleted is emptied first."""

from __future__ import annotations

from kedge.controllers.namespace.controller import NAME, NamespaceReconciler, namespace_controller

__all__ = ["NAME", "NamespaceReconciler", "namespace_controller"]
