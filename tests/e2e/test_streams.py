"""kubectl logs, exec and attach through the API server to an agent: bytes, exit codes, terminals, and broken ends."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.judged_runs import judged_beside
from tests.e2e.up_workload import UpProcess, down_nodes, is_running, running_up, until
from tests.kit.api_server import ServerProcess, running_server
from tests.tools import KUBECTL_STREAMS, need_kubectl

MANY = os.urandom(1024) * 3 * 1024

TALKER = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: NAME}}
spec:
  nodeName: only
  restartPolicy: POLICY
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: x, command: [sh, -c, "COMMAND"], env: [{name: COLOR, value: blue}]}
"""


def pod(name: str, command: str, *, policy: str = "Never") -> str:
    return TALKER.replace("NAME", name).replace("COMMAND", command).replace("POLICY", policy)


class OneNode:
    """A server and one agent, as processes of their own. Pods name their node, so nothing else is needed."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.kubectl = server.kubectl
        self.agent = self._start_agent()

    def _start_agent(self) -> subprocess.Popen[bytes]:
        folder = self.server.state / "nodes" / "only"
        return subprocess.Popen(
            [sys.executable, "-m", "kedge", "agent", "--state", str(folder), "--name", "only"],
            env=self.server.client_environment,
            stderr=subprocess.DEVNULL,
        )

    def kill_agent(self) -> None:
        self.agent.kill()
        self.agent.wait(30)

    def restart_agent(self) -> None:
        self.kill_agent()
        self.agent = self._start_agent()

    def run(self, name: str, command: str, *, policy: str = "Never") -> None:
        self.kubectl("apply", "-f", "-", stdin=pod(name, command, policy=policy))
        self.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=60s", timeout_s=70)

    def exec(self, *arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["kubectl", "exec", *arguments],
            env=self.server.client_environment,
            input=data,
            capture_output=True,
            timeout=60,
            check=False,
        )


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneNode]:
    need_kubectl(KUBECTL_STREAMS)
    with running_server(tmp_path_factory.mktemp("streams") / "state") as server, judged_beside(server):
        found = OneNode(server)
        try:
            until(lambda: " Ready" in server.kubectl("get", "nodes"), "the node is ready")
            found.run("idle", "echo started; exec sleep 100000")
            yield found
        finally:
            found.kill_agent()
            down_nodes(server)


# -- logs --------------------------------------------------------------------------------------------


def test_logs_have_a_tail_a_start_and_times(node: OneNode) -> None:
    node.run("count", "for i in 1 2 3 4; do echo line $i; done; sleep 3; echo line 5; exec sleep 100000")
    until(lambda: "line 5" in node.kubectl("logs", "count"), "all lines are written")
    assert node.kubectl("logs", "count") == "".join(f"line {number}\n" for number in range(1, 6))
    assert node.kubectl("logs", "count", "--tail=2") == "line 4\nline 5\n"
    assert node.kubectl("logs", "count", "--tail=0") == ""
    assert node.kubectl("logs", "count", "--limit-bytes=9") == "line 1\nli"
    assert node.kubectl("logs", "count", "--since=1h").count("\n") == 5
    stamped = node.kubectl("logs", "count", "--timestamps").splitlines()
    last, text = stamped[-1].split(" ", 1)
    assert text == "line 5"
    assert last.startswith("20")
    assert last.endswith("Z")
    assert node.kubectl("logs", "count", f"--since-time={last}") == "line 5\n"
    assert node.kubectl("logs", "-l", "app=count", "--prefix", "--tail=1") == "[pod/count/main] line 5\n"
    assert "tailLines is a number" in node.kubectl(
        "get", "--raw", "/api/v1/namespaces/default/pods/count/log?tailLines=x", check=False
    )


def test_a_followed_log_ends_with_its_pod(node: OneNode) -> None:
    node.kubectl("apply", "-f", "-", stdin=pod("short", "echo first; sleep 2; echo last"))
    until(lambda: "Pending" not in node.kubectl("get", "pod", "short"), "it has started")
    assert node.kubectl("logs", "-f", "short") == "first\nlast\n"


def test_each_container_and_the_run_before_have_their_own_log(node: OneNode) -> None:
    two = pod("two", "echo main; exec sleep 100000") + (
        '  - {name: side, image: x, command: [sh, -c, "echo side; exec sleep 100000"]}\n'
    )
    node.kubectl("apply", "-f", "-", stdin=two)
    node.kubectl("wait", "pod/two", "--for=condition=Ready", "--timeout=60s", timeout_s=70)
    assert node.kubectl("logs", "two", "-c", "side") == "side\n"
    assert sorted(node.kubectl("logs", "two", "--all-containers").split()) == ["main", "side"]
    assert "choose one of: [main side]" in node.kubectl(
        "get", "--raw", "/api/v1/namespaces/default/pods/two/log", check=False
    )
    assert "container nope is not valid for pod two" in node.kubectl("logs", "two", "-c", "nope", check=False)

    again = pod(
        "again", "test -e once && echo run two && exec sleep 100000; touch once; echo run one; exit 1", policy="Always"
    )
    node.kubectl("apply", "-f", "-", stdin=again)
    assert "not found" in node.kubectl("logs", "idle", "--previous", check=False)
    until(lambda: node.kubectl("logs", "again", check=False) == "run two\n", "it has restarted")
    assert node.kubectl("logs", "again", "--previous") == "run one\n"


def test_a_pod_that_never_started_has_a_reason_instead_of_a_log(node: OneNode) -> None:
    node.kubectl("run", "bare", "--image=nginx", '--overrides={"spec": {"nodeName": "only"}}')
    until(lambda: "CreateContainerConfigError" in node.kubectl("get", "pod", "bare"), "it waits")
    assert "waiting to start: CreateContainerConfigError" in node.kubectl("logs", "bare", check=False)


# -- exec --------------------------------------------------------------------------------------------


def test_exec_has_exit_codes_and_both_outputs(node: OneNode) -> None:
    done = node.exec("idle", "--", "sh", "-c", "echo $COLOR; echo oops >&2; exit 42")
    assert (done.returncode, done.stdout) == (42, b"blue\n")
    assert done.stderr.startswith(b"oops\n")
    assert node.exec("idle", "--", "true").returncode == 0
    assert node.exec("idle", "--", "sh", "-c", "kill -9 $$").returncode == 137
    missing = node.exec("idle", "--", "no-such-program")
    assert missing.returncode == 127
    assert b"no-such-program" in missing.stderr


def test_three_megabytes_pass_each_way_unchanged(node: OneNode) -> None:
    assert node.exec("-i", "idle", "--", "cat", data=MANY).stdout == MANY
    folder = next((node.server.state / "nodes" / "only" / "pods").glob("default_idle_*"))
    (folder / "many").write_bytes(MANY)
    assert node.exec("idle", "--", "cat", str(folder / "many")).stdout == MANY
    assert node.exec("-i", "idle", "--", "wc", "-c", data=MANY).stdout.split() == [str(len(MANY)).encode()]


KUBECTL = ("kubectl",)
KEDGE = (sys.executable, "-m", "kedge")
BOTH = pytest.mark.parametrize("program", [KUBECTL, KEDGE], ids=["kubectl", "kedge"])


class Terminal:
    """A client in a terminal of its own, as a person has it."""

    def __init__(self, node: OneNode, *command: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command,
            env=node.server.client_environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.screen = b""

    def read_until(self, text: bytes, within_s: float = 30.0) -> None:
        deadline = time.monotonic() + within_s
        while text not in self.screen:
            assert time.monotonic() < deadline, f"{text!r} is not on the screen: {self.screen!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                self.screen += os.read(self.master, 65536)

    def type(self, text: bytes) -> None:
        os.write(self.master, text)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        os.close(self.master)


@BOTH
def test_a_shell_in_a_terminal_takes_ctrl_c_and_ends_with_its_code(node: OneNode, program: tuple[str, ...]) -> None:
    terminal = Terminal(node, *program, "exec", "-it", "idle", "--", "sh")
    try:
        terminal.type(b"echo is-a-$(test -t 0 && echo tty)\n")
        terminal.read_until(b"is-a-tty")
        terminal.type(b"sleep 7777; echo interrupted-$?\n")
        time.sleep(1)
        terminal.type(b"\x03")
        terminal.type(b"echo after-$((1+1))\n")
        terminal.read_until(b"after-2")
        terminal.type(b"exit 9\n")
        terminal.read_until(b"exit code 9")
        assert terminal.process.wait(30) == 9
    finally:
        terminal.close()


@BOTH
def test_a_client_that_is_killed_takes_its_terminal_programs_along(node: OneNode, program: tuple[str, ...]) -> None:
    terminal = Terminal(node, *program, "exec", "-it", "idle", "--", "sh", "-c", "echo pid-$$-; exec sleep 7778")
    try:
        terminal.read_until(b"-\r\n")
        pid = int(terminal.screen.split(b"-")[1])
        assert is_running(pid)
        terminal.process.kill()
        until(lambda: not is_running(pid), "the program has ended")
    finally:
        terminal.close()
    assert node.exec("idle", "--", "echo", "still").stdout == b"still\n"


def test_attach_shows_output_and_refuses_input(node: OneNode) -> None:
    node.run("ticker", "while true; do echo tick; sleep 1; done")
    terminal = Terminal(node, "kubectl", "attach", "ticker")
    try:
        terminal.read_until(b"tick")
    finally:
        terminal.close()
    assert "leave out -i and -t, or use exec" in node.kubectl("attach", "-i", "ticker", check=False)


def test_refusals_name_the_next_step(node: OneNode) -> None:
    assert "port-forward is not supported: pod idle listens at 127." in node.kubectl(
        "port-forward", "pod/idle", "8080:80", check=False
    )
    for arguments in (("logs", "idle"), ("exec", "idle", "--", "true")):
        assert "forbidden" in node.kubectl("--as=stranger", *arguments, check=False)
    assert "not found" in node.kubectl("exec", "absent", "--", "true", check=False)
    spdy = subprocess.run(
        ["kubectl", "exec", "idle", "--", "true"],
        env={**node.server.client_environment, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert b"need a WebSocket" in spdy.stderr


# -- kedge's own verbs -------------------------------------------------------------------------------


def kedge(node: OneNode, *arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return client(node, *KEDGE, *arguments, data=data)


def client(node: OneNode, *command: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command,
        env=node.server.client_environment,
        input=data,
        capture_output=True,
        timeout=120,
        check=False,
    )


def test_kedge_logs_and_exec_work_without_kubectl(node: OneNode) -> None:
    node.run("verbs", "for i in 1 2 3; do echo line $i; done; exec sleep 100000")
    assert kedge(node, "logs", "verbs", "--tail", "2").stdout == b"line 2\nline 3\n"
    assert kedge(node, "logs", "-l", "app=verbs", "--prefix", "--tail", "1").stdout == b"[pod/verbs/main] line 3\n"
    refused = kedge(node, "logs", "verbs", "-c", "nope")
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert b"container nope is not valid for pod verbs" in refused.stderr
    assert kedge(node, "exec", "-i", "verbs", "--", "cat", data=MANY).stdout == MANY
    failed = kedge(node, "exec", "verbs", "--", "sh", "-c", "echo oops >&2; exit 42")
    assert failed.returncode == 42
    assert failed.stderr.startswith(b"oops\n")
    assert b"not found" in kedge(node, "exec", "absent", "--", "true").stderr


WORKLOADS = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: group}
spec: {replicas: 2, selector: SELECTOR, template: TEMPLATE}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: group}
spec: {replicas: 2, selector: SELECTOR, template: TEMPLATE}
---
apiVersion: batch/v1
kind: Job
metadata: {name: group}
spec: {manualSelector: true, selector: SELECTOR, template: TEMPLATE}
---
apiVersion: v1
kind: Service
metadata: {name: group}
spec: {selector: {app: group}, ports: [{port: 80}]}
"""
SELECTOR = "{matchLabels: {app: group}, matchExpressions: [{key: app, operator: NotIn, values: [other]}]}"
TEMPLATE = (
    "{metadata: {labels: {app: group}},"
    " spec: {restartPolicy: RESTART, containers: [{name: main, image: x, command: [sleep, '9']}]}}"
)


