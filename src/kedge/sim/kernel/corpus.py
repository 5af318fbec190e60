"""The corpus of a hunt: the tapes of one world that reached something new, within bounds of entries and bytes.

A tape is worth mutating while its rarest feature is rare and few mutations of it were tried. The entry that is worth
least is dropped when the corpus is full. `coverage_search` fills it and draws from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from kedge.errors import check
from kedge.sim.kernel.artefacts import pack_tape, unpack_tape
from kedge.sim.kernel.choices import Tape
from kedge.sim.kernel.run_coverage import SORTS, Feature

CORPUS_ENTRIES_MAX = 200
"""Tapes of one world."""
CORPUS_BYTES_MAX = 16 * 2**20
"""Their compressed size together."""
FEATURES_MAX = 500_000
"""Features of one world that are counted; beyond it nothing is new."""


@dataclass(slots=True, eq=False)
class CorpusEntry:
    """A tape that reached something new."""

    arm: int
    """The strategy whose fault plan it belongs to, by its place in the search."""
    packed: bytes
    new: tuple[Feature, ...]
    draws: int = 0
    """How many mutations of it were tried."""

    @property
    def tape(self) -> Tape:
        return unpack_tape(self.packed)


class Corpus:
    """The features of one world, and the tapes that reached them first."""

    def __init__(self, *, entries_max: int = CORPUS_ENTRIES_MAX, bytes_max: int = CORPUS_BYTES_MAX) -> None:
        self.entries: list[CorpusEntry] = []
        """Never more than `entries_max`, nor more bytes together than `bytes_max`."""
        self.bytes = 0
        self.reached: dict[str, int] = dict.fromkeys(SORTS, 0)
        """By sort: how many features were reached."""
        self._hits: dict[int, int] = {}
        """By feature: the runs that reached it."""
        self._entries_max = entries_max
        self._bytes_max = bytes_max

    def count(self, features: Sequence[Feature]) -> tuple[Feature, ...]:
        """Count a run. Returns the features that are new."""
        hits, new = self._hits, []
        for each in features:
            seen = hits.get(each.hash, 0)
            if not seen:
                if len(hits) >= FEATURES_MAX:
                    continue
                new.append(each)
                self.reached[each.sort] += 1
            hits[each.hash] = seen + 1
        return tuple(new)

    def keep(self, arm: int, tape: Tape, new: tuple[Feature, ...]) -> None:
        """Keep a tape that reached something new. If the corpus is full, entries of least weight go."""
        check(bool(new), "a tape is kept for the features that were new in it")
        entry = CorpusEntry(arm, pack_tape(tape), new)
        self.entries.append(entry)
        self.bytes += len(entry.packed)
        while len(self.entries) > self._entries_max or self.bytes > self._bytes_max:
            gone = min(self.entries, key=self._weight)
            self.entries.remove(gone)
            self.bytes -= len(gone.packed)

    def draw(self, source: Random) -> CorpusEntry:
        """An entry, by weight."""
        (entry,) = source.choices(self.entries, [self._weight(each) for each in self.entries])
        return entry

    def _weight(self, entry: CorpusEntry) -> float:
        return 1.0 / (min(self._hits[each.hash] for each in entry.new) + entry.draws)
