"""The sessions in the docs, typed again: every command of a page, in order, in one shell, with the output shown.

A block `console` has commands after `$ `, continued after `> `, and their output. `...` stands for anything. Names,
times, addresses and numbers that differ from run to run are compared by their shape; ports are free ones. A block `py`
or `yaml` that begins with `# NAME.py` or `# NAME.yaml` is that file. A command whose output begins with `Error:`,
`error:` or `=== bug` must fail.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.etcd_server import free_port
from tests.tools import missing_tool, need_kubectl

ROOT = Path(__file__).parents[2]
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if "```console\n" in page.read_text()]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
FILE = re.compile(r"# ([\w-]+\.(?:py|yaml))\b")
FAILS = ("Error:", "error:", "=== bug")
PROGRESS = ("Waiting for ", "bash: line ")
"""Beginnings of lines that a session may or may not have: the second is the shell about a job that was killed."""
SLOW_DISK = "use a faster disk"
"""The end of warnings that a machine with a slow disk adds."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SESSION_S = 400.0
SHAPES = (
    (r"\b\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
    (r"\b\d\d:\d\d:\d\d(\.\d+)?", "TIME"),
    (r"(?m)^TIME +\d+ ", "TIME REVISION "),
    (r"\bwritten at rv \d+, seen [\d.]+ s later", "written and seen"),
    (r"\b(\d+[smhd])+( ago)?(?=[\s)])", "AGE"),
    (r"\b127\.\d+\.\d+\.\d+(:\d+)?", "ADDRESS"),
    (r"-[0-9a-z]{10}\b(-\d+)?", "-HASH"),
    (r"\bnode-\d\b", "node-N"),
    (r"\b(process|score) \d+", r"\1 N"),
    (r"\bscheduler:[0-9a-f]+:\d+", "scheduler:N"),
    (r"\b\d+ of \d+ replicas", "N of N replicas"),
    (r"\b\d+ of (\d+) seeds, first \d+", r"N of \1 seeds"),
    (r"\b\d+\.\d{4}s", "TIME"),
    (r"\b(seed|at revision) \d+", r"\1 N"),
    (r"\b[1-9]\d* (steps|failures)", r"N \1"),
    (r"\b\d+(\.\d)? s (before|old|in the queue)", r"N s \2"),
    (r"/\S*/(kedge|restored)\b", r"FOLDER"),
)


@dataclass(frozen=True)
class Typed:
    command: str
    shown: str

    @property
    def fails(self) -> bool:
        return self.shown.startswith(FAILS)


def session(page: Path) -> list[Typed]:
    return [each for kind, body in BLOCK.findall(page.read_text()) if kind == "console" for each in typed(body)]


def typed(body: str) -> Iterator[Typed]:
    for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
        first, *rest = part.splitlines()
        more = [line[2:] for line in rest if line.startswith("> ")]
        yield Typed("\n".join([first, *more]), "\n".join(line for line in rest if not line.startswith("> ")))


def shape(text: str) -> str:
    """Text without the parts that differ from run to run, and without progress."""
    for found, name in SHAPES:
        text = re.sub(found, name, text)
    lines = (line.rstrip() for line in text.splitlines() if not line.startswith(PROGRESS))
    return "\n".join(line for line in lines if not line.endswith(SLOW_DISK)) + "\n"


def write_files(page: Path, folder: Path) -> None:
    for kind, body in BLOCK.findall(page.read_text()):
        name = FILE.match(body)
        if kind in ("py", "yaml") and name is not None:
            (folder / name[1]).write_text(body)


def shell(folder: Path) -> dict[str, str]:
    """The environment of a person with a home folder of their own, and a free port for each cluster."""
    config = folder / "config" / "kedge"
    config.mkdir(parents=True)
    (config / "config.yaml").write_text("up:\n  listen: 127.0.0.1:0\n")
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "LANG": "C.UTF-8",
    }


def script(steps: list[Typed], out: Path) -> str:
    """Each command in the same shell, so that variables stay. An exit code that was not shown ends the session."""
    lines = []
    ports: dict[str, str] = defaultdict(lambda: f"127.0.0.1:{free_port()}")
    for number, each in enumerate(steps):
        command = re.sub(r"127\.0\.0\.1:\d+", lambda found: ports[found[0]], each.command)
        wanted = "-ne" if each.fails else "-eq"
        lines.append(f"{{ {command}\n}} > {out}/{number} 2>&1; [ $? {wanted} 0 ] || exit 1")
        lines.append(f"touch {out}/{number}.ok")
    return "\n".join(lines)


def run_session(text: str, folder: Path, environment: dict[str, str]) -> None:
    """Run a shell to its end. Programs that it left in the background end with it."""
    running = subprocess.Popen(["bash", "-c", text], cwd=folder, env=environment, start_new_session=True)
    try:
        running.wait(SESSION_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait(60)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_session_in_the_docs_goes_as_shown(page: Path, tmp_path: Path) -> None:
    steps = session(page)
    if any(each.command.startswith("etcd ") for each in steps) and shutil.which("etcd") is None:
        missing_tool("etcd", install="apt-get install etcd-server")
    if any("kubectl " in each.command for each in steps):
        need_kubectl()
    here, out = tmp_path / "here", tmp_path / "out"
    here.mkdir()
    out.mkdir()
    (here / "src").symlink_to(ROOT / "src")
    write_files(page, here)
    environment = shell(tmp_path)
    try:
        run_session(script(steps, out), here, environment)
    except subprocess.TimeoutExpired:
        at = sum((out / f"{number}.ok").exists() for number in range(len(steps)))
        printed = (out / f"{at}").read_text() if (out / f"{at}").exists() else ""
        pytest.fail(f"$ {steps[at].command}\nhas not ended within {SESSION_S:.0f} s of its session:\n{printed}")
    finally:
        for state in {each.parent for each in [*tmp_path.rglob("up.lock"), *tmp_path.rglob("nodes")]}:
            command = [sys.executable, "-m", "kedge", "down", "--grace", "0", "--state", str(state)]
            subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    checker = doctest.OutputChecker()
    for number, each in enumerate(steps):
        got = (out / f"{number}").read_text()
        assert (out / f"{number}.ok").exists(), f"{each.command}\nhas another exit code:\n{got}"
        same = not each.shown or checker.check_output(shape(each.shown), shape(got), FLAGS)
        assert same, f"$ {each.command}\nshown:\n{shape(each.shown)}\nprinted:\n{shape(got)}"


def test_the_picture_in_the_readme_is_what_the_demo_prints(tmp_path: Path) -> None:
    (shown,) = [body for kind, body in BLOCK.findall((ROOT / "README.md").read_text()) if kind == "text"]
    command = [sys.executable, "-m", "kedge", "up", "--demo"]
    environment = shell(tmp_path)
    (tmp_path / "config" / "kedge" / "config.yaml").write_text("up:\n  state: mine\n")
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SESSION_S, check=False
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    assert not list(tmp_path.rglob("mine")), "a demo leaves the cluster of the configuration file alone"
    same = doctest.OutputChecker().check_output(shape(shown), shape(printed), FLAGS)
    assert same, f"shown:\n{shape(shown)}\nprinted:\n{shape(printed)}"


def test_the_pages_that_promise_a_session_have_one() -> None:
    assert {page.stem for page in PAGES} >= {"tutorial", "hunting", "own-controller", "etcd", "operations", "security"}
    assert all(len(session(page)) > 3 for page in PAGES)