def test_a_workload_stands_for_its_pod_as_with_kubectl(node: OneNode) -> None:
    """No controller runs here: the pods have the labels that the workloads select."""
    unassigned = pod("group-a", "exec sleep 100000").replace("  nodeName: only\n", "")
    pods = [unassigned, *(pod(f"group-{each}", f"echo {each}; exec sleep 100000") for each in "bc")]
    for each, name in zip(pods, "abc", strict=True):
        node.kubectl("apply", "-f", "-", stdin=each.replace(f"app: group-{name}", "app: group"))
        if name != "a":
            node.kubectl("wait", f"pod/group-{name}", "--for=condition=Ready", "--timeout=60s", timeout_s=70)
            time.sleep(1.1)  # times of Kubernetes are whole seconds
    workloads = WORKLOADS.replace("SELECTOR", SELECTOR).replace("TEMPLATE", TEMPLATE)
    first, second, job, service = workloads.split("---")
    texts = [first.replace("RESTART", "Always"), second.replace("RESTART", "Always"), job.replace("RESTART", "Never")]
    node.kubectl("apply", "-f", "-", stdin="---".join([*texts, service]))
    for word in (
        "pod/group-c",
        "po/group-c",
        "deploy/group",
        "rs/group",
        "job/group",
        "svc/group",
        "deployment.apps/group",
    ):
        theirs, ours = client(node, "kubectl", "logs", word), kedge(node, "logs", word)
        assert theirs.returncode == 0
        assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)
        command = ("exec", word, "--", "pwd")
        assert kedge(node, *command).stdout == client(node, "kubectl", *command).stdout != b""
    assert kedge(node, "logs", "deploy/group").stdout == b"b\n"
    assert kedge(node, "logs", "deploy/group").stderr == b"Found 3 pods, using pod/group-b\n"
    node.kubectl("delete", "pods", "-l", "app=group", "--grace-period=0", "--force")
    late = kedge(node, "exec", "deploy/group", "--pod-running-timeout=1s", "--", "pwd")
    assert late.returncode == 1
    assert b"deployment.apps/group has no pod after 1 s: `kedge describe deployments group`" in late.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("logs", "deploy/absent"), 'deployments.apps "absent" not found'),
        (("logs", "no/only"), "node/only selects no pods"),
        (("logs", "pod/"), "is not TYPE/NAME"),
        (("logs", "pod/idle/../../x"), "is no name"),
        (("exec", "idle?container=main", "--", "true"), 'pods "idle?container=main" not found'),
        (("exec", "nonsense/idle", "--", "true"), "no resource type 'nonsense'"),
        (("logs", "idle", "main", "-c", "main"), "two containers are named"),
        (("logs", "idle", "main", "more"), "more is one argument too many"),
        (("logs", "idle", "-l", "app=idle"), "name one pod, or select pods with -l"),
    ],
)
def test_a_word_that_means_no_pod_is_an_error(node: OneNode, arguments: tuple[str, ...], words: str) -> None:
    done = kedge(node, *arguments)
    assert done.returncode in (1, 2)
    assert words in done.stderr.decode()
    assert done.stdout == b""


