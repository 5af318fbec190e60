"""A progress bar on stderr for work that takes more than two seconds. Shorter work shows none."""

from __future__ import annotations

import sys
import time
from typing import Final

AFTER_S: Final = 2.0
WIDTH: Final = 30
_REDRAW_S: Final = 0.1


class ProgressBar:
    """Call it with the work that is done and all of it. It draws only on a terminal, and erases itself at the end."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._began_s = self._drawn_s = time.monotonic()
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s - self._began_s < AFTER_S or not sys.stderr.isatty():
            return
        if done >= total:
            if self._shown:
                sys.stderr.write("\r\x1b[K")
            self._shown = False
        elif now_s - self._drawn_s >= _REDRAW_S:
            self._drawn_s, self._shown = now_s, True
            sys.stderr.write(f"\r\x1b[K{self._title} {bar(done, total)}")
        sys.stderr.flush()


def bar(done: int, total: int) -> str:
    full = WIDTH * done // max(1, total)
    return f"[{'#' * full}{' ' * (WIDTH - full)}] {done} of {total}"
