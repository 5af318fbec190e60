"""Each worked example on the page, as a person goes through it: the moment, the belief, the decision, its cause."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.kit.browser import READY, SCREENSHOTS, chromium, page_of_file

from kedge.sim.scenario import keep_run, load_scenario, run_scenario

pytestmark = pytest.mark.slow
WAIT_MS = 60_000


class Walk(NamedTuple):
    """A person's way through one incident."""

    scenario: str
    line: str
    """A line of the story: the walk begins at its moment."""
    component: str
    differs: str
    """An object that the component believed to be different then; empty where all beliefs are true."""
    pod: str
    """The pod to open, and its last decision; empty for the decision of the line itself."""
    answer: str
    """A part of the pod's explanation."""
    decision: str
    """A part of the decision's record."""
    cause: str
    """The heading of the cause, or the line of the story where a person caused it."""


WALKS = (
    Walk(
        "stale-policy-canary",
        "risk-api-2: node node-b7 has too little",
        "default-scheduler#1",
        "NodeAllocation node-b7",
        "risk-api-2",
        "wait for the scheduler to catch up",
        "Chose node-b7 of 2 feasible nodes",
        "rollout: Rollout scheduler-policy-v5",
    ),
    Walk(
        "binding-during-node-failure",
        "is lost after the commit at revision 75",
        "manager-1#1",
        "Pod default/risk-api-fvx4zkvz94-3",
        "risk-api-fvx4zkvz94-3",
        "is pending on node-b7",
        "Chose node-b7 of 2 feasible nodes",
        "replicaset: ReplicaSet risk-api-fvx4zkvz94",
    ),
    Walk(
        "duplicate-reservation",
        "no answer to reserve",
        "default-scheduler-0#1",
        "Reservation risk/recovery-42",
        "risk-api-0",
        "its process ended before the outcome was known",
        "cut off chose node-b7; reserve Reservation.kedge.dev/risk/recovery-42: under way",
        "replicaset: ReplicaSet risk-api",
    ),
    Walk(
        "missing-replica",
        "fraud-batch-3 created to replace",
        "manager-0#2",
        "ResourceQuota default/fraud",
        "",
        "",
        "ensure Pod/default/fraud-batch-3: done",
        "replicaset: ReplicaSet fraud-batch",
    ),
    Walk(
        "rollback-races-repair",
        "AvailabilityFloor=True",
        "manager-0#2",
        "",
        "",
        "",
        "an available replica of the new template",
        "generation 3",
    ),
)
"""`pending-after-rollback`, the sixth, has tests of its own in `test_recording_page.py`."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Simulated before the browser starts: Playwright has an event loop of its own, in which no simulation runs."""
    folder = tmp_path_factory.mktemp("incidents")
    return {each.scenario: keep_run(run_scenario(load_scenario(each.scenario), keep=True), folder) for each in WALKS}


@pytest.fixture(scope="module")
def browser(files: dict[str, Path]) -> Iterator[Any]:
    del files
    with chromium() as found:
        yield found


@pytest.mark.parametrize("walk", WALKS, ids=lambda each: each.scenario)
def test_a_person_goes_through_the_incident(walk: Walk, browser: Any, files: dict[str, Path]) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with page_of_file(files[walk.scenario]) as link:
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(link)
        page.wait_for_selector(READY)
        page.get_by_role("tab", name="Story").click()
        page.locator("#search").fill(walk.line)
        page.get_by_role("option").filter(has_text=walk.line).first.click()
        page.get_by_role("tab", name="Place").click()
        see_the_belief(page, walk)
        detail = page.locator("#detail")
        if walk.pod:
            page.locator(".pod").filter(has_text=walk.pod).first.click()
            detail.get_by_text(walk.answer).first.wait_for()
            detail.get_by_role("button", name="Last decision").click()
        detail.get_by_text(walk.decision).first.wait_for()
        detail.get_by_role("button", name="Recheck").click()
        detail.get_by_text("= the same decision").wait_for()
        page.screenshot(path=SCREENSHOTS / f"{walk.scenario}.png")
        detail.get_by_role("button", name="← Cause").click()
        page.locator("#detail h2, [role=option][aria-selected=true]").filter(has_text=walk.cause).first.wait_for()
        page.context.close()


def see_the_belief(page: Any, walk: Walk) -> None:
    page.locator("#component").select_option(walk.component)
    belief = page.locator(".belief")
    if not walk.differs:
        belief.get_by_text(f"No belief of {walk.component} is known to be false").wait_for()
        return
    row = belief.locator(".difference").filter(has_text=walk.differs).first
    row.wait_for()
    assert walk.component in row.inner_text()
