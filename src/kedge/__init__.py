"""Kedge: a distributed scheduler and control plane that can be rewound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec, WatchSpec

__version__ = "0.1.0"
__all__ = ["Action", "Context", "Controller", "ControllerRuntime", "ControllerSpec", "WatchSpec"]


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that a command that needs no runtime starts without it."""
    if name in __all__:
        from kedge import runtime

        return getattr(runtime, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
