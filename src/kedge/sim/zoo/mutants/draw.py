"""Draw mutants: equal seeds give equal draws, and a larger draw begins with the smaller one.

The operator is drawn first and then the line, so that rare operators (a dropped precondition) come as often as common
ones. `trials` measures which lines clean worlds execute.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from kedge.sim.zoo.mutants.operators import Edit, edits_of, is_mutation
from kedge.sim.zoo.mutants.sources import LAYERS, PACKAGE, hashed, module_name, modules_of


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one edit, and the worlds that execute the edited statement."""

    layer: str
    path: str
    """The module, as a path in the package."""
    edit: Edit
    source: str
    """The text of the module before the edit."""
    worlds: tuple[str, ...]

    @property
    def name(self) -> str:
        """Identifies it among the mutants of this text, and stays the same while the module does."""
        parts = (self.path, self.source, *map(str, (self.edit.begin, self.edit.end)), self.edit.operator)
        return f"{Path(self.path).stem}-{self.edit.line}-{hashed(parts)[:6]}"

    @property
    def module(self) -> str:
        return module_name(Path(self.path))

    @property
    def text(self) -> str:
        return self.edit.applied(self.source)

    @property
    def diff(self) -> str:
        name = f"src/{PACKAGE.name}/{self.path}"
        lines = difflib.unified_diff(self.source.splitlines(), self.text.splitlines(), name, name, n=2, lineterm="")
        return "\n".join(lines)


def draw_mutants(
    count: int, seed: int, reached: Mapping[str, Mapping[int, Sequence[str]]], layers: Collection[str] = ()
) -> list[Mutant]:
    """Draw mutants of lines that a world reaches. `reached` has the worlds by path and line."""
    return list(islice(_drawn(seed, reached, layers or LAYERS), count))


def _drawn(seed: int, reached: Mapping[str, Mapping[int, Sequence[str]]], layers: Collection[str]) -> Iterator[Mutant]:
    left: dict[str, list[Mutant]] = {}
    for layer in LAYERS:
        for path in modules_of(layer) if layer in layers else ():
            lines = reached.get(str(path), {})
            source = (PACKAGE / path).read_text() if lines else ""
            for edit in edits_of(source):
                if edit.line in lines:
                    mutant = Mutant(layer, str(path), edit, source, tuple(lines[edit.line]))
                    left.setdefault(edit.operator, []).append(mutant)
    rng = random.Random(seed)
    while left:
        operator = rng.choice(sorted(left))
        mutant = left[operator].pop(rng.randrange(len(left[operator])))
        if not left[operator]:
            del left[operator]
        if is_mutation(mutant.source, mutant.text):
            yield mutant
