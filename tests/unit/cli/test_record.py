"""`kedge record list` against a server: its last line, and its document, state the moment and what the list lacks."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from click.testing import CliRunner
from tests.kit.api_server import local_api
from tests.kit.loops import on_loop
from tests.kit.raw_http import sent

from kedge.cli import main

COVERAGE = (
    r"at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: %d windows, none left out; those of rollouts and policy changes are in"
    r" each process alone, and are not listed"
)


@on_loop
async def test_the_list_of_windows_ends_with_its_coverage(tmp_path: Path) -> None:
    async with local_api() as (_, port):
        config = {
            "current-context": "kedge",
            "clusters": [{"name": "kedge", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "contexts": [{"name": "kedge", "context": {"cluster": "kedge", "user": "kedge"}}],
            "users": [{"name": "kedge", "user": {}}],
        }
        (tmp_path / "config").write_text(json.dumps(config))

        async def listed(*more: str) -> str:
            words = ["record", "list", "--kubeconfig", str(tmp_path / "config"), *more]
            done = await asyncio.to_thread(CliRunner().invoke, main, words)
            assert done.exit_code == 0, done.output
            return done.output

        assert re.fullmatch(rf"no window is open by hand or by an alert\n\n{COVERAGE % 0}\n", await listed())
        spec = {"until": "2999-01-01T00:00:00Z", "reason": "alert"}
        body = {"apiVersion": "kedge.dev/v1", "kind": "RecordingWindow", "metadata": {"name": "slow"}, "spec": spec}
        code, _, _ = await sent(port, "POST", "/apis/kedge.dev/v1/recordingwindows", body)
        assert code == 201
        assert re.search(rf"^slow +open .* alert\n\n{COVERAGE % 1}$", await listed(), re.M)
        document = json.loads(await listed("-o", "json"))
        assert document["kind"] == "RecordingWindowList"
        assert [each["metadata"]["name"] for each in document["items"]] == ["slow"]
        (coverage,) = document["coverage"]
        assert re.fullmatch(COVERAGE % 1, coverage)
