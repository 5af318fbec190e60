"""The story of a run: the timeline as a reader of the scenario wants it, with its names, actors and revisions. Pure.

`timeline` has every line; a story leaves out lines that repeat others, unless it is verbose. Names that the file
declares stand for objects whose names only the run decides, such as a reservation's. `runner` and the CLI print it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from itertools import groupby

from kedge.keys import Key
from kedge.observe.readers.recording import Recording
from kedge.observe.readers.timeline import ACTED, COMMITTED, DECIDED, UNSCHEDULABLE, TimelineEntry, timeline
from kedge.observe.records import CacheMark

_STALE_S = 5.0
"""A cache that was last proved complete longer ago than this is shown with its age."""
_FOLD_MIN = 3
"""This many pods with the same change are one line."""
_KEY = re.compile(r"\b([A-Z]\w+)(?:\.[a-z0-9.]+)?/(?:([a-z0-9-]+)/)?([A-Za-z0-9*.-]+)")
_KIND = re.compile(r"\b([A-Z]\w+)\.(?:kedge\.dev|apps|batch|autoscaling|coordination\.k8s\.io)\b")
_POD_LINE = re.compile(r"Pod (\S+)-(\d+) (.*)")
_TIMEOUT = re.compile(r"no answer to (\w+) (\S+) by ")
_NO_ANSWER = re.compile(r"\S+: (\w+) (\S+): no answer within ")
_REUSE = re.compile(r" is reserved for Pod/(?:[a-z0-9-]+/)?(\S+)$")
_CREATED = re.compile(r"Pod (\S+) created")
_PENDING = re.compile(r" no node for Pod/(?:[a-z0-9-]+/)?([^\s:]+): (.*)")
_EVENT = re.compile(r"Event \w+ about \S+ \S+?()(: .*)")
_QUOTA_LINE = re.compile(r"((?:Resource|Zone)Quota \S+) reserves ")


@dataclass(frozen=True, slots=True)
class StoryLine:
    """One line, ready to print."""

    at: str
    revision: str
    actor: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.at}  {self.revision:>5}  {self.actor:<20}  {self.kind:<9}  {self.text}".rstrip()


HEADING = StoryLine("TIME     ", "REV", "ACTOR", "WHAT", "")


def story(
    recording: Recording, *, begin_s: float, names: Mapping[str, Key] | None = None, verbose: bool = False
) -> list[StoryLine]:
    """The lines from the first step on. `names` are patterns of keys, by the name that stands for the object."""
    if not recording.states:
        return []
    begin = recording.states[0].at + timedelta(seconds=begin_s)
    # A commit at the very begin belongs to the setup.
    lines: Iterable[TimelineEntry] = [
        each for each in timeline(recording, since=begin) if each.at > begin or each.kind != COMMITTED
    ]
    known = found_names(recording, names or {})
    if not verbose:
        lines = _shortened(lines, known)
    kinds = {each.key.kind for commit in recording.commits for each in commit.written}
    return [_printed(each, begin, known, kinds) for each in lines]


def named_story(
    recording: Recording, *, begin_s: float, names: Mapping[str, Key], verbose: bool = False
) -> list[StoryLine | str]:
    """The story as it is printed: a heading, the lines, and the real names; empty without a cluster."""
    lines = story(recording, begin_s=begin_s, names=names, verbose=verbose)
    if not lines:
        return []
    found = ", ".join(f"{name} is {real}" for real, name in found_names(recording, names).items())
    return [HEADING, *lines, *(["", f"names:  {found}"] if found else [])]


def found_names(recording: Recording, names: Mapping[str, Key]) -> dict[str, str]:
    """By the name of an object in this run: the name that the file gives it.

    Several names with one pattern stand for its objects in the order in which they were created.
    """
    found: dict[str, str] = {}
    left = dict(names)
    states = [each for state in recording.states for each in state.objects]
    written = (each for commit in recording.commits for each in commit.written)
    for each in (*states, *written):
        key = each.key
        if key.name in found:
            continue
        for name, pattern in left.items():
            if _fits(key, pattern):
                found[key.name] = name
                del left[name]
                break
    return found


def _fits(key: Key, pattern: Key) -> bool:
    return key.kind == pattern.kind and key.namespace == pattern.namespace and fnmatchcase(key.name, pattern.name)


# -- one line --------------------------------------------------------------------------------------


def _printed(line: TimelineEntry, begin: datetime, names: Mapping[str, str], kinds: Collection[str]) -> StoryLine:
    kind, text = line.kind, line.text.removeprefix(f"{line.controller}: ") + line.more
    if kind == "step" and text.startswith("note "):
        kind, text = "note", text.removeprefix("note ")
    if line.count > 1:
        text += f" ({line.count} times)"
    placed = any(each in text for each in (" bound to ", " created for "))
    decided = kind in (DECIDED, UNSCHEDULABLE) or (kind == COMMITTED and (placed or line.is_condition))
    if decided and (inputs := _inputs(line.inputs, kinds)):
        text += f"; read {inputs}"
    revision = str(line.revision) if line.revision else ""
    return StoryLine(_clock((line.at - begin).total_seconds()), revision, line.actor, kind, _renamed(text, names))


def _inputs(marks: Sequence[CacheMark], kinds: Collection[str]) -> str:
    """The caches behind a decision that had objects, each with its revision, and with its age if it is old."""
    shown = []
    for mark in marks:
        kind = mark.cache.partition("[")[0]
        if kind in kinds:
            shown.append(
                f"{kind.partition('.')[0]}@{mark.revision}"
                + (f" ({mark.age_s:.0f}s old)" if mark.age_s > _STALE_S else "")
            )
    return ", ".join(shown)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """Keys as `Kind name`, and the names of the file."""
    text = _KIND.sub(r"\1", _KEY.sub(_key_text, text))
    for real, name in names.items():
        text = re.sub(rf"(?<![\w.-]){re.escape(real)}(?![\w]|-\w)", name, text)
    return text


def _key_text(found: re.Match[str]) -> str:
    kind, namespace, name = found.groups()
    return f"{kind} {name}" if namespace in (None, "default") else f"{kind} {namespace}/{name}"


def _clock(at_s: float) -> str:
    return f"{int(at_s // 60):02d}:{at_s % 60:06.3f}"


# -- the short story -------------------------------------------------------------------------------


def _shortened(lines: Iterable[TimelineEntry], named: Collection[str]) -> Iterator[TimelineEntry]:
    return _without_many_pods(_without_repeats(_without_details(lines, named)), named)


def _without_details(lines: Iterable[TimelineEntry], named: Collection[str]) -> Iterator[TimelineEntry]:
    """Without details, without expectations that held at once, and without the return to normal after the last step.
    The acts of agents are details: the status of the pod follows.

    A timeout that its sender recorded is left out: the line of the sender has the outcome too. The use of a reservation
    by a pod that the file names is shown, although the bind follows.
    """
    lines, over = list(lines), False
    broken = any(each.kind == "violation" for each in lines)
    recorded = {f"{match[1]} {match[2]}" for each in lines if (match := _NO_ANSWER.match(each.text))}
    for each in lines:
        over = over or (each.kind == "phase" and each.text == "healed" and not broken)
        timeout = _TIMEOUT.match(each.text) if each.kind == "timeout" else None
        reuse = _REUSE.search(each.text) if each.kind == DECIDED else None
        detail = each.detail and not (reuse is not None and reuse[1] in named)
        hidden = over or detail or each.kind in ("phase", "partition", ACTED)
        hidden = hidden or (timeout is not None and f"{timeout[1]} {timeout[2]}" in recorded)
        expects = each.kind == "step" and each.text.startswith("expect ")
        if each.kind == "violation" or not (hidden or expects):
            yield each


def _without_repeats(lines: Iterable[TimelineEntry]) -> Iterator[TimelineEntry]:
    """A pod that is pending for the same reason again is no news, nor an event that repeats another's message."""
    told: dict[str, str] = {}
    """By pod, its last reason; by the empty name, the message of the last event."""
    for each in lines:
        if each.kind == COMMITTED and (created := _CREATED.match(each.text)):
            told.pop(created[1], None)
        repeated = _PENDING.search(each.text) if each.kind == UNSCHEDULABLE else _EVENT.match(each.text)
        if repeated is not None:
            about, message = repeated.groups()
            if told.get(about) == message:
                continue
            told[about] = message
        yield each


