"""What every controller is written against."""

from kedge.runtime.action import Action
from kedge.runtime.context import Context
from kedge.runtime.controller import Controller, Reconciler

__all__ = ["Action", "Context", "Controller", "Reconciler"]
