"""A small program that outlives `kedge chaos`: it continues the processes that chaos stopped, should chaos be killed.

It reads lines `PID TICKS` from its standard input; a minus before them takes a line back. At the end of the input it
sends SIGCONT to the rest. Standard library only (`python -I -S guard.py`).
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path


def main() -> int:
    stopped: set[tuple[int, int]] = set()
    for line in sys.stdin:
        sign, pid, ticks = line.split()
        (stopped.add if sign == "+" else stopped.discard)((int(pid), int(ticks)))
        print(flush=True)  # chaos stops a process only after it is known here
    for pid, ticks in stopped:
        with suppress(OSError, ValueError):
            stat = Path("/proc", str(pid), "stat").read_text(errors="replace")
            if int(stat[stat.rindex(")") + 2 :].split()[19]) == ticks:
                os.kill(pid, signal.SIGCONT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
