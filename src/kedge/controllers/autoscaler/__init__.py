"""HorizontalPodAutoscalers: a target is scaled to the measured use of its pods."""

from __future__ import annotations

from kedge.controllers.autoscaler.controller import NAME, AutoscalerReconciler, autoscaler_controller

__all__ = ["NAME", "AutoscalerReconciler", "autoscaler_controller"]
