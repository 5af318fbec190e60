"""The keeper's records on disk, one file for each process. Standard library only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

Record = dict[str, Any]
ANY = "0.0.0.0"  # compared, never listened on


class RecordFiles:
    """Writes records so that each file is whole, and is on disk when `write` returns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "processes"
        self.unsaved: set[str] = set()
        """Records that could not be written. Written again until it succeeds."""

    def path(self, process: str) -> Path:
        return self.folder / f"{process}.json"

    def save(self, record: Record) -> None:
        """Write a record; again later, if the disk is full: the keeper must go on holding its processes."""
        try:
            self.write(record)
            self.unsaved.discard(record["id"])
        except OSError as error:
            if record["id"] not in self.unsaved:
                log(f"{self.path(record['id'])} is not written yet: {error}")
            self.unsaved.add(record["id"])

    def save_again(self, records: Mapping[str, Record]) -> None:
        for process in list(self.unsaved):
            self.save(records[process])

    def remove(self, process: str) -> None:
        self.path(process).unlink(missing_ok=True)
        self.unsaved.discard(process)

    def write(self, record: Record) -> None:
        path = self.path(record["id"])
        partial = path.with_suffix(".partial")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(json.dumps(record).encode())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


FIELDS = (
    "id", "identity", "namespace", "pod", "address", "ports", "pid",
    "started", "ended", "exit_code", "reason", "message", "since_s",
)  # fmt: skip
"""The part of a record that is listed: the rest may be large, or secret."""


def listed(record: Record) -> dict[str, Any]:
    """A record as it is listed. Records of an older keeper lack the fields that came later."""
    later = {"host_ports": record.get("host_ports", []), "resources": record.get("resources")}
    return {**{name: record[name] for name in FIELDS}, **later, "stopping": record["kill_at_s"] is not None}


def log(text: str) -> None:
    with suppress(OSError):  # the log may be on a full disk too
        print(text, file=sys.stderr, flush=True)


def port_conflict(records: Iterable[Mapping[str, Any]], asked: Mapping[str, Any]) -> str:
    """Why a process must not start: another pod's process holds a host port that it requests. Empty if none does."""
    wanted = asked.get("host_ports", ())
    for each in records if wanted else ():
        if each["ended"] or each["identity"][0] == asked["identity"][0]:
            continue
        for protocol, address, port in each.get("host_ports", ()):
            for own_protocol, own_address, own_port in wanted:
                same = (protocol, port) == (own_protocol, own_port)
                if same and (address == own_address or ANY in (address, own_address)):
                    holder = f"{each['namespace']}/{each['pod']}"
                    return f"hostPort {port}/{protocol} of this node is held by a process of {holder}: wait for its end"
    return ""
