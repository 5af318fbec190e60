"""The answer to one question: a sentence, a tier, and labelled lines of evidence; as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from kedge.api.wellknown import KEDGE_API_VERSION

ANSWER_KIND: Final = "Explanation"
COVERAGE_LABELS: Final = frozenset({"coverage", "missing"})
"""Lines about the window of the records, and about what was sampled away or cannot be read."""


class Tier(StrEnum):
    """Whose turn it is."""

    FINE = "fine"
    """Nothing is left to do."""
    WAITING = "waiting"
    """The cluster goes on by itself when something else changes."""
    MISCONFIGURED = "misconfigured"
    """It cannot go on before its declaration, or that of the nodes, changes."""
    BROKEN = "broken"
    """It was tried, and failed."""


class EvidenceLine(NamedTuple):
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer about one object."""

    about: str
    sentence: str
    tier: Tier
    evidence: tuple[EvidenceLine, ...] = ()
    parts: tuple[Answer, ...] = ()
    """Answers about the objects that keep this one from being as declared."""

    def text(self) -> str:
        """For people: each label once, with its lines beside it."""
        lines = [self.sentence, *_aligned(self.evidence)]
        for part in self.parts:
            lines += ["", *part.text().splitlines()]
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """For programs. Members may be added; those of today stay."""
        return {
            "apiVersion": KEDGE_API_VERSION,
            "kind": ANSWER_KIND,
            "about": self.about,
            "sentence": self.sentence,
            "tier": self.tier.value,
            "evidence": [each._asdict() for each in self.evidence],
            "coverage": [each.text for each in self.evidence if each.label in COVERAGE_LABELS],
            "parts": [each.document() for each in self.parts],
        }


def _aligned(evidence: Sequence[EvidenceLine]) -> list[str]:
    width = max((len(each.label) for each in evidence), default=0)
    lines, last = [], ""
    for label, text in evidence:
        lines.append(f"  {'' if label == last else label:{width}}  {text}")
        last = label
    return lines
