"""Brief decisions: binds that succeeded and that no rule keeps, without a record. The most frequent decisions by far.

`scheduler` passes references; `recorder` counts them, and has the record made only if a kept decision read what the
bind wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Protocol

from kedge.keys import Revision
from kedge.observe.recording.rules import BegunDecision
from kedge.observe.records import CacheMark, Decision

Release = Callable[[], None]


class BriefDecision(BegunDecision, Protocol):
    """A bind as it is counted. Nothing in it changes."""

    @property
    def wake(self) -> tuple[str, str]: ...
    @property
    def marks(self) -> tuple[CacheMark, ...]: ...
    @property
    def fence(self) -> Revision: ...
    @property
    def revision(self) -> Revision: ...
    @property
    def began(self) -> datetime: ...


class BriefSource(Protocol):
    """Makes the records of the brief decisions of one scheduler."""

    controller: str
    process: str

    def record_of(self, brief: Any, /) -> Decision: ...

    def records_of(self, briefs: Iterable[Any], /) -> Iterator[Decision]:
        """The records of many, newest first: each costs less than one alone."""

    def pin(self, record: Decision, /) -> Sequence[Release]: ...
