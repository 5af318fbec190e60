"""The configuration file: mistakes are named with their line, flags win, and the tables of the docs are complete."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kedge.agent.process import keeper_bounds
from kedge.cli import main
from kedge.cli.configuration.fields import LIMITS, VERBS, config_fields
from kedge.cli.configuration.option import config_option, current_config
from kedge.cli.configuration.page import config_tables, limit_groups
from kedge.cli.configuration.reader import ConfigError, read_config
from kedge.limits import Limits, misordered

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def written(folder: Path, text: str) -> Path:
    file = folder / "config.yaml"
    file.write_text(text)
    return file


def run(*words: str | Path, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, list(map(str, words)), env=env)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sever:\n  listen: a:1", "1: sever: no such section: did you mean server?"),
        ("server:\n  listn: a:1", "2: server.listn: no such field: did you mean server.listen?"),
        ("server:\n  etcd-cafile: a", "2: server.etcd-cafile: no such field: did you mean server.etcd_cafile?"),
        ("up:\n  demo: true", "2: up.demo: no such field"),
        ("server:\n  listen: here", "2: server.listen: 'here' is not HOST:PORT"),
        ("server:\n  listen: 6443", "2: server.listen: must be a text, not 6443: for example 127.0.0.1:6443"),
        ("up:\n  nodes: 51", "2: up.nodes: 51 is out of bounds: it must be 1 to 50"),
        ("up:\n  nodes: true", "2: up.nodes: must be a whole number, not True: for example 3"),
        ("up:\n  nodes: {a: 1}", "2: up.nodes: must be a whole number, not a structure"),
        ("agent:\n  servers: https://a", "2: agent.servers: must be a list of texts"),
        ("agent:\n  servers: [1]", "2: agent.servers: must be a list of texts"),
        ("limits:\n  history_s: 0", "2: limits.history_s: 0 is out of bounds: it must be 0.001 or more (in seconds)"),
        ("limits:\n  history_s: .inf", "2: limits.history_s: must be a number, not inf"),
        ("limits:\n  history_s: .nan", "2: limits.history_s: must be a number, not nan"),
        ("limits:\n  pod_burst: 1.5", "2: limits.pod_burst: must be a whole number, not 1.5: for example 100"),
        ("limits:\n  commit_ops_max: 129", "2: limits.commit_ops_max: 129 is out of bounds"),
        ("limits:\n\n  pod_burst: 1\n  pod_burst: 2", "4: pod_burst, in limits: written twice, also on line 3"),
        ("limits:\n  lease_renew_s: 20", "2: limits.lease_renew_s must be below limits.lease_s, not 20 and 15"),
        ("limits:\n  queue_backoff_s: 61", "2: limits.queue_backoff_s must be below limits.queue_backoff_s_max"),
        ("limits: 3", "1: limits must be a mapping"),
        ("- a", "1: the file must be a mapping"),
        ("a: b: c", "1: not YAML"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_a_way_out(text: str, problem: str, tmp_path: Path) -> None:
    file = written(tmp_path, text)
    done = run("config", "check", file)
    assert done.exit_code == 1
    assert f"{file}:{problem}" in done.stderr


def test_every_mistake_of_a_file_is_reported_at_once(tmp_path: Path) -> None:
    file = written(tmp_path, "up:\n  nodes: 0\nlimits:\n  pod_brst: 3\n  history_s: x\n")
    with pytest.raises(ConfigError) as caught:
        read_config(file)
    lines = caught.value.message.splitlines()
    assert [line.split(":")[1] for line in lines] == ["2", "4", "5"]


def test_a_missing_file_and_one_that_is_no_text_are_errors(tmp_path: Path) -> None:
    missing = run("config", "check", tmp_path / "none")
    assert (missing.exit_code, "does not exist" in missing.stderr) == (2, True)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    assert "cannot be read: it is not UTF-8" in run("config", "check", binary).stderr


def test_options_of_etcd_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    done = run("config", "check", written(tmp_path, "server:\n  etcd_user: a\n"))
    assert (done.exit_code, "the options --etcd-* are for etcd" in done.stderr) == (1, True)
    done = run("config", "check", written(tmp_path, "server:\n  store: etcd://a:1\n  etcd_user: a\n"))
    assert (done.exit_code, "belong together" in done.stderr) == (1, True)


@pytest.mark.parametrize("text", ["", "# nothing\n", "limits:\n", "up: {}\n"])
def test_a_file_without_fields_is_fine(text: str, tmp_path: Path) -> None:
    done = run("config", "check", written(tmp_path, text))
    assert (done.exit_code, "0 fields are set and fine" in done.stdout) == (0, True)


def test_every_limit_can_be_set(tmp_path: Path) -> None:
    """All at once, to values that are not the defaults: every pair stays in order."""
    wanted = {}
    for field in config_fields()[LIMITS].values():
        changed = field.default * 2 if field.most is None else field.least
        wanted[field.name] = changed
    text = "limits:\n" + "".join(f"  {name}: {value}\n" for name, value in wanted.items())
    assert dataclasses.asdict(read_config(written(tmp_path, text)).limits) == wanted


def test_the_defaults_are_in_bounds_and_in_order() -> None:
    for each in config_fields()[LIMITS].values():
        assert each.least is not None
        assert each.least <= each.default <= (each.most or each.default), each.name
    assert list(misordered(Limits())) == []


@click.command("server")
@click.option("--listen", default="127.0.0.1:6443")
@click.option("--state", type=click.Path(path_type=Path), required=True)
@config_option
def probe(listen: str, state: Path, limits: Limits) -> None:
    """A command with the section of `kedge server`, which prints what it was given."""
    click.echo(f"{listen} {state} {limits.pod_burst} {current_config().path}")


def probed(*words: str | Path, env: dict[str, str]) -> str:
    done = CliRunner().invoke(probe, list(map(str, words)), env=env)
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    nothing = {"XDG_CONFIG_HOME": str(tmp_path / "none")}
    file = written(tmp_path, "server:\n  listen: 0.0.0.0:1\n  state: below\nlimits:\n  pod_burst: 7\n")
    assert probed("--state", "here", env=nothing) == "127.0.0.1:6443 here 100 None"
    assert probed("--config", file, env=nothing) == f"0.0.0.0:1 {tmp_path}/below 7 {file}"
    assert probed("--config", file, "--listen", "a:2", env=nothing) == f"a:2 {tmp_path}/below 7 {file}"
    assert probed("--listen", "a:2", "--config", file, env=nothing) == f"a:2 {tmp_path}/below 7 {file}"


def test_the_file_in_the_default_place_is_used_unless_another_is_named(tmp_path: Path) -> None:
    (tmp_path / "kedge").mkdir()
    usual = written(tmp_path / "kedge", "limits:\n  pod_burst: 7\n")
    other = written(tmp_path, "limits:\n  pod_burst: 8\n")
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert probed("--state", "s", env=env) == f"127.0.0.1:6443 s 7 {usual}"
    assert probed("--state", "s", "--config", other, env=env) == f"127.0.0.1:6443 s 8 {other}"


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_with_a_wrong_file_does_not_start(verb: str, tmp_path: Path) -> None:
    done = run(verb, "--config", written(tmp_path, "limits:\n  pod_brst: 3\n"))
    assert done.exit_code == 1
    assert "limits.pod_brst: no such field: did you mean limits.pod_burst?" in done.stderr


def test_a_wrong_file_does_not_stop_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kedge").mkdir()
    written(tmp_path / "kedge", "limits:\n  pod_brst: 3\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(ConfigError):
        probe.make_context("server", ["--state", "s"])
    assert probe.make_context("server", [], resilient_parsing=True)


def test_show_marks_values_that_differ_and_names_their_source(tmp_path: Path) -> None:
    file = written(tmp_path, "limits:\n  pod_burst: 7\n  history_s: 300\nagent:\n  zone: east\n")
    env = {"XDG_CONFIG_HOME": str(tmp_path / "none"), "KUBECONFIG": "/k"}
    rows = [line.split() for line in run("config", "show", "--config", file, env=env).stdout.splitlines()]
    assert ["*", "limits.pod_burst", "7", "100", f"{file}:2"] in rows
    assert ["limits.history_s", "300", "300", f"{file}:3"] in rows
    assert ["*", "agent.zone", "east", "zone-a", f"{file}:5"] in rows
    assert ["*", "agent.kubeconfig", "/k", "-", "$KUBECONFIG"] in rows
    assert ["server.listen", "127.0.0.1:6443", "127.0.0.1:6443", "default"] in rows
    changed = run("config", "show", "--config", file, "--changed", env=env).stdout.splitlines()
    assert len(changed) == 1 + 2 + 3
    assert len(rows) == 1 + sum(map(len, config_fields().values()))


def test_the_tables_have_every_field_once() -> None:
    assert sorted(name for names in limit_groups().values() for name in names) == sorted(
        each.name for each in dataclasses.fields(Limits)
    )
    fields, fixed = config_tables().split("### fixed: keeper")
    assert fields.count("\n| `") == sum(map(len, config_fields().values()))
    constants = [
        name for name, value in vars(keeper_bounds).items() if name.isupper() and isinstance(value, int | float)
    ]
    assert sorted(re.findall(r"^\| `(\w+)`", fixed, re.M)) == sorted(constants)


def test_the_example_in_the_docs_is_fine(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert run("config", "check", written(tmp_path, text)).exit_code == 0
