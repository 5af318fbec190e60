"""A real Chromium for tests of the page, and pages served in the test's own process."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.tools import missing_tool, need_tool

from kedge.env import system_env
from kedge.ui import Documents, PageServer, RecordingSource

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
"""Pictures for people; git ignores the folder."""
READY = "html[data-ready]"


def kedge(*words: str) -> str:
    """Run a command, and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "kedge", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of this machine, without a window."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing_tool("playwright", install="pip install 'kedge[dev]'")
    path = need_tool("chromium", install="install Debian's chromium, or another one, as `chromium` on the path")
    with sync_playwright() as playwright:
        # Root has no namespaces of its own for Chromium's sandbox; the only pages are our own.
        sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=[*sandbox, "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of_file(file: Path) -> Iterator[str]:
    """`kedge ui FILE` as a process. Yields its link."""
    command = [sys.executable, "-c", "from kedge.cli import main; main()", "ui", str(file), "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found is not None, line
        yield found.group()
    finally:
        process.terminate()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def page_of(documents: Documents) -> Iterator[str]:
    """The page of documents that a test made. Yields its link."""
    links: list[str] = []
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        server = PageServer(RecordingSource(documents), system_env())
        links.append(await server.start())
        started.set()
        await stop.wait()
        await server.stop()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(60), "the page did not start"
    try:
        yield links[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