def test_kedge_logs_of_each_container_and_of_the_run_before(node: OneNode) -> None:
    more = '  - {name: side, image: x, command: [sh, -c, "echo side; exec sleep 100000"]}\n'
    node.kubectl("apply", "-f", "-", stdin=pod("parts", "echo main; exec sleep 100000") + more)
    node.kubectl("wait", "pod/parts", "--for=condition=Ready", "--timeout=60s", timeout_s=70)
    assert kedge(node, "logs", "parts", "-c", "side").stdout == b"side\n"
    assert kedge(node, "logs", "parts", "side").stdout == b"side\n"
    first = kedge(node, "logs", "parts")
    assert (first.stdout, first.stderr) == (b"main\n", b'Defaulted container "main" out of: main, side\n')
    assert kedge(node, "exec", "parts", "--", "pwd").stderr == first.stderr
    assert kedge(node, "logs", "parts", "--all-containers", "--prefix").stdout.split(b"\n") == [
        b"[pod/parts/main] main",
        b"[pod/parts/side] side",
        b"",
    ]
    assert kedge(node, "logs", "-l", "app=nothing").stderr == b"No resources found in default namespace.\n"

    command = "test -e once && echo run two && exec sleep 100000; touch once; echo run one; exit 1"
    node.kubectl("apply", "-f", "-", stdin=pod("rerun", command, policy="Always"))
    until(lambda: kedge(node, "logs", "rerun").stdout == b"run two\n", "it has restarted")
    for option in ("-p", "--previous"):
        assert kedge(node, "logs", "rerun", option).stdout == b"run one\n"
    assert b"not found" in kedge(node, "logs", "idle", "-p").stderr


