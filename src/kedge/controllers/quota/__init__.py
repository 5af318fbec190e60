"""Quotas: the service counts their use in every commit; the controller detects a wrong count."""

from __future__ import annotations

from kedge.controllers.quota.controller import NAME, QuotaReconciler, quota_controller

__all__ = ["NAME", "QuotaReconciler", "quota_controller"]
