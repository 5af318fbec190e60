"""Endpoints: the pods of a Service that may receive traffic, as EndpointSlices."""

from __future__ import annotations

from kedge.controllers.endpoints.controller import NAME, EndpointsReconciler, endpoints_controller

__all__ = ["NAME", "EndpointsReconciler", "endpoints_controller"]
