"""The files in `deploy/`, run: the commands of the units as one cluster, and the commands of the Dockerfile."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from tests.e2e.judged_runs import judged_beside
from tests.e2e.up_workload import MANIFEST, down_nodes, until
from tests.etcd_server import free_port
from tests.kit.api_server import ServerProcess

DEPLOY = Path(__file__).parents[2] / "deploy"
PARTS = ("server", "scheduler", "controllers", "agent")


def command_of(part: str, root: Path) -> list[str]:
    """The command of a unit, with its folders below `root` and this build of kedge."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.read(DEPLOY / "systemd" / f"kedge-{part}.service")
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert program == "/opt/kedge/bin/kedge"
    return [sys.executable, "-m", "kedge", *(f"{root}{each}" if each[0] == "/" else each for each in words[:-1])]


@contextmanager
def started(part: str, root: Path) -> Iterator[Path]:
    log = root / f"{part}.log"
    with log.open("wb") as written:
        process = subprocess.Popen(command_of(part, root), stderr=written, stdout=written)
    try:
        yield log
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()


def configured(root: Path) -> int:
    """Write the configuration with folders below `root` and free ports; the hosts stay. Returns the agent's port."""
    text = re.sub(r": (/\S+)", rf": {root}\1", (DEPLOY / "config.yaml").read_text())
    port = free_port()
    for listens, now in (("0.0.0.0:6443", free_port()), ("0.0.0.0:10250", port)):
        assert listens in text
        text = text.replace(listens, f"0.0.0.0:{now}")
    (root / "etc" / "kedge").mkdir(parents=True)
    (root / "etc" / "kedge" / "config.yaml").write_text(text)
    return port


def copy_kubeconfig(server: ServerProcess, root: Path) -> None:
    """The kubeconfig as another machine has it: with the name of this machine, which the certificate must have."""
    text = server.kubeconfig.read_text()
    changed = re.sub(r"https://127\.0\.0\.1:", f"https://{socket.gethostname()}:", text)
    assert changed != text
    (root / "etc" / "kedge" / "kubeconfig").write_text(changed)


def reply_of(connection: socket.socket) -> bytes:
    """The first bytes of the reply to a request; empty if the connection is closed or reset instead."""
    with suppress(OSError):
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: agent\r\n\r\n")
        return connection.recv(100)
    return b""


def check_agent_refuses_strangers(port: int) -> None:
    """No reply without TLS, nor to a caller without a certificate of the cluster's authority."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as plain:
        assert not reply_of(plain).startswith(b"HTTP")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=30) as plain, context.wrap_socket(plain) as stranger:
        assert reply_of(stranger) == b""


def test_the_commands_of_the_units_are_a_cluster_that_runs_a_workload(tmp_path: Path) -> None:
    port = configured(tmp_path)
    server = ServerProcess(tmp_path / "var" / "lib" / "kedge" / "server")
    with started("server", tmp_path) as log:
        until(lambda: "serving https://" in log.read_text(), "the server serves")
        copy_kubeconfig(server, tmp_path)
        with judged_beside(server), ExitStack() as stack:
            for each in ("scheduler", "controllers", "agent"):
                stack.enter_context(started(each, tmp_path))
            server.kubectl("apply", "-f", "-", stdin=MANIFEST)
            server.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=90s", timeout_s=100)
            assert "started web-" in server.kubectl("logs", "deployment/web")
            assert server.kubectl("exec", "deployment/web", "--", "echo", "inside") == "inside\n"
            (node,) = json.loads(server.kubectl("get", "nodes", "-o", "json"))["items"]
            assert node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == port
            assert node["status"]["addresses"][0]["address"] not in ("0.0.0.0", "")
            check_agent_refuses_strangers(port)
            server.kubectl("delete", "deployment", "web")
            until(lambda: "No resources" in server.kubectl("get", "pods", check=False), "its pods are gone")
    assert not (tmp_path / "var" / "lib" / "kedge" / "agent" / "keeper.sock").exists()
    down_nodes(server)


@pytest.mark.slow
def test_the_commands_of_the_dockerfile_install_and_start_a_server(tmp_path: Path) -> None:
    """Without an engine: each instruction is carried out below a folder. `useradd` and the base image are left out."""
    joined = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    environment, entry, command, folder = dict(os.environ), [""], [""], tmp_path

    def below(words: str) -> str:
        return re.sub(r"(?<![\w.])/(?=opt|source|var)", f"{tmp_path}/", words)

    for line in joined.splitlines():
        word, _, rest = line.partition(" ")
        if word == "WORKDIR":
            folder = Path(below(rest))
            folder.mkdir(parents=True)
        elif word == "COPY" and "--from" not in rest:
            *sources, target = rest.split()
            for each in sources:
                found, place = DEPLOY.parent / each, folder / target
                if found.is_dir():
                    shutil.copytree(found, place, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
                else:
                    shutil.copy(found, place)
        elif word == "RUN" and "useradd" not in rest:
            script = below(rest).replace("python -m venv", f"{sys.executable} -m venv")
            subprocess.run(
                script, shell=True, cwd=folder, check=True, env=environment, capture_output=True, timeout=600
            )
        elif word == "ENV":
            pairs = dict(each.split("=", 1) for each in below(rest).split())
            environment |= {name: os.path.expandvars(value) for name, value in pairs.items()}
        elif word == "ENTRYPOINT":
            entry = json.loads(rest)
        elif word == "CMD":
            command = [below(each) for each in json.loads(rest)]
    log = tmp_path / "log"
    environment.pop("PYTHONPATH", None)
    words = [each.replace("0.0.0.0:6443", "127.0.0.1:0") for each in (*entry, *command)]
    program = shutil.which(words[0], path=environment["PATH"])
    assert program == f"{tmp_path}/opt/kedge/bin/kedge"
    with log.open("wb") as written:
        process = subprocess.Popen([program, *words[1:]], cwd="/", stderr=written, env=environment)
    try:
        until(lambda: "serving https://" in log.read_text(), "the server of the image serves")
    finally:
        process.terminate()  # STOPSIGNAL
        assert process.wait(60) == 0
