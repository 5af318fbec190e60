"""Every command and every program in README and docs is run here; one with placeholders is filled in and parsed."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import click
import pytest
import yaml
from tests.etcd_server import etcd_server, etcdctl, wheel_etcd
from tests.tools import missing_tool, need_tool

from kedge.api.codec import encode_json
from kedge.api.kinds import KINDS
from kedge.api.validation import check_object
from kedge.api.wellknown import AUDIT_API_VERSION
from kedge.cli import main
from kedge.errors import Invalid
from kedge.server.audit import parse_policy

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
INLINE = re.compile(r"`((?:make|kedge|kubectl|pip|python|openssl|etcdctl|source) [^`]+)`")

PLANNED = {
    "make test",
    "make test PYTHON=python3.13",
    "make test-pythons",
    "make test-slow",
    "make lint",
    "make bench",
    "make venv",
    "make zoo",
    "make soak",
    "make torture",
    "make fuzz REQUESTS=1000000",
}
"""Targets too long to run inside a test, or that run this very test: make is asked what it would do."""

PLACEHOLDER = re.compile(r"\b[A-Z][A-Z0-9]*\b")
FILLED = {
    "ACCOUNT": "web", "COMMAND": "true", "CHANGE": "limit/lease_s=20", "CONDITION": "delete",
    "CONTROLLER": "deployment", "DIR": "folder", "FILE": "file.yaml", "OUT": "new.db",
    "FUNCTION": "main", "GROUP": "team", "H1": "h1", "H2": "h2", "H3": "h3", "HOST": "127.0.0.1", "ID": "abc",
    "J": "2", "KIND": "pods", "KUBECONFIG": "file.yaml", "MODULE": "json", "N": "3", "NAME": "web",
    "NODE": "node-1", "POD": "web-1", "PORT": "6443", "PREFIX": "prefix", "S1": "s1", "S2": "s2", "S3": "s3",
    "SHELL": "bash", "TARGET": "json:main", "TOKEN": "x", "TYPE": "pods", "URL": "https://127.0.0.1:6443",
    "VERB": "status", "FOLDER": "folder",
}  # fmt: skip
"""A value for each placeholder in the docs."""


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (page.relative_to(ROOT).as_posix(), body)
        for page in PAGES
        for found, body in BLOCK.findall(page.read_text())
        if found == language
    ]


def commands() -> list[str]:
    in_blocks = [line.split("#")[0].strip() for _, body in blocks("sh") for line in body.splitlines()]
    inline = [" ".join(found.split()) for page in PAGES for found in INLINE.findall(BLOCK.sub("", page.read_text()))]
    return sorted({command for command in [*in_blocks, *inline] if command})


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def check_run(*command: str, cwd: Path = ROOT) -> str:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# -- one rule a program ------------------------------------------------------------------------------


def check_make(words: list[str], folder: Path) -> None:
    del folder
    plan = [] if shlex.join(words) not in PLANNED else ["-n"]
    check_run(words[0], *plan, *words[1:])


def check_kedge(words: list[str], folder: Path) -> None:
    assert words != ["kedge", "up"], "it never ends: write `kedge up --state DIR`"
    if any(PLACEHOLDER.search(word) for word in words if not word.startswith("-")):
        parse_kedge([filled(word) for word in words[1:]])
    else:
        check_run(sys.executable, "-m", "kedge", *words[1:], cwd=folder)


def filled(word: str) -> str:
    """A word with values for its placeholders; an option such as `-A` has none."""
    option, separator, value = word.partition("=") if word.startswith("-") else ("", "", word)
    unknown = set(PLACEHOLDER.findall(value)) - set(FILLED)
    assert not unknown, f"no test knows a value for {', '.join(unknown)}: teach tests/meta/test_docs.py"
    return option + separator + PLACEHOLDER.sub(lambda found: FILLED[found[0]], value)


def parse_kedge(words: list[str]) -> None:
    """Parse a command line up to the point where the verb would run: verbs, options, values and arity."""
    command: click.Command = main
    context = click.Context(main, info_name="kedge")
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, f"{context.command_path} has no verb {words[0]}"
        command, context = found, click.Context(found, info_name=words[0], parent=context)
        words = words[1:]
    assert context.parent is not None
    command.make_context(str(context.info_name), list(words), parent=context.parent)


def check_kubectl(words: list[str], folder: Path) -> None:
    """kubectl knows the verb and each option. Sessions of the docs and end-to-end tests run it."""
    del folder
    kubectl = need_tool("kubectl", install="kubectl 1.28 or newer")
    rest = [filled(word) for word in words[1:]]
    verbs = rest.pop(0).split("|") if not rest[0].startswith("-") else [""]
    group = rest.pop(0) if verbs[0] in ("create", "rollout", "set", "auth") and rest else ""
    for verb in verbs:
        known = kubectl_help(kubectl, verb, group) + kubectl_help(kubectl, "options", "")
        options = [word.split("=")[0] for word in rest if word.startswith("-")]
        assert [each for each in options if not re.search(rf"(^|\s){each}[\s=,]", known)] == []


@cache
def kubectl_help(kubectl: str, verb: str, group: str) -> str:
    words = [each for each in (verb, group) if each]
    found = check_run(kubectl, *words) if verb == "options" else check_run(kubectl, *words, "--help")
    assert not group or f"kubectl {verb} {group}" in found, f"kubectl {verb} has no {group}"
    return found


def check_pip(words: list[str], folder: Path) -> None:
    """The package and its extras are those of `pyproject.toml`; a test may not use the network."""
    del folder
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert words[:2] == ["pip", "install"]
    for wanted in words[2:]:
        found = re.fullmatch(r"([\w-]+)(?:\[([\w,-]+)\])?", wanted)
        assert found is not None
        assert found[1] == project["name"]
        assert set((found[2] or "").split(",")) - {""} <= set(project["optional-dependencies"])


def check_python(words: list[str], folder: Path) -> None:
    """A module that makes a page is run on a copy and changes nothing; a benchmark has the options in its help."""
    assert words[1] == "-m"
    module, *rest = words[2:]
    if module.startswith("benchmarks."):
        known = check_run(sys.executable, "-m", module, "--help")
        assert [each for each in rest if each.startswith("-") and f"{each} " not in known] == []
        return
    shutil.copytree(ROOT / "docs", folder / "docs")
    if module.startswith("tests."):
        shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    check_run(sys.executable, "-m", module, *rest, cwd=folder)
    tables = [each.relative_to(folder).as_posix() for each in (folder / "tests").rglob("*.txt")]
    for name in (*rest, *tables):
        assert (folder / name).read_text() == (ROOT / name).read_text(), f"{name} is out of date: {shlex.join(words)}"


def check_openssl(words: list[str], folder: Path) -> None:
    need_tool("openssl", install="apt-get install openssl")
    assert "PRIVATE KEY" in check_run(*words, cwd=folder)


def check_etcdctl(words: list[str], folder: Path) -> None:
    """etcdctl has the verb. The block of commands is run as a whole below."""
    del folder
    program = wheel_etcd("etcdctl") or missing_tool("etcdctl", install="make venv")
    verbs = [word for word in words[1:] if word.isalpha()][:2]
    assert f"etcdctl {verbs[0]}" in check_run(program, *verbs, "--help")


def check_source(words: list[str], folder: Path) -> None:
    """The shell has completion afterwards."""
    done = f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH; {' '.join(words)} && complete -p kedge"
    assert "kedge" in check_run("bash", "-c", done, cwd=folder)


RULES: dict[str, Callable[[list[str], Path], None]] = {
    "etcdctl": check_etcdctl,
    "kedge": check_kedge,
    "kubectl": check_kubectl,
    "make": check_make,
    "openssl": check_openssl,
    "pip": check_pip,
    "python": check_python,
    "source": check_source,
}


@pytest.mark.parametrize("command", commands())
def test_a_command_in_the_docs_works(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command, posix=not command.startswith("source"))
    assert words[0] in RULES, f"no test knows how to run {command!r}: teach tests/meta/test_docs.py"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.yaml").write_text("{}")
    # Components take the file of this variable where the docs leave --kubeconfig out.
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "file.yaml"))
    RULES[words[0]](words, tmp_path)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("kedge token create NAME", "unexpected extra argument"),
        ("kedge get TYPE --nonsense", "No such option"),
        ("kedge scale TYPE NAME", "Missing option"),
        ("kedge rollout nonsense NAME", "kedge rollout has no verb nonsense"),
        ("kedge restore", "missing argument"),
        ("kedge zoo --compare NAME", "not a valid integer"),
        ("kedge backup FILES", "no test knows a value for FILES"),
        ("kubectl get pods --nonsense", "--nonsense"),
        ("kubectl create nonsense", "nonsense"),
        ("pip install 'kedge[nonsense]'", "nonsense"),
        ("python -m benchmarks.http --nonsense", "--nonsense"),
        ("etcdctl nonsense", "nonsense"),
        ("openssl nonsense", "nonsense"),
        ("source <(kedge completion nonsense)", "nonsense"),
    ],
)
def test_a_wrong_command_in_the_docs_is_found(
    command: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((AssertionError, click.UsageError)) as caught:
        test_a_command_in_the_docs_works(command, tmp_path, monkeypatch)
    error = caught.value
    assert why in (error.format_message() if isinstance(error, click.UsageError) else str(error))


def test_the_etcdctl_commands_in_the_docs_give_a_user_its_prefix_alone() -> None:
    (body,) = [body for page, body in blocks("sh") if page == "docs/etcd.md" and "etcdctl" in body]
    with etcd_server(wheel_etcd() or missing_tool("etcd", install="make venv"), "--unsafe-no-fsync") as etcd:
        for line in body.splitlines():
            program, *rest = shlex.split(line)
            assert program == "etcdctl"
            etcdctl(etcd, *rest)
        user = ("--user", "kedge:PASSWORD")
        assert etcdctl(etcd, *user, "put", "/kedge/x", "1") == "OK\n"
        with pytest.raises(subprocess.CalledProcessError):
            etcdctl(etcd, *user, "put", "/others/x", "1")
        with pytest.raises(subprocess.CalledProcessError):
            etcdctl(etcd, "get", "/kedge/x")


@pytest.mark.parametrize(("page", "body"), blocks("python"))
def test_a_program_in_the_docs_runs_and_can_be_run_again(page: str, body: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(body)
    for _ in range(2):
        done = run(sys.executable, str(program), cwd=tmp_path)
        assert done.returncode == 0, f"{page}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(("page", "body"), blocks("yaml"))
def test_an_object_in_the_docs_is_valid(page: str, body: str) -> None:
    for document in yaml.safe_load_all(body):
        if isinstance(document, dict) and document.get("apiVersion") == AUDIT_API_VERSION:
            parse_policy(body, page)
        elif isinstance(document, dict) and {"apiVersion", "kind"} <= set(document):
            try:
                check_object(KINDS.of_api(document["apiVersion"], document["kind"]), encode_json(document))
            except Invalid as error:
                pytest.fail(f"{page}: {error}")


def test_the_complete_controller_in_the_docs_is_short() -> None:
    (body,) = [body for page, body in blocks("python") if page == "docs/controllers.md"]
    assert len(body.splitlines()) < 60


def test_each_decision_has_a_number_of_its_own() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    assert numbers == list(range(1, len(pages) + 1))
    assert [
        page.name for page, n in zip(pages, numbers, strict=True) if not page.read_text().startswith(f"# {n}. ")
    ] == []
