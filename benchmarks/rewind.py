"""The page of a large recording in Chromium, timed: `python -m benchmarks.rewind [--quick]`.

The time from a click on the link to the first view, and the frames while a person scrubs through time, scrolls the
decisions and zooms the lanes: the times between two frames, with one such input in each. A browser without a screen
draws 60 frames a second, so 16.7 ms is the least.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, NamedTuple

from tests.kit.browser import READY, chromium, page_of

from benchmarks.large_recordings import large_recording
from benchmarks.report import print_json, print_table
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
    quick = parser.parse_args().quick
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
    print_json({"page_first_view_s": round(found.first_view_s, 3), "page_frame_ms_p95": round(p95, 2)})


if __name__ == "__main__":
    main()
