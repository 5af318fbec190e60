"""Scheduling policies: the settings they give a pod, and what zone quotas leave to its tenant."""
