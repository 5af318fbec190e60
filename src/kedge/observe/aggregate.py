"""Who touches what: every read and write counted by controller, verb, kind and field. Never sampled.

`recorder` feeds it all decisions; views of coupling read its rows. It counts attempts, not successes, and knows
fields two levels deep: enough to see two controllers at one field, few enough to be bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from kedge.observe.records import CacheRead, Call, Step

OTHER: Final = "other"
"""In every column of the row that counts what found no room."""
WHOLE: Final = "*"
"""The field of a read, a deletion, and whatever else concerns an object as a whole."""

_WHOLE_VERBS: Final = frozenset(
    {"get", "find", "list", "read", "fresh_read", "get_scale", "delete", "delete_collection", "evict", "confirm_ended"}
)
_IDENTITY: Final = frozenset({"apiVersion", "kind"})
"""Say which object is meant, not what of it is written."""
_OPEN_MAPS: Final = frozenset({"data", "binaryData", "stringData"})
"""Their members are the user's own names, of which there is no end."""
_NONE: Final[dict[str, int]] = {}


@dataclass(frozen=True, slots=True, order=True)
class Row:
    controller: str
    verb: str
    kind: str
    field: str
    count: int


class Aggregate:
    """Counts by row, at most `rows_max` of them; what would need one more is counted in the row `OTHER`."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._reads: dict[tuple[str, str, str], int] = {}
        """By controller, verb and cache."""
        self._calls: dict[tuple[str, str, str], dict[str, dict[str, int]]] = {}
        """By controller, verb and kind, then by the field's two parts."""
        self.rows = 0
        self.other = 0

    def count(self, controller: str, steps: Iterable[Step]) -> None:
        reads = self._reads
        for step in steps:
            if type(step) is CacheRead:
                row = (controller, step.verb, step.cache)
                if row in reads:
                    reads[row] += 1
                elif self._room():
                    reads[row] = 1
            elif type(step) is Call:
                self._count_call(controller, step)

    def __iter__(self) -> Iterator[Row]:
        """Rows in order, the row `OTHER` last if it counts anything."""
        found: Counter[tuple[str, str, str, str]] = Counter()
        for (controller, verb, cache), count in self._reads.items():
            found[controller, verb, kind_of_cache(cache), WHOLE] += count
        for (controller, verb, kind), fields in self._calls.items():
            for name, members in fields.items():
                for member, count in members.items():
                    found[controller, verb, kind, f"{name}.{member}" if member else name] += count
        for (controller, verb, kind, field), count in sorted(found.items()):
            yield Row(controller, verb, kind, field, count)
        if self.other:
            yield Row(OTHER, OTHER, OTHER, OTHER, self.other)

    def _count_call(self, controller: str, call: Call) -> None:
        verb, key = call.verb, call.key
        kind = key.kind if key is not None else call.reply[0].key.kind if call.reply else OTHER
        fields = self._calls.get((controller, verb, kind))
        if fields is None:
            if self.rows >= self._rows_max:
                self.other += 1
                return
            fields = self._calls[controller, verb, kind] = {}
        intent = call.intent
        if verb in _WHOLE_VERBS:
            self._count_field(fields, WHOLE, "")
        elif type(intent) is dict and intent:
            self._count_members(fields, intent)
        else:
            for name, member in _fields_of(intent):
                self._count_field(fields, name, member)

    def _count_members(self, fields: dict[str, dict[str, int]], intent: dict[str, Any]) -> None:
        for name, value in intent.items():
            if type(value) is dict and value and name not in _OPEN_MAPS:
                members = fields.get(name, _NONE)
                for member in value:
                    if member in members:
                        members[member] += 1
                    else:
                        self._count_field(fields, name, member)
            elif name not in _IDENTITY:
                self._count_field(fields, name, "")

    def _count_field(self, fields: dict[str, dict[str, int]], name: str, member: str) -> None:
        members = fields.get(name)
        if members is not None and member in members:
            members[member] += 1
        elif self._room():
            fields.setdefault(name, {})[member] = 1

    def _room(self) -> bool:
        """Take a row for something new; if there is none left, count it in the row `OTHER`."""
        if self.rows < self._rows_max:
            self.rows += 1
            return True
        self.other += 1
        return False


def kind_of_cache(cache: str) -> str:
    """A cache is named by its kind and, in brackets, its scope."""
    return cache.partition("[")[0]


def _fields_of(intent: Any) -> Iterator[tuple[str, str]]:
    """The fields of a JSON patch; of anything else, the object as a whole."""
    if not isinstance(intent, list | tuple) or not intent:
        yield WHOLE, ""
        return
    for operation in intent:
        path = operation.get("path", "") if isinstance(operation, dict) else ""
        _, name, member = (*path.split("/"), "", "")[:3]
        member = "" if name in _OPEN_MAPS else member.replace("~1", "/").replace("~0", "~")
        yield name or WHOLE, member
