"""`kedge ui FILE` in Chromium, as a person uses it: an incident explained by mouse and by keyboard alone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.kit.browser import READY, SCREENSHOTS, chromium, page_of, page_of_file

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.keys import Key, Origin
from kedge.observe.readers.recording import Recording
from kedge.observe.records import CommitRecord, Decision, OutsideEvent, StoreState
from kedge.sim.scenario import keep_run, load_scenario, run_scenario
from kedge.ui import Documents

pytestmark = pytest.mark.slow
VIEWS = ("place", "story", "decisions", "compare", "coupling")
WAIT_MS = 20_000
_NOTE_VIOLATIONS = (
    "window.violations = []; addEventListener('securitypolicyviolation', (e) => violations.push(e.violatedDirective));"
)


class Visit(NamedTuple):
    """A page in a browser, and everything that it asked for or complained about."""

    page: Any
    base: str
    requests: list[str]
    complaints: list[str]

    def go(self, state: str) -> None:
        self.page.goto(f"{self.base}#{state}")
        self.page.wait_for_timeout(500)

    def check_quiet(self) -> None:
        assert self.complaints == []
        assert self.page.evaluate("window.violations") == []
        assert [each for each in self.requests if not each.startswith(self.base)] == []


@pytest.fixture(scope="module")
def browser(incident: Path) -> Iterator[Any]:
    """The incident is simulated first: Playwright has an event loop of its own, in which no simulation runs."""
    del incident
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = run_scenario(load_scenario("pending-after-rollback"), keep=True)
    return keep_run(done, tmp_path_factory.mktemp("incident"))


def opened(browser: Any, link: str, **options: Any) -> Visit:
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
    context.add_init_script(_NOTE_VIOLATIONS)
    page = context.new_page()
    visit = Visit(page, f"{link.partition('/ui/')[0]}/ui/", [], [])
    page.on("request", lambda each: visit.requests.append(each.url))
    page.on("console", lambda each: visit.complaints.append(each.text) if each.type in ("error", "warning") else None)
    page.on("pageerror", lambda each: visit.complaints.append(str(each)))
    page.goto(link)
    page.wait_for_selector(READY, timeout=WAIT_MS)
    return visit


@pytest.fixture
def visit(browser: Any, incident: Path) -> Iterator[Visit]:
    with page_of_file(incident) as link:
        found = opened(browser, link)
        yield found
        found.check_quiet()
        found.page.context.close()


def test_a_person_finds_why_a_pod_is_pending(visit: Visit) -> None:
    """From the fault in the story to the pod, the belief, the decision, its recheck and its cause."""
    page = visit.page
    page.get_by_role("tab", name="Story").click()
    page.get_by_role("option").filter(has_text="is 30s late").first.click()
    page.get_by_role("tab", name="Place").click()
    pod = page.locator(".waiting .pod").first
    pod.wait_for(timeout=WAIT_MS)
    belief = page.locator(".belief")
    belief.get_by_text("1 object differs").wait_for(timeout=WAIT_MS)
    row = belief.locator(".difference").filter(has_text="ZoneQuota risk/risk")
    cells = row.locator("tr", has_text="used.cpu").locator("td").all_inner_texts()
    assert cells == ["none", "8"]
    assert page.locator(".quota.differs").count() == 1
    pod.click()
    detail = page.locator("#detail")
    detail.get_by_text("is pending: none of 3 nodes fits").first.wait_for(timeout=WAIT_MS)
    detail.get_by_role("button", name="Last decision").click()
    detail.get_by_text("Nearest: node-c12, but for zone quota risk/zone-c").wait_for(timeout=WAIT_MS)
    detail.get_by_role("button", name="Recheck").click()
    detail.get_by_text("= the same decision").wait_for(timeout=WAIT_MS)
    detail.locator("#what-if-text").fill("quota/risk.zone-c.cpu=+2")
    detail.get_by_role("button", name="Decide again").click()
    detail.get_by_text("would be placed on node-c12").wait_for(timeout=WAIT_MS)
    detail.get_by_role("button", name="← Cause").click()
    detail.get_by_role("heading", name="agent-node-c12: Pod risk-report").wait_for(timeout=WAIT_MS)
    detail.get_by_role("button", name="Effect →").click()
    detail.get_by_role("heading", name="risk-api").first.wait_for(timeout=WAIT_MS)


def test_the_same_by_keyboard_alone(visit: Visit) -> None:
    page = visit.page
    keys = page.keyboard
    keys.press("/")
    keys.type("pending default-scheduler")
    page.get_by_text("decisions of").or_(page.get_by_text("with “pending")).first.wait_for(timeout=WAIT_MS)
    keys.press("Enter")
    keys.press("f")  # every decision has a row of its own
    keys.press("End")
    keys.press("Enter")
    detail = page.locator("#detail")
    detail.get_by_text("None of 3 nodes fits").wait_for(timeout=WAIT_MS)
    keys.press("r")
    detail.get_by_text("= the same decision").wait_for(timeout=WAIT_MS)
    keys.press("c")
    detail.get_by_role("heading", name="agent-node-c12").wait_for(timeout=WAIT_MS)
    keys.press("e")
    detail.get_by_text("None of 3 nodes fits").wait_for(timeout=WAIT_MS)
    keys.press("o")
    detail.get_by_text("is pending").first.wait_for(timeout=WAIT_MS)
    keys.press("Escape")
    keys.press("Escape")
    assert detail.is_hidden()
    keys.press("p")
    page.locator(".waiting .pod:focus").wait_for(timeout=WAIT_MS)
    keys.press("ArrowRight")
    assert page.evaluate("document.activeElement.className").startswith("pod")
    keys.press("Enter")
    detail.get_by_text("is pending").first.wait_for(timeout=WAIT_MS)
    page.locator("#detail h2:focus").wait_for(timeout=WAIT_MS)
    before = page.locator("#now").inner_text()
    keys.press("ArrowRight")
    page.wait_for_function("before => document.getElementById('now').innerText !== before", arg=before)
    page.wait_for_timeout(500)
    assert page.locator("#detail h2:focus").count() == 1, "a step in time must not take the focus away"
    keys.press("?")
    page.get_by_role("heading", name="Keyboard and legend").wait_for(timeout=WAIT_MS)
    keys.press("Escape")
    for number, name in enumerate(VIEWS, 1):
        keys.press(str(number))
        page.wait_for_selector(f"#tab-{name}[aria-selected=true]", timeout=WAIT_MS)


def test_every_state_is_a_link(visit: Visit) -> None:
    page = visit.page
    visit.go("view=compare&rev=341&from=255@0")
    page.get_by_text("ZoneQuota risk", exact=True).first.wait_for(timeout=WAIT_MS)
    assert "rev 341" in page.locator("#now").inner_text()
    page.get_by_role("button", name="open the object").first.click()
    page.locator("#detail h2").wait_for(timeout=WAIT_MS)
    address = page.url
    page.go_back()
    page.wait_for_timeout(300)
    assert page.locator("#detail").is_hidden()
    page.goto(address)
    page.locator("#detail h2").wait_for(timeout=WAIT_MS)


def test_play_walks_through_the_history(visit: Visit) -> None:
    page = visit.page
    page.get_by_role("button", name="First point").click()
    page.get_by_role("button", name="Play", exact=True).click()
    page.wait_for_timeout(1500)
    page.get_by_role("button", name="Pause").click()
    revision = int(page.locator("#now").inner_text().split()[1])
    assert revision > 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_of_every_view(browser: Any, incident: Path, scheme: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with page_of_file(incident) as link:
        found = opened(browser, link, color_scheme=scheme)
        for view in VIEWS:
            found.go(f"view={view}&t=109837000&from=255@0")
            found.page.screenshot(path=SCREENSHOTS / f"{view}-{scheme}.png")
        found.check_quiet()
        found.page.context.close()


def test_nothing_is_cut_off_at_twice_the_size(browser: Any, incident: Path) -> None:
    """A window of 1440 by 900 at 200% has half of the pixels: the page must not scroll sideways."""
    with page_of_file(incident) as link:
        found = opened(browser, link, viewport={"width": 720, "height": 450}, device_scale_factor=2)
        decision = found.page.evaluate("location.hash")
        assert decision == ""
        for state in (
            *(f"view={view}&t=109837000&from=255@0" for view in VIEWS),
            "t=109837000&object=Deployment.apps/risk/risk-api",
        ):
            found.go(state)
            wide = found.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, state
            if state.startswith("view=place"):
                found.page.screenshot(path=SCREENSHOTS / "place-200-percent.png", full_page=True)
        found.check_quiet()
        found.page.context.close()


HOSTILE = '<img src=x onerror="window.hacked=1">'


def hostile_documents() -> Documents:
    """A pod, a decision and an event whose texts are HTML."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    key = Key("Pod", "default", HOSTILE)
    pod = Object(
        KINDS.of_key_kind("Pod"),
        key,
        b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x","namespace":"default","uid":"u","labels":'
        b'{"<script>":"<script>window.hacked=1</script>"}},"spec":{"containers":[]},"status":{}}',
        revision=2,
        created=2,
        origin=Origin(caller=HOSTILE),
    )
    decision = Decision(
        id=f"{HOSTILE}:1:1", controller=HOSTILE, process="1", key=key, tenant="", priority=0, began=at, reason=HOSTILE
    )
    recording = Recording(
        states=[StoreState(1, at, ())],
        commits=[CommitRecord(2, at, (pod,))],
        decisions=[decision],
        outside=[OutsideEvent(at, "fault", HOSTILE, HOSTILE)],
    )
    return Documents(recording, HOSTILE)


