"""The page of `kedge server`, whose components are other processes, in Chromium: a pod that waits for a late scheduler.

The scheduler stands still while a person labels the node that the pod needs, as in the lesson on stale caches.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.part_processes import Parts
from tests.e2e.up_workload import down_nodes, until
from tests.kit.api_server import running_server
from tests.kit.browser import READY, SCREENSHOTS, chromium, kedge

pytestmark = pytest.mark.slow
WAIT_MS = 90_000
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "training", "namespace": "default"},
    "spec": {"nodeSelector": {"disk": "fast"}, "containers": [{"name": "main", "command": ["sleep", "1000"]}]},
}


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with running_server(tmp_path / "state") as server:
        found = Parts(server, tmp_path)
        try:
            yield found
        finally:
            found.running["scheduler"].send_signal(signal.SIGCONT)
            found.stop()
            down_nodes(server)


def test_a_person_finds_why_a_pod_waits_for_a_scheduler_in_another_process(parts: Parts) -> None:
    server = parts.server
    until(lambda: server.kubectl("get", "nodes").count(" Ready") == 2, "two nodes are ready")
    server.kubectl("apply", "-f", "-", stdin=json.dumps(POD))
    until(lambda: "node selector" in server.kubectl("get", "pod", "training", "-o", "yaml"), "the pod is pending")
    found = re.search(r"https://\S+", kedge("ui", "--state", str(server.state), "--no-open"))
    assert found is not None
    with chromium() as browser:
        context = browser.new_context(ignore_https_errors=True, viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(found.group())
        page.wait_for_selector(READY)
        walk(page, parts)
        context.close()


def walk(page: Any, parts: Parts) -> None:
    pod = page.locator(".waiting .pod").filter(has_text="training")
    pod.wait_for()
    pod.click()
    detail = page.locator("#detail")
    detail.get_by_role("button", name="Last decision").click()
    detail.get_by_role("button", name="default-scheduler:").click()  # the report is a part of the attempt
    detail.get_by_text("None of 2 nodes fits").first.wait_for()
    detail.get_by_role("button", name="Recheck").click()
    detail.get_by_text("= the same decision").wait_for()

    scheduler = parts.running["scheduler"]
    os.kill(scheduler.pid, signal.SIGSTOP)
    parts.server.kubectl("label", "node", "a", "disk=fast")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Last point").click()  # the page follows the cluster again
    component = page.locator("#component option").filter(has_text="scheduler").first
    component.wait_for(state="attached")
    page.locator("#component").select_option(component.get_attribute("value"))
    # Its log ends with its last decision, so the page does not know which entries have arrived since.
    page.locator(".belief summary").filter(has_text="had writes to come").click()
    row = page.locator(".belief .difference").filter(has_text="Node a").first
    row.wait_for()
    assert "disk" in row.inner_text()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / "server-page.png")

    os.kill(scheduler.pid, signal.SIGCONT)
    page.locator(".node .pod").filter(has_text="training").wait_for()  # live: it is placed, without a reload
    page.keyboard.press("3")
    page.locator("#search").fill("default-scheduler chose")
    page.locator("#decisions .row").first.click()
    detail.get_by_text("Chose a of").first.wait_for()
    detail.get_by_role("button", name="← Cause").click()  # enabled: the write that woke it is known
