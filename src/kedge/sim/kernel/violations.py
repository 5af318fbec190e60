"""Violations: a broken invariant of a run, as text, with a cause to group it by.

`world` keeps the first violation of a run; `simulation` finds them; `hunt` groups by `group`.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from pathlib import PurePath

_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
"""The address of an object, which is in the text of many exceptions and differs in every run."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant."""

    invariant: str
    """The name of the invariant, as a sentence."""
    message: str
    """The state that broke it."""
    cause: str = ""
    """Distinguishes different ways to break one invariant: a place in the code, or the kind of an object."""
    detail: str = ""
    """More for a person: a traceback, or the tasks that wait."""

    stable_message: str = ""
    """Recorded in the trace instead of `message`: the text of an assertion depends on how the program was loaded."""

    @property
    def group(self) -> tuple[str, str]:
        """Failures of the same group are assumed to be one bug."""
        return self.invariant, self.cause

    @classmethod
    def of_error(cls, invariant: str, message: str, error: BaseException | None) -> Violation:
        """An unhandled exception, grouped by its type and the function that raised it."""
        if error is None:
            return cls(invariant, message)
        frames = traceback.extract_tb(error.__traceback__)
        place = f" at {PurePath(frames[-1].filename).name}:{frames[-1].name}" if frames else ""
        text = _ADDRESS.sub("0x...", f"{message}: {type(error).__name__}: {error}")
        detail = _ADDRESS.sub("0x...", "".join(traceback.format_exception(error)))
        cause = type(error).__name__ + place
        return cls(invariant, text, cause, detail, f"{message}: {cause}")

    def __str__(self) -> str:
        return f"{self.invariant}: {self.message}"
