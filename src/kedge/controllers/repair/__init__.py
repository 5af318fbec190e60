"""Repair of claims, reservations and bindings whose pod or node no longer exists."""

from __future__ import annotations

from kedge.controllers.repair.controller import (
    BINDINGS,
    LEDGERS,
    RESERVATIONS,
    BindingRepair,
    LedgerRepair,
    ReservationRepair,
    binding_repair_controller,
    ledger_repair_controller,
    reservation_repair_controller,
)

__all__ = [
    "BINDINGS",
    "LEDGERS",
    "RESERVATIONS",
    "BindingRepair",
    "LedgerRepair",
    "ReservationRepair",
    "binding_repair_controller",
    "ledger_repair_controller",
    "reservation_repair_controller",
]
