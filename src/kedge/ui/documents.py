"""Every document of the page by its name and parameters: versioned JSON, made from one recording. Pure.

`page_handler` serves them, `kedge ui FILE --document NAME` prints them. Running decisions again is not pure: the
command passes in `Rerun`, which this layer cannot import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kedge.api.wellknown import DEPLOYMENT_KIND, JOB_KIND, KEDGE_API_VERSION, POD_KIND, REPLICA_SET_KIND
from kedge.errors import BadRequest, NotFound
from kedge.keys import Key
from kedge.observe.readers.coupling import DeclaredFields
from kedge.observe.readers.recording import Recording
from kedge.observe.readers.why import evidence_of, why_gone, why_object, why_pod, why_workload
from kedge.observe.readers.why.debug_view import debug_view
from kedge.ui.beliefs import BELIEF_KIND, CachedComponents, belief_document
from kedge.ui.coupling_graph import GRAPH_KIND, graph_document
from kedge.ui.decision_list import DECISIONS_KIND, decisions_document
from kedge.ui.decision_record import DECISION_KIND, decision_document
from kedge.ui.history import Point, RecordedHistory, parse_count
from kedge.ui.place import PLACE_KIND, place_document
from kedge.ui.timeline_documents import (
    DIFFERENCE_KIND,
    HISTORY_KIND,
    STORY_KIND,
    difference_document,
    history_document,
    point_document,
    story_document,
)

SCHEMA_VERSION: Final = 1
"""Raised when a member of a document changes its meaning or goes. New members leave it as it is."""
OBJECT_KIND: Final = "ObjectVersion"
WHY_KIND: Final = "ExplanationAtPoint"
VERSIONS_MAX: Final = 500
"""Versions that the document of an object lists: the newest."""
_PAGE: Final = 2_000
_WORKLOADS: Final = (DEPLOYMENT_KIND, REPLICA_SET_KIND, JOB_KIND)
Parameters = Mapping[str, str]


class Documents:
    """The documents of one recording."""

    def __init__(
        self,
        recording: Recording,
        title: str = "",
        *,
        declared_fields: DeclaredFields | None = None,
        live: bool = False,
        whole_logs: bool = True,
    ) -> None:
        """`declared_fields` are of components, such as schedulers, whose reads are not noted. `live` is for a running
        cluster, whose history grows. Without `whole_logs` received logs end with the last decision that read them, as
        the logs of processes do: entries after it are not known."""
        self.history = RecordedHistory(recording, title)
        self.components = CachedComponents(self.history, whole_logs=whole_logs)
        self._declared = declared_fields or {}
        self._graph: dict[str, Any] | None = None
        self._makers: Mapping[str, tuple[str, Callable[[Parameters], dict[str, Any]]]] = {
            "history": (HISTORY_KIND, lambda _: {**history_document(self.history), "live": live}),
            "story": (STORY_KIND, self._story),
            "place": (PLACE_KIND, self._place),
            "belief": (BELIEF_KIND, self._belief),
            "decisions": (DECISIONS_KIND, self._decisions),
            "decision": (DECISION_KIND, self._decision),
            "object": (OBJECT_KIND, self._object),
            "why": (WHY_KIND, self._why),
            "difference": (DIFFERENCE_KIND, self._difference),
            "coupling": (GRAPH_KIND, lambda _: self._coupling()),
        }

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._makers)

    def document(self, name: str, parameters: Parameters) -> dict[str, Any]:
        """Raises:
        NotFound: there is no document of this name, or not what it is about.
        BadRequest: a parameter is wrong.
        """
        found = self._makers.get(name)
        if found is None:
            raise NotFound(f"there is no document {name}: use one of {', '.join(self.names)}")
        kind, make = found
        return {"apiVersion": KEDGE_API_VERSION, "kind": kind, "schemaVersion": SCHEMA_VERSION, **make(parameters)}

    def point(self, parameters: Parameters, suffix: str = "") -> Point:
        return self.history.point(
            revision=parse_count(parameters.get(f"revision{suffix}"), f"revision{suffix}"),
            t=parse_count(parameters.get(f"t{suffix}"), f"t{suffix}"),
        )

    # -- each document -----------------------------------------------------------------------------

    def _story(self, parameters: Parameters) -> dict[str, Any]:
        return story_document(self.history, *_page(parameters))

    def _decisions(self, parameters: Parameters) -> dict[str, Any]:
        return decisions_document(self.history, *_page(parameters))

    def _place(self, parameters: Parameters) -> dict[str, Any]:
        point = self.point(parameters)
        return {"point": point_document(point), **place_document(self.history, point)}

    def _belief(self, parameters: Parameters) -> dict[str, Any]:
        name = parameters.get("decision", "")
        decision = self.history.decision(name) if name else None
        point = self.point(parameters)
        if decision is not None:
            point = self.history.point(t=self.history.t_of(decision.began))
        made = belief_document(self.history, self.components, point, parameters.get("component", ""), decision)
        return {"point": point_document(point), **made}

    def _decision(self, parameters: Parameters) -> dict[str, Any]:
        decision = self.history.decision(parameters.get("id", ""))
        return decision_document(self.history, self.components, decision)

    def _difference(self, parameters: Parameters) -> dict[str, Any]:
        return difference_document(self.history, self.point(parameters), self.point(parameters, "2"))

    def _coupling(self) -> dict[str, Any]:
        if self._graph is None:
            self._graph = graph_document(self.history.recording, self._declared)
        return self._graph

    def _object(self, parameters: Parameters) -> dict[str, Any]:
        key, point = _key(parameters), self.point(parameters)
        versions = self.history.versions_of(key)
        if versions is None:
            raise NotFound(f"the records have no version of {key}")
        found = versions.at(point.revision)
        pairs = list(zip(versions.revisions, versions.versions, strict=True))
        return {
            "point": point_document(point),
            "key": str(key),
            "revision": None if found is None else found.revision,
            "object": None if found is None else found.edit(),
            "versions": [
                {
                    "revision": revision,
                    "t": self.history.time_of(revision),
                    "deleted": version is None,
                    "writer": "" if version is None else version.origin.writer,
                    "decision": ""
                    if version is None or version.origin.decision not in self.history.by_id
                    else version.origin.decision,
                }
                for revision, version in pairs[-VERSIONS_MAX:]
            ],
            "versionsLeftOut": max(0, len(pairs) - VERSIONS_MAX),
            "decisions": [each.id for each in self.history.decisions if each.key == key][-VERSIONS_MAX:],
        }

    def _why(self, parameters: Parameters) -> dict[str, Any]:
        """The answer of `kedge why` as of a point, and the debug view of a workload."""
        key, point = _key(parameters), self.point(parameters)
        evidence = evidence_of(self.history.recording, revision=point.revision)
        found = evidence.objects.get(key)
        signals: list[dict[str, str]] = []
        if found is None:
            answer = why_gone(key, evidence) if key.kind == POD_KIND else None
            if answer is None:
                raise NotFound(f"there is no {key} at revision {point.revision}: choose another point")
        elif key.kind == POD_KIND:
            answer = why_pod(found, evidence)
        elif key.kind in _WORKLOADS:
            answer = why_workload(found, evidence)
            signals = [{"name": name, "value": value} for name, value in debug_view(found, evidence)]
        else:
            answer = why_object(found, evidence)
        return {"point": point_document(point), "answer": answer.document(), "signals": signals}


def _page(parameters: Parameters) -> tuple[int, int]:
    after = parse_count(parameters.get("after"), "after") or 0
    limit = parse_count(parameters.get("limit"), "limit")
    return after, _PAGE if limit is None else limit


def _key(parameters: Parameters) -> Key:
    text = parameters.get("key", "")
    key = Key.parse(text)
    if not key.kind or not key.name:
        raise BadRequest(f"key={text[:80]}: write it as KIND/NAMESPACE/NAME, or KIND/NAME without a namespace")
    return key
