"""What an entry of the zoo is: one safeguard taken out of a real component, and where the hunt for it goes.

`swap` is the whole of the mechanism: it puts another method, function or limit in the place of one, for as long as a
hunt lasts. The parts of the zoo (`service`, `runtime`, `workloads`, `nodes`) list their entries here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

Patch = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One bug, kept on purpose."""

    name: str
    source: str
    """The lesson or the issue that it comes from."""
    safeguard: str
    """What is taken away, in words."""
    breaks: tuple[str, ...]
    """The invariants that it should break; any of them is a find."""
    theme: str
    """The world to hunt in."""
    patch: Patch


@contextmanager
def swap(target: Any, name: str, unsafe: Any) -> Iterator[None]:
    """Put `unsafe` in the place of an attribute of a class or module, for a while."""
    before = target.__dict__[name]
    setattr(target, name, unsafe)
    try:
        yield
    finally:
        setattr(target, name, before)


def swapping(target: Any, name: str, unsafe: Any, *also: Any) -> Patch:
    """A patch that swaps one attribute; in every module of `also` too, if those have it under the same name."""

    @contextmanager
    def patch() -> Iterator[None]:
        with ExitStack() as stack:
            for each in (target, *also):
                stack.enter_context(swap(each, name, unsafe))
            yield

    return patch
