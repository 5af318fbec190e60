"""A part of an incident that is still being sent: decoded as it arrives, each section once."""

from __future__ import annotations

from io import BytesIO

from kedge.api.kinds import KINDS
from kedge.kept import HEADER, Gap, read_from
from kedge.observe.readers.recording import Recording
from kedge.observe.records import BadRecord, RecordReader


class GrowingPart:
    """The records of one part, as far as it has arrived."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes that were added."""
        self.recording = Recording()
        self._reader = RecordReader(KINDS)
        self._rest = b""
        self._begun = False

    def add(self, data: bytes) -> None:
        """Decode every section that is whole now. The rest waits for more."""
        self.size += len(data)
        rest = self._rest + data
        if not self._begun and len(rest) >= len(HEADER):
            rest, self._begun = rest[len(HEADER) :], True
        done = 0
        if self._begun:
            for each in read_from(BytesIO(rest), len(rest), 0):
                if isinstance(each, Gap):
                    if each.tail:
                        break
                    done = each.at + each.bytes
                    self.recording.gaps.append(each)
                    continue
                done = each.end
                try:
                    record = self._reader.read(each)
                except BadRecord as error:
                    self.recording.undecoded.append(str(error))
                else:
                    self.recording.add(record)
        self._rest = rest[done:]
