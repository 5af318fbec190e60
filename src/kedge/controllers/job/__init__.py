"""Jobs: pods that run until enough of them have succeeded, too many have failed, or the deadline has passed."""

from __future__ import annotations

from kedge.controllers.job.controller import NAME, JobReconciler, job_controller

__all__ = ["NAME", "JobReconciler", "job_controller"]
