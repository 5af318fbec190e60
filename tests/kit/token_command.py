"""`kedge token` as a process, for the administrator of a server."""

from __future__ import annotations

import subprocess
import sys

from tests.kit.api_server import ServerProcess


def token_command(server: ServerProcess, *arguments: str, check: bool = True) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kedge", "token", *arguments],
        env=server.client_environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout + done.stderr
