"""Reads the audit log of a state folder: entries that match a query, oldest first, also while it is written.

`kedge audit` prints them. Lines that a kill cut off are passed over and counted, never raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from kedge.api.audit import DeletedObject
from kedge.api.wellknown import AUDIT_OBJECTS, DECISION_ANNOTATION
from kedge.errors import NotFound
from kedge.server.audit.events import GAP_KIND, AuditEvent, AuditGap
from kedge.server.audit.files import audit_files

_event: Final = msgspec.json.Decoder(AuditEvent)
_gap: Final = msgspec.json.Decoder(AuditGap)
_deleted: Final = msgspec.json.Decoder(list[DeletedObject])
_object_name: Final = re.compile(rb'"objectRef":\{"resource":"[^"]*"(?:,"namespace":"[^"]*")?,"name":"([^"]*)"')
"""The name of the object in a line, without decoding it."""
_GAP_MARK: Final = f'"kind":"{GAP_KIND}"'.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """Conditions that all hold for an entry. An empty one holds for each."""

    decision: str = ""
    user: str = ""
    """The authenticated user, or the one that it impersonates."""
    group: str = ""
    resource: str = ""
    """The plural of a kind, in the API group `group`."""
    namespace: str = ""
    name: str = ""
    names: frozenset[str] = frozenset()
    """Objects of one of these names, of any kind."""
    since: datetime | None = None

    def matches(self, event: AuditEvent) -> bool:
        if self.since is not None and event.at < self.since:
            return False
        if self.decision and event.annotations.get(DECISION_ANNOTATION) != self.decision:
            return False
        if self.user and self.user not in (event.user.username, getattr(event.impersonated_user, "username", "")):
            return False
        ref = event.object_ref
        if self.names and (ref is None or ref.name not in self.names):
            return False
        if not self.resource:
            return True
        if ref is None or (ref.api_group, ref.resource) != (self.group, self.resource):
            return False
        return any(
            (not self.name or name == self.name) and (not self.namespace or namespace == self.namespace)
            for namespace, name in ((ref.namespace, ref.name), *self._deleted(event))
        )

    def _deleted(self, event: AuditEvent) -> Iterator[tuple[str, str]]:
        """Namespace and name of each object that the entry of a `deletecollection` lists."""
        text = event.annotations.get(AUDIT_OBJECTS)
        if text and self.name:
            yield from ((each.namespace, each.name) for each in _deleted.decode(text))

    @property
    def marks(self) -> tuple[bytes, ...]:
        """Bytes that the line of a matching entry has: most lines need not be decoded."""
        texts = (self.decision, self.user, self.resource)
        marks = [msgspec.json.encode(text) for text in texts if text]
        name = msgspec.json.encode(self.name)[1:-1]  # without quotes: those in a list of deleted objects are escaped
        if name and name == self.name.encode():
            marks.append(name)
        return tuple(marks)

    def has_name(self, line: bytes) -> bool:
        """Whether the object of a line has one of the names."""
        if not self.names:
            return True
        found = _object_name.search(line)
        return found is not None and found[1].decode(errors="replace") in self.names


class AuditReader:
    """The entries of one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.unreadable = 0
        """Lines that were passed over: a kill cut them off, or a disk damaged them."""

    def read(self, query: AuditQuery | None = None) -> Iterator[AuditEvent | AuditGap]:
        """Entries that match, and each gap in the time of the query.

        Raises:
            NotFound: there is no audit log. Start the server with `--audit-policy`.
        """
        query = query or AuditQuery()
        try:
            paths = list(audit_files(self._directory).values())
        except OSError as error:
            raise NotFound(
                f"no audit log can be read in {self._directory}: {error.strerror}; start the server with"
                " --audit-policy, or give another --state"
            ) from error
        marks = query.marks
        for path in paths:
            try:
                with path.open("rb") as file:
                    for line in file:
                        if _GAP_MARK in line or (query.has_name(line) and all(mark in line for mark in marks)):
                            yield from self._parsed(line, query)
            except FileNotFoundError:
                continue  # rotated meanwhile

    def first_time(self) -> datetime | None:
        """The time of the oldest entry; None if there is none."""
        return next((each.at for each in self.read()), None)

    def _parsed(self, line: bytes, query: AuditQuery) -> Iterator[AuditEvent | AuditGap]:
        try:
            if line.startswith(b"{" + _GAP_MARK):
                gap = _gap.decode(line)
                if query.since is None or gap.at >= query.since:
                    yield gap
                return
            event = _event.decode(line)
        except msgspec.MsgspecError:
            self.unreadable += bool(line.strip())
            return
        if query.matches(event):
            yield event
