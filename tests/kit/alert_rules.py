"""The alert rules, evaluated by real promtool on series that a test made or scraped."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.tools import need_tool

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml"
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
}
"""By name."""
_AT = "35m"


def promtool() -> str:
    return need_tool("promtool", install="apt-get install prometheus")


def evaluate_rules(series: Mapping[str, str], folder: Path) -> list[str]:
    """The alerts that fire after 35 minutes on these series, each with one value a minute.

    promtool is asked to confirm that none fires, and names each that does.
    """
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": f"count(ALERTS{{alertname='{alert}', alertstate='firing'}})", "eval_time": _AT, "exp_samples": []}
            for alert in ALERTS
        ],
    }
    file = folder / "test.json"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run([promtool(), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    fired = re.findall(r"alertname='(\w+)'", said)
    assert (done.returncode == 0) == (not fired), said  # any other failure is a mistake in the test
    return fired