def _without_many_pods(lines: Iterable[TimelineEntry], named: Collection[str]) -> Iterator[TimelineEntry]:
    """Between two lines of another kind, one line for the same change of several pods of one owner.

    A pod that the file names keeps its own lines. Only the last change of a quota that pays for pods is shown.
    """
    for of_pods, run in groupby(lines, key=_is_about_pods):
        if not of_pods:
            yield from run
            continue
        groups: dict[tuple[str, ...], list[TimelineEntry]] = {}
        quotas: dict[str, TimelineEntry] = {}
        for each in run:
            if quota := _QUOTA_LINE.match(each.text):
                quotas[quota[1]] = each
            elif match := _POD_LINE.match(each.text):
                alone = match[2] if f"{match[1]}-{match[2]}" in named else ""
                groups.setdefault((match[1], match[3], alone), []).append(each)
        folded = [*quotas.values()]
        for (owner, change, _), group in groups.items():
            folded += group if len(group) < _FOLD_MIN else [_one_line(owner, change, group)]
        yield from sorted(folded, key=lambda each: (each.at, bool(_QUOTA_LINE.match(each.text))))


def _is_about_pods(line: TimelineEntry) -> bool:
    return line.kind == COMMITTED and bool(_POD_LINE.match(line.text) or _QUOTA_LINE.match(line.text))


def _one_line(owner: str, change: str, group: Sequence[TimelineEntry]) -> TimelineEntry:
    """Several pods, with the actor and the inputs that are the same for all of them."""
    slots = ", ".join(sorted({match[2] for each in group if (match := _POD_LINE.match(each.text))}))
    actor = group[0].actor if len({each.actor for each in group}) == 1 else ""
    common = [
        mark
        for mark in group[0].inputs
        if all(any((mark.cache, mark.revision) == (m.cache, m.revision) for m in each.inputs) for each in group)
    ]
    text = f"{len(group)} Pods {owner}-({slots}) {change}"
    return replace(group[0], text=text, actor=actor, inputs=tuple(common))
