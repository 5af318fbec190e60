"""Documents about time: the slider with its marks, the story in pages, and the difference of two points. Pure."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

from kedge.api.timestamps import format_micro_time
from kedge.api.views import LeaseView
from kedge.api.wellknown import EVENT_KIND, FENCE_KIND, LEASE_KIND, NODE_LEASE_NAMESPACE, OPERATION_KIND
from kedge.keys import Key
from kedge.observe.readers.coverage import coverage_lines_of
from kedge.observe.readers.object_changes import describe_change
from kedge.observe.readers.object_timeline import LaneEntry
from kedge.ui.differences import field_differences
from kedge.ui.history import Point, RecordedHistory

HISTORY_KIND: Final = "RecordedHistory"
STORY_KIND: Final = "Story"
DIFFERENCE_KIND: Final = "PointDifference"
PERSON, FAULT, LEADER, CONDITION = "person", "fault", "leader", "condition"
MARKS_MAX: Final = 20_000
"""Marks of one slider; later ones are counted. People's actions and faults come before the others."""
STORY_PAGE_MAX: Final = 2_000
CHANGES_MAX: Final = 500
"""Objects that the difference of two points lists; the others are counted."""
_BACKGROUND: Final = frozenset({LEASE_KIND, EVENT_KIND, FENCE_KIND, OPERATION_KIND})
"""Kinds that change all the time and explain little: a difference only counts them."""


def history_document(history: RecordedHistory) -> dict[str, Any]:
    """The extent of a history: every commit, the marks, and how complete the records are."""
    marks = _marks(history)
    return {
        "title": history.title,
        "start": format_micro_time(history.start),
        "duration": history.duration,
        "commits": history.commit_columns(),
        "marks": marks[:MARKS_MAX],
        "marksLeftOut": max(0, len(marks) - MARKS_MAX),
        "decisions": len(history.decisions),
        "controllers": sorted({each.controller for each in history.decisions}),
        "storyLines": len(history.story),
        "coverage": list(coverage_lines_of(history.recording)),
    }


def _marks(history: RecordedHistory) -> list[dict[str, Any]]:
    found = [*_leader_changes(history)]
    for each in history.story:
        mark = each.mark.value or (CONDITION if each.is_condition else "")
        if mark:
            found.append(_mark(history, mark, each.at, each.revision, each.text, each.lane))
    if len(found) > MARKS_MAX:
        found.sort(key=lambda each: (each["mark"] == CONDITION, each["t"]))
        del found[MARKS_MAX:]
    found.sort(key=lambda each: each["t"])
    return found


def _mark(history: RecordedHistory, mark: str, at: Any, revision: int, text: str, lane: str) -> dict[str, Any]:
    t = history.time_of(revision) if revision else history.t_of(at)
    return {"t": t, "revision": revision or None, "mark": mark, "text": text, "lane": lane}


def _leader_changes(history: RecordedHistory) -> list[dict[str, Any]]:
    """Each version of a lease with another holder; heartbeats of nodes are no leases of leaders."""
    found = []
    for key, versions in sorted(history.keys_of_kind(LEASE_KIND).items()):
        if key.namespace == NODE_LEASE_NAMESPACE:
            continue
        holder = ""
        for revision, version in zip(versions.revisions, versions.versions, strict=True):
            now = "" if version is None else version.as_view(LeaseView).spec.holder_identity or ""
            if now != holder:
                text = f"{key.name}: {now or 'no process'} leads" + (f" after {holder}" if holder else "")
                t = history.time_of(revision)
                found.append({"t": t, "revision": revision, "mark": LEADER, "text": text, "lane": key.name})
            holder = now
    return found


# -- the story ---------------------------------------------------------------------------------------


def story_document(history: RecordedHistory, after: int, limit: int) -> dict[str, Any]:
    """Lines `after` and following of the timeline."""
    lines = history.story[after : after + min(limit, STORY_PAGE_MAX)]
    end = after + len(lines)
    return {
        "total": len(history.story),
        "after": after,
        "next": end if end < len(history.story) else None,
        "lines": [_line(history, each) for each in lines],
    }


def _line(history: RecordedHistory, line: LaneEntry) -> dict[str, Any]:
    return {
        "t": history.time_of(line.revision) if line.revision else history.t_of(line.at),
        "revision": line.revision or None,
        "lane": line.lane,
        "kind": line.kind,
        "text": line.text,
        "decision": line.decision if line.decision in history.by_id else "",
        "mark": line.mark.value,
        "count": line.count,
    }


# -- two points --------------------------------------------------------------------------------------


def difference_document(history: RecordedHistory, one: Point, other: Point) -> dict[str, Any]:
    """The objects that differ between two points, the earlier one first, whatever their order."""
    low, high = sorted((one, other), key=lambda each: (each.revision, each.t))
    rows, background = [], 0
    for key in sorted(history.changed_between(low.revision, high.revision)):
        if key.kind in _BACKGROUND:
            background += 1
        elif (row := _change(history, key, low, high)) is not None:
            rows.append(row)
    return {
        "from": point_document(low),
        "to": point_document(high),
        "objects": rows[:CHANGES_MAX],
        "objectsLeftOut": max(0, len(rows) - CHANGES_MAX),
        "backgroundObjects": background,
        "decisions": bisect_left(history.decisions, high.at, key=lambda each: each.began)
        - bisect_left(history.decisions, low.at, key=lambda each: each.began),
    }


def _change(history: RecordedHistory, key: Key, low: Point, high: Point) -> dict[str, Any] | None:
    versions = history.versions_of(key)
    assert versions is not None
    old, new = versions.at(low.revision), versions.at(high.revision)
    if old is None and new is None:
        return None
    fields = field_differences(old, new)
    if old is not None and new is not None and not fields["fields"]:
        return None
    return {
        "key": str(key),
        "change": "created" if old is None else "deleted" if new is None else "changed",
        "text": "; ".join(each.text for each in describe_change(key, old, new)),
        "before": None if old is None else old.revision,
        "after": None if new is None else new.revision,
        "writer": "" if new is None else new.origin.writer,
        "versions": sum(low.revision < each <= high.revision for each in versions.revisions),
        **fields,
    }


def point_document(point: Point) -> dict[str, Any]:
    return {"t": point.t, "revision": point.revision, "at": format_micro_time(point.at)}
