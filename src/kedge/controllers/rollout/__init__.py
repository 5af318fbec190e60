"""Rollouts: a SchedulingPolicy or a Deployment is changed stage by stage, each stage behind its gates."""

from __future__ import annotations

from kedge.controllers.rollout.controller import NAME, RolloutReconciler, rollout_controller

__all__ = ["NAME", "RolloutReconciler", "rollout_controller"]
