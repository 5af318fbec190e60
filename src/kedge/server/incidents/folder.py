"""The folder of incidents of one server: for each incident a folder, in it one for each process, in it its parts.

A part is a file that grows by slices: a kept file, such as a segment of a decision log. A process that has sent all of
its parts leaves a mark. Names come from the network, so each is checked before it becomes a path.
"""

from __future__ import annotations

import hmac
import os
import re
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from kedge.env import Env
from kedge.errors import BadRequest, NotFound, TooManyRequests, Unavailable

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_DONE: Final = ".done"
"""No part has this name, because it begins with a dot."""


class PartListing(NamedTuple):
    """A part, as far as it has arrived."""

    name: str
    bytes: int


class ProcessListing(NamedTuple):
    """The parts of one process."""

    name: str
    done: bool
    """It has sent everything it had."""
    parts: tuple[PartListing, ...]


class IncidentListing(NamedTuple):
    """The records of one incident at one server."""

    name: str
    processes: tuple[ProcessListing, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for process in self.processes for part in process.parts)


class IncidentFolder:
    """Bounded in incidents and bytes. Nothing in it is synced: an incident whose server is lost is recorded again."""

    def __init__(self, folder: Path, env: Env, *, secret: bytes | None = None) -> None:
        """`secret` is known to every server of the cluster, and to nothing else; without it this is the only one."""
        self._secret = env.secret_bytes(32) if secret is None else secret
        self._folder = folder
        self._limits = env.limits
        self._bytes = sum(each.bytes for each in self.listing())
        env.metrics.gauge("kedge_incidents_bytes", "Bytes of records that were sent for incidents").set_function(
            lambda: self._bytes
        )
        env.metrics.gauge("kedge_incidents", "Incidents whose records this server has").set_function(
            lambda: len(self._names())
        )

    # -- writing -----------------------------------------------------------------------------------

    def begin(self, incident: str, process: str) -> None:
        """A process takes part in an incident. Safe to repeat.

        Raises:
            TooManyRequests: there are as many incidents as are allowed. Delete one.
            Unavailable: the disk does not take it. Try again.
        """
        place = self._place(incident, process)
        if not place.parent.is_dir() and len(self._names()) >= self._limits.incidents_max:
            raise TooManyRequests(
                f"this server has the records of {self._limits.incidents_max} incidents, which is the limit:"
                " remove one with `kedge incident delete`"
            )
        try:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise Unavailable(f"records of an incident cannot be written to {place}: {error}") from error

    def hiding_key(self, incident: str) -> bytes:
        """The key with which every process hides values in the records of this incident, so that equal ones stay equal.

        It is derived, and in no file: the records alone do not give it away.
        """
        return hmac.digest(self._secret, f"incident {incident}".encode(), "sha256")

    def append(self, incident: str, process: str, part: str, at: int, data: bytes) -> int:
        """Add a slice of a part that begins `at` bytes after its begin. Returns the size of the part: send from there.

        A slice that arrived before is passed over, so a sender may repeat one whose reply was lost; one before which
        others are missing is not taken.

        Raises:
            NotFound: the process has not begun with this incident.
            TooManyRequests: the folder is full.
            Unavailable: the disk does not take it. Nothing of the slice is there: send it again.
        """
        path = self._place(incident, process, part)
        if not path.parent.is_dir():
            raise NotFound(f"process {process} does not take part in incident {incident}: begin with it first")
        size = path.stat().st_size if path.exists() else 0
        fresh = data[size - at :] if at <= size else b""
        if fresh:
            if self._bytes + len(fresh) > self._limits.incidents_bytes_max:
                raise TooManyRequests(
                    f"records of incidents at this server have {self._bytes} bytes, and the limit is"
                    f" {self._limits.incidents_bytes_max}: remove an incident with `kedge incident delete`"
                )
            _append(path, size, fresh)
            self._bytes += len(fresh)
        return size + len(fresh)

    def end(self, incident: str, process: str) -> None:
        """A process has sent everything. Safe to repeat."""
        self.begin(incident, process)
        try:
            (self._place(incident, process) / _DONE).touch()
        except OSError as error:
            raise Unavailable(f"the end of {process} in incident {incident} cannot be noted: {error}") from error

    def delete(self, incident: str) -> None:
        """Remove the records of an incident.

        Raises:
            NotFound: this server has none.
        """
        found = self.find(incident)
        shutil.rmtree(self._place(incident), ignore_errors=True)
        self._bytes -= found.bytes

    # -- reading -----------------------------------------------------------------------------------

    def listing(self) -> list[IncidentListing]:
        return [self.find(name) for name in self._names()]

    def find(self, incident: str) -> IncidentListing:
        place = self._place(incident)
        if not place.is_dir():
            raise NotFound(f"this server has no records of incident {incident}")
        return IncidentListing(incident, tuple(_process(each) for each in sorted(place.iterdir()) if each.is_dir()))

    def read(self, incident: str, process: str, part: str, at: int, size: int) -> bytes:
        """A slice of a part; empty at its end."""
        try:
            with self._place(incident, process, part).open("rb") as file:
                return os.pread(file.fileno(), size, at)
        except FileNotFoundError:
            raise NotFound(f"process {process} sent no part {part} for incident {incident}") from None

    def _names(self) -> list[str]:
        return sorted(each.name for each in self._folder.iterdir()) if self._folder.is_dir() else []

    def _place(self, *names: str) -> Path:
        for name in names:
            if not _NAME.fullmatch(name):
                raise BadRequest(f"{name[:80]!r} is no name of an incident, a process or a part")
        return self._folder.joinpath(*names)


def _append(path: Path, size: int, data: bytes) -> None:
    """Add to a file of that size: all of it, or nothing."""
    try:
        with path.open("ab", buffering=0) as file:
            try:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) or 0 :]
            except OSError:
                file.truncate(size)
                raise
    except OSError as error:
        raise Unavailable(f"records of an incident cannot be written to {path.parent}: {error}") from error


def _process(folder: Path) -> ProcessListing:
    parts = [PartListing(each.name, each.stat().st_size) for each in sorted(folder.iterdir()) if each.name != _DONE]
    return ProcessListing(folder.name, (folder / _DONE).exists(), tuple(parts))