def test_a_hostile_name_is_text_everywhere(browser: Any) -> None:
    with page_of(hostile_documents()) as link:
        found = opened(browser, link)
        page = found.page
        for view in VIEWS:
            found.go(f"view={view}&from=1@0")
        page.get_by_role("tab", name="Place").click()
        page.locator(".waiting .pod").click()
        page.locator("#detail h2").filter(has_text="<img src=x").wait_for(timeout=WAIT_MS)
        page.get_by_role("button", name="Last decision").click()
        page.locator("#detail").get_by_text("Decision <img").wait_for(timeout=WAIT_MS)
        assert page.evaluate("window.hacked") is None
        assert page.locator("img").count() == 1  # the page's own icon
        found.check_quiet()


def test_the_browser_itself_refuses_script_and_html_from_text(browser: Any, incident: Path) -> None:
    """The policy holds even if the page had a mistake."""
    with page_of_file(incident) as link:
        found = opened(browser, link)
        refused = found.page.evaluate(
            "() => { try { document.body.innerHTML = '<b>x</b>'; return false } catch (e) { return true } }"
        )
        assert refused
        found.page.evaluate(
            "() => { const own = document.createElement('img'); own.src = 'https://example.com/x.png';"
            " document.body.append(own) }"
        )
        found.page.wait_for_timeout(300)
        assert "img-src" in found.page.evaluate("window.violations")
        found.page.context.close()


def test_the_link_cannot_be_used_twice(browser: Any, incident: Path) -> None:
    with page_of_file(incident) as link:
        opened(browser, link).page.context.close()
        context = browser.new_context()
        again = context.new_page().goto(link)
        assert again.status == 401
        context.close()