def test_kedge_follows_a_log_as_it_is_written(node: OneNode) -> None:
    node.run("slow", "echo first; while ! test -e go; do sleep 0.1; done; echo last")
    with subprocess.Popen([*KEDGE, "logs", "-f", "slow"], env=node.server.client_environment, stdout=-1) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"first\n"
        assert running.poll() is None
        assert kedge(node, "exec", "slow", "--", "touch", "go").returncode == 0
        assert running.communicate(timeout=60)[0] == b"last\n"
        assert running.returncode == 0


@BOTH
def test_since_leaves_out_older_lines(node: OneNode, program: tuple[str, ...]) -> None:
    name = f"ticks-{len(program)}"
    node.run(name, "echo old; while true; do echo tick; sleep 0.2; done")
    assert b"old\n" in client(node, *program, "logs", name, "--since=1h").stdout
    time.sleep(3.1)
    recent = client(node, *program, "logs", name, "--since=2s").stdout
    assert recent.startswith(b"tick\n")
    assert b"old" not in recent
    assert recent.count(b"tick") < client(node, *program, "logs", name).stdout.count(b"tick")


# -- broken ends -------------------------------------------------------------------------------------


def test_an_agent_killed_half_way_cuts_its_streams_and_the_next_one_serves_again(node: OneNode) -> None:
    environment = node.server.client_environment
    script = "echo $$; sleep 7779"
    with subprocess.Popen(
        ["kubectl", "exec", "idle", "--", "sh", "-c", script], env=environment, stdout=-1, stderr=-1
    ) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        node.kill_agent()
        assert running.wait(60) != 0
    assert "cannot be reached" in node.kubectl("exec", "idle", "--", "true", check=False)
    assert "cannot be reached" in node.kubectl("logs", "idle", check=False)
    assert is_running(pid), "a command without a terminal outlives its client"
    node.restart_agent()
    until(lambda: node.exec("idle", "--", "true").returncode == 0, "the new agent serves")
    assert node.kubectl("logs", "idle") == "started\n"


