"""Deployments: one ReplicaSet per template, and replicas moved from the old ones to the current one."""

from __future__ import annotations

from kedge.controllers.deployment.controller import NAME, DeploymentReconciler, deployment_controller

__all__ = ["NAME", "DeploymentReconciler", "deployment_controller"]
