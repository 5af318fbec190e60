"""Incidents and their page: `python -m benchmarks.rewind [--quick]`.

The cost of the ring of decisions: the scheduler's `basic` shape with and without it, in turns of one run, CPU time. The
file of an incident: bytes a decision, and decisions that a replay runs again in a second. The page of a large recording
in Chromium: the time from a click on the link to the first view, and the frames while a person scrubs through time,
scrolls the decisions and zooms the lanes: the times between two frames, with one such input in each. A browser without
a screen draws 60 frames a second, so 16.7 ms is the least.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit.browser import READY, chromium, page_of

from benchmarks.large_recordings import large_recording
from benchmarks.observe import MeasuredCluster
from benchmarks.overhead import Overhead, overhead_of
from benchmarks.report import print_json, print_table
from kedge.cli.incidents.incident_file import IncidentSummary, write_sections
from kedge.cli.incidents.replay import replay_incident
from kedge.heap import tune_collector
from kedge.kept import write_kept
from kedge.sim.scenario import load_scenario, run_scenario
from kedge.ui import Documents

FRAME_MS_MAX = 16.7
"""A frame that takes longer is one that a screen of 60 Hz misses."""
_FRAMES = """
async ([view, steps]) => {
  location.hash = `view=${view}`;
  await new Promise((resolve) => setTimeout(resolve, 600));
  const slider = document.getElementById('slider'), list = document.querySelector('.list');
  const lanes = document.querySelector('.lanes-canvas');
  const times = [];
  await new Promise((resolve) => {
    const frame = (now) => {
      times.push(now);
      const at = times.length;
      if (at > steps) return resolve();
      const part = Math.floor((at * 3) / (steps + 1));
      if (part === 1 && list) list.scrollTop += 900;
      else if (part === 2 && lanes) {
        const deltaY = Math.floor(at / 10) % 2 ? 90 : -90;
        lanes.dispatchEvent(new WheelEvent('wheel', { deltaY, ctrlKey: true, cancelable: true }));
      } else {
        slider.value = String(Math.round((Number(slider.max) * at) / steps));
        slider.dispatchEvent(new Event('input'));
      }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  });
  return times.slice(1).map((each, at) => each - times[at]);
}
"""


INCIDENT = "pending-after-rollback"
"""The recorded run whose file is measured: every controller, three agents and a scheduler, 315 decisions."""


def ring_overhead(*, nodes: int, seconds: float, folder: Path) -> Overhead:
    """Recording with the ring and without it."""

    def make(ring: bool) -> MeasuredCluster:
        own = {} if ring else {"decision_ring_max": 0}
        return MeasuredCluster(folder, recorded=True, nodes=nodes, **own)

    return overhead_of(make, seconds=seconds, blocks=2)


class FileFigures(NamedTuple):
    bytes_per_decision: float
    replayed_per_second: float


def incident_file(folder: Path, *, replays: int) -> FileFigures:
    """The size of an incident's file with the history and the caches in it, and the CPU time of a replay."""
    recording = run_scenario(load_scenario(INCIDENT), keep=True).recording
    began, ended = recording.states[0].at, recording.commits[-1].at
    path = folder / "incident.kedge"
    write_kept(path, write_sections(IncidentSummary(INCIDENT, began, ended, "", (), ()), recording))
    begun_s, agreed = time.process_time(), 0
    for _ in range(replays):
        agreed += asyncio.run(replay_incident(recording)).decisions.agreed
    speed = agreed / (time.process_time() - begun_s)
    return FileFigures(path.stat().st_size / len(recording.decisions), speed)


class Figures(NamedTuple):
    first_view_s: float
    frames_ms: list[float]
    long_tasks: int


def measure(browser: Any, link: str, steps: int) -> Figures:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.add_init_script(
        "window.longTasks = []; new PerformanceObserver((list) => { for (const each of list.getEntries())"
        " longTasks.push(each.duration); }).observe({ type: 'longtask', buffered: true });"
    )
    page = context.new_page()
    begun = time.monotonic()
    page.goto(link)
    page.wait_for_selector(".pod", timeout=120_000)
    first_view_s = time.monotonic() - begun
    page.wait_for_selector(READY, timeout=120_000)
    page.wait_for_timeout(500)
    page.evaluate("window.longTasks = []")
    frames = [each for view in ("place", "decisions", "story") for each in page.evaluate(_FRAMES, [view, steps])]
    return Figures(first_view_s, frames, page.evaluate("window.longTasks.length"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small recording: the figures mean nothing")
    parser.add_argument("--no-page", action="store_true", help="without the page, which needs Chromium")
    options = parser.parse_args()
    quick = options.quick
    tune_collector()  # as every process of kedge does
    with tempfile.TemporaryDirectory() as name:
        ring = ring_overhead(nodes=50 if quick else 5_000, seconds=2.0 if quick else 150.0, folder=Path(name))
        file = incident_file(Path(name), replays=1 if quick else 10)
    low, high = ring.interval
    print_table(
        "recording",
        ("figure", "value"),
        [
            ("ring, share of CPU time", f"{ring.figure:.3f} ({low:.3f} to {high:.3f}); bar 0.05"),
            ("a pod with it, without it", f"{ring.with_us:.0f} us, {ring.without_us:.0f} us"),
            ("bytes a decision", f"{file.bytes_per_decision:.0f}"),
            ("decisions replayed a second", f"{file.replayed_per_second:.0f}"),
        ],
    )
    figures: dict[str, Any] = {
        "ring_overhead": round(ring.figure, 4),
        "ring_overhead_low": round(low, 4),
        "ring_overhead_high": round(high, 4),
        "bytes_per_decision": round(file.bytes_per_decision),
        "replayed_per_second": round(file.replayed_per_second),
        "quick": quick,
    }
    if not options.no_page:
        figures |= page_figures(quick=quick)
    print_json(figures)


def page_figures(*, quick: bool) -> dict[str, float]:
    decisions, pods, steps = (300, 40, 10) if quick else (10_000, 1_000, 120)
    documents = Documents(large_recording(decisions, pods), f"{decisions} decisions")
    with page_of(documents) as link, chromium() as browser:
        found = measure(browser, link, steps)
    ordered = sorted(found.frames_ms)
    p95 = ordered[int(len(ordered) * 0.95)]
    print_table(
        f"the page with {decisions} decisions and {pods} pods",
        ("figure", "value"),
        [
            ("first view", f"{found.first_view_s:.2f} s"),
            ("frames", str(len(ordered))),
            ("frame, median", f"{statistics.median(ordered):.1f} ms"),
            ("frame, 95th percentile", f"{p95:.1f} ms"),
            ("frame, longest", f"{ordered[-1]:.1f} ms"),
            ("tasks over 50 ms", str(found.long_tasks)),
        ],
    )
    return {"page_first_view_s": round(found.first_view_s, 3), "page_frame_ms_p95": round(p95, 2)}


if __name__ == "__main__":
    main()
