"""Hypothesis everywhere: no deadline, because a busy machine is no bug; no database, because runs share a tree."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("kedge", deadline=None, database=None)
settings.load_profile("kedge")
