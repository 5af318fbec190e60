"""The suite that every store passes unchanged: `check_store(make_store)`. Ships with kedge, needs no pytest."""

from kedge.store.conformance.subject import Backup, MakeEnv, MakeStore, Subject
from kedge.store.conformance.suite import CHECKS, StoreCheck, check_names, check_store

__all__ = [
    "CHECKS",
    "Backup",
    "MakeEnv",
    "MakeStore",
    "StoreCheck",
    "Subject",
    "check_names",
    "check_store",
]
