"""Options of every component: the form and level of its log, and the endpoint for its spans."""

from __future__ import annotations

import asyncio
import importlib
import sys

import click
import pytest
from click.testing import CliRunner
from tests.kit.log_output import kept_loggers

from kedge.cli.configuration.fields import VERBS
from kedge.cli.configuration.option import config_option
from kedge.cli.log_options import log_arguments, log_options
from kedge.cli.otlp_option import span_sender
from kedge.env import system_env
from kedge.errors import Terminal
from kedge.limits import Limits
from kedge.logs import INFO

WITH_DECISIONS = {"up", "server", "scheduler", "controllers", "agent"}
"""Verbs whose process has a decision log: agents and the admission of a server record too."""


def options_of(verb: str) -> set[str]:
    command = getattr(importlib.import_module(f"kedge.cli.{verb}"), verb)
    return {name for each in command.params for name in each.opts}


@pytest.mark.parametrize("verb", VERBS)
def test_every_component_has_the_options_of_its_log_and_processes_that_decide_the_endpoint(verb: str) -> None:
    assert {"--log-format", "--log-level"} <= options_of(verb)
    assert ("--otlp-endpoint" in options_of(verb)) == (verb in WITH_DECISIONS)


@click.command()
@log_options
@config_option
def logging_verb(limits: Limits) -> None:
    system_env(limits=limits).log.write(INFO, "a line", {"decision": "a:p:1"})
    click.echo(" ".join(log_arguments()))


def test_the_options_set_up_the_log_and_are_passed_on_to_a_detached_process() -> None:
    with kept_loggers():
        done = CliRunner().invoke(logging_verb, ["--log-format", "json", "--log-level", "info"])
        assert done.exit_code == 0, done.output
        assert '"message":"a line","decision":"a:p:1"' in done.stderr
        assert done.stdout == "--log-format json --log-level info\n"
        quiet = CliRunner().invoke(logging_verb, [])
        assert (quiet.stderr, quiet.stdout) == ("", "--log-format text --log-level warning\n")


def test_an_endpoint_without_the_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send() -> None:
        async with span_sender("http://127.0.0.1:1"):
            pass

    asyncio.run(send())
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.collector.trace.v1.trace_service_pb2", None)
    with pytest.raises(Terminal, match=r"install kedge\[otlp\], or leave out --otlp-endpoint"):
        asyncio.run(send())
