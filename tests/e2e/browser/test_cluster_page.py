"""`kedge ui` on a running cluster, in Chromium: a link, live changes, and the rights of the user."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.up_cluster import up_cluster
from tests.kit.browser import READY, SCREENSHOTS, chromium, kedge

from kedge.client.http import read_kubeconfig

pytestmark = pytest.mark.slow
WAIT_MS = 60_000
WEB = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {
        "replicas": 3,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "command": ["sleep", "1000"]}]},
        },
    },
}


def test_the_page_of_a_cluster_follows_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with up_cluster(tmp_path / "state", nodes=2):
            await asyncio.to_thread(visit, tmp_path / "state")

    asyncio.run(run())


def visit(state: Path) -> None:
    found = re.search(r"https://\S+", kedge("ui", "--state", str(state), "--no-open"))
    assert found is not None
    with chromium() as browser:
        context = browser.new_context(ignore_https_errors=True, viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.goto(found.group())
        page.wait_for_selector(READY, timeout=WAIT_MS)
        page.locator(".node").nth(1).wait_for(timeout=WAIT_MS)
        file = state.parent / "web.json"
        file.write_text(json.dumps(WEB))
        kedge("apply", "-f", str(file), "--kubeconfig", str(state / "admin.kubeconfig"))
        page.get_by_text("3 ready").wait_for(timeout=WAIT_MS)  # without a reload
        chip = page.locator(".pod").first
        chip.evaluate("each => { each.kept = true }")
        before = page.locator("#now").inner_text()
        page.wait_for_function(
            "before => document.getElementById('now').innerText !== before", arg=before, timeout=WAIT_MS
        )
        assert chip.evaluate("each => each.kept === true"), "a live update must keep the elements"
        page.keyboard.press("6")
        page.get_by_role("heading", name="Queues and caches, now").wait_for(timeout=WAIT_MS)
        page.locator("td", has_text="streaming").first.wait_for(timeout=WAIT_MS)
        page.keyboard.press("3")
        page.locator("#search").fill("default-scheduler chose")
        page.locator("#decisions .row").first.click()
        page.get_by_role("button", name="Recheck").click()
        page.get_by_text("= the same decision").wait_for(timeout=WAIT_MS)
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / "cluster.png")
        context.close()
        check_a_stranger_sees_nothing(state, browser)


def check_a_stranger_sees_nothing(state: Path, browser: Any) -> None:
    """A user without a role may open the page, and it has nothing of the cluster."""
    kubeconfig = state / "admin.kubeconfig"
    token = kedge("token", "create", "--kubeconfig", str(kubeconfig), "--user", "ada").strip()
    server = read_kubeconfig(kubeconfig).url
    context = browser.new_context(ignore_https_errors=True)
    made = context.request.post(f"{server}/ui/link", headers={"Authorization": f"Bearer {token}"})
    assert made.status == 201
    page = context.new_page()
    page.goto(f"{server}{made.json()['path']}")
    page.wait_for_selector(READY, timeout=WAIT_MS)
    page.get_by_text("0 zones, 0 nodes, 0 pods").wait_for(timeout=WAIT_MS)
    for name, code in (("place", 200), ("decisions", 200), ("queues", 403), ("caches", 403)):
        found = page.evaluate(
            "name => fetch(`data/${name}`, { headers: { 'X-Kedge-Page': '1' } })"
            ".then(async (each) => [each.status, await each.json()])",
            name,
        )
        assert found[0] == code, name
        assert not found[1].get("pods")
        assert not found[1].get("rows")
    context.close()
