"""`python -m tests.torture`: every torture test at its full count, then one line of JSON with the sums of all of them.

CI runs the same tests with small counts, among the slow ones. The environment can set other counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.torture.counts import FILE, total

FULL = {
    "KEDGE_TORTURE_KILLS": "500",  # of a process with a SQLite store
    "KEDGE_TORTURE_SERVICE_KILLS": "60",  # of `kedge server`, under clients
    "KEDGE_TORTURE_ROUNDS": "20",  # of `kedge up` in the middle of rollouts, and of each fault of a whole cluster
    "KEDGE_TORTURE_ETCD_ROUNDS": "60",
    "KEDGE_TORTURE_CUTS": "3000",  # power cuts, and as many with syncs that lie
    "KEDGE_TORTURE_DISK_ERRORS": "400",
}
TESTS = (
    "tests/contract/test_sqlite_torture.py",
    "tests/torture",
    "tests/e2e/test_server_kills.py",
    "tests/e2e/test_torture.py",
)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        environment = {**FULL, **os.environ, FILE: str(counts)}
        chosen = sys.argv[1:] or TESTS
        command = [sys.executable, "-m", "pytest", "-s", "-m", "slow", *chosen]
        failed = subprocess.run(command, env=environment, check=False).returncode
        sums = total(counts)
    print(json.dumps(sums), flush=True)
    return int(bool(failed or sums["lost"] or sums["violations"]))


if __name__ == "__main__":
    sys.exit(main())
