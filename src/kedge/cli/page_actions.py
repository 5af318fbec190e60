"""Actions of the page that run kept decisions again: recheck, and what-if with other inputs. They change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kedge.api.wellknown import KEDGE_API_VERSION
from kedge.cli.kept_decisions import recheck_decisions, what_if_lines
from kedge.errors import BadRequest, NotFound
from kedge.observe.readers.recording import Recording
from kedge.observe.readers.what_if import parse_change
from kedge.observe.records import Decision
from kedge.ui.page_handler import Action

RECHECK_KIND: Final = "RecheckReport"
WHAT_IF_KIND: Final = "WhatIfReport"


def page_actions(recording: Recording) -> Mapping[str, Action]:
    """The actions on one recording, by name."""
    by_id = {each.id: each for each in recording.decisions}

    def decision_of(parameters: Mapping[str, str]) -> Decision:
        found = by_id.get(parameters.get("decision", ""))
        if found is None:
            raise NotFound("this decision has no record here: open one of the list")
        return found

    async def recheck(parameters: Mapping[str, str]) -> dict[str, Any]:
        report = await recheck_decisions([decision_of(parameters)], recording)
        return {
            "apiVersion": KEDGE_API_VERSION,
            "kind": RECHECK_KIND,
            "agrees": bool(report.agreed),
            "differences": list(report.differences),
            "lines": [each.text for each in report.lines()],
        }

    async def what_if(parameters: Mapping[str, str]) -> dict[str, Any]:
        decision = decision_of(parameters)
        texts = [each.strip() for each in parameters.get("changes", "").splitlines() if each.strip()]
        if not texts:
            raise BadRequest('write at least one change, such as "quota/risk.zone-c.cpu=+2"')
        if decision.scheduling is None or decision.scheduling.choice is None:
            raise BadRequest("only an attempt to schedule a pod can be decided with other inputs")
        lines = what_if_lines([parse_change(each) for each in texts], texts, [decision], recording, None)
        return {"apiVersion": KEDGE_API_VERSION, "kind": WHAT_IF_KIND, "lines": [each.text for each in lines]}

    return {"recheck": recheck, "what-if": what_if}