def test_a_stopping_server_ends_followed_logs_and_lets_a_command_finish(tmp_path: Path) -> None:
    need_kubectl(KUBECTL_STREAMS)
    with running_server(tmp_path / "state") as server, judged_beside(server):
        node = OneNode(server)
        try:
            until(lambda: " Ready" in server.kubectl("get", "nodes"), "the node is ready")
            node.run("idle", "echo started; exec sleep 100000")
            environment = server.client_environment
            follow = subprocess.Popen(["kubectl", "logs", "-f", "idle"], env=environment, stdout=-1, stderr=-1)
            command = subprocess.Popen(
                ["kubectl", "exec", "idle", "--", "sh", "-c", "echo begun; sleep 3; echo done"],
                env=environment,
                stdout=-1,
                stderr=-1,
            )
            for each in (follow, command):
                assert each.stdout is not None
                each.stdout.readline()
            assert server.stop() == 0
            assert command.communicate(timeout=30)[0] == b"done\n"
            assert command.returncode == 0
            follow.communicate(timeout=30)
        finally:
            node.agent.send_signal(signal.SIGTERM)
            assert node.agent.wait(30) == 0
            down_nodes(server)


# -- bounds ------------------------------------------------------------------------------------------


def test_one_stream_too_many_for_a_server_is_refused_until_another_ends(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("limits:\n  http_streams_max: 1\n")
    options = ("--nodes", "1", "--config", str(tmp_path / "config.yaml"))
    with running_up(UpProcess(tmp_path / "state", *options)) as up:
        idle = pod("idle", "echo started; exec sleep 100000").replace("nodeName: only", "nodeName: node-1")
        up.kubectl("apply", "-f", "-", stdin=idle)
        up.kubectl("wait", "pod/idle", "--for=condition=Ready", "--timeout=60s", timeout_s=70)
        path = "/api/v1/namespaces/default/pods/idle/log"
        with (tmp_path / "log").open("wb") as log, up.started("kubectl", "logs", "-f", "idle", stdout=log):
            until(lambda: "started" in (tmp_path / "log").read_text(), "the first stream is open")
            refused = up.kubectl("get", "--raw", path, check=False)
            assert "has 1 open streams of logs and exec: end one, or use another server" in refused
        until(lambda: "started" in up.kubectl("get", "--raw", path, check=False), "its place is free again")
