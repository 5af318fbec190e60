"""`--event-loop`: the chosen loop runs the program, and a missing uvloop is an error that names the next step."""

from __future__ import annotations

import asyncio
import sys

import click
import pytest

from kedge.cli.event_loop import run_on


@pytest.mark.parametrize(("name", "module"), [("asyncio", "asyncio."), ("uvloop", "uvloop")])
def test_a_program_runs_on_the_chosen_loop(name: str, module: str) -> None:
    seen: list[str] = []

    async def main() -> None:
        seen.append(type(asyncio.get_running_loop()).__module__)

    run_on(name, main())
    assert seen[0].startswith(module)


def test_without_uvloop_the_error_has_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    async def main() -> None:
        pytest.fail("it ran")

    with pytest.raises(click.UsageError, match=r"install kedge\[uvloop\], or leave out"):
        run_on("uvloop", main())
