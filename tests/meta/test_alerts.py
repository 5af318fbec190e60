"""The alert rules and the dashboard: real promtool evaluates them, and every metric and label in them exists."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kit.alert_rules import ALERTS, RULES, evaluate_rules, promtool
from tests.kit.declared_metrics import declared_metrics

from kedge.slo import ALERT_BURNS

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "kedge.json"
SCRAPE = ROOT / "deploy" / "prometheus" / "prometheus.yaml"
LABELS = {
    sample: {*each.labels, *(["le"] if sample.endswith("_bucket") else [])}
    for each in declared_metrics()
    for sample in each.samples
}
OF_THE_SCRAPE = {"instance", "job"}

BURN = 'kedge_slo_burn_ratio{slo="%s",window="%s",instance="a"}'
FIRING: dict[str, dict[str, str]] = {
    "KedgePodsUnschedulable": {'kedge_scheduler_pending{stage="unschedulable",instance="a"}': "2x40"},
    "KedgeTimeToBoundBurn": {BURN % ("time-to-bound", w): "20x40" for w in ("5m", "1h")},
    "KedgeTimeToReadyBurn": {BURN % ("time-to-ready", w): "7x40" for w in ("30m", "6h")},
    "KedgeApiAvailabilityBurn": {BURN % ("api-availability", w): "20x40" for w in ("5m", "1h")},
    "KedgeNoLeader": {
        'kedge_runtime_leading{lease="l",instance="a"}': "1 1 0x40",
        'kedge_runtime_leading{lease="l",instance="b"}': "0x40",
    },
    "KedgeCacheStale": {'kedge_cache_age_seconds{cache="Pod",instance="a"}': "0+60x40"},
    "KedgeQueueOld": {
        'kedge_queue_oldest_seconds{queue="deployment",instance="a"}': "0+60x40",
        'kedge_runtime_leading{lease="l",instance="a"}': "1x40",
    },
    "KedgeGenerationBehind": {'kedge_generation_ahead_seconds{kind="Deployment",instance="a"}': "0+60x40"},
    "KedgeStoreAlarm": {'kedge_store_alarms_total{alarm="write failed",instance="a"}': "_x22 1x20"},
    "KedgeDecisionRecordsLost": {'kedge_decisions_log_lost_total{instance="a"}': "0x20 5x20"},
}
"""Series that raise each alert, one value a minute."""
STILL: dict[str, dict[str, str]] = {
    "KedgePodsUnschedulable": {
        'kedge_scheduler_pending{stage="unschedulable",instance="a"}': "0x25 2x5 0x10",
        'kedge_scheduler_pending{stage="active",instance="a"}': "9x40",
    },
    "KedgeTimeToBoundBurn": {  # the burn has ended: only the long window still shows it
        BURN % ("time-to-bound", "5m"): "_x40",
        BURN % ("time-to-bound", "1h"): "20x40",
    },
    "KedgeTimeToReadyBurn": {BURN % ("time-to-ready", w): "5x40" for w in ("5m", "30m", "1h", "6h")},
    "KedgeApiAvailabilityBurn": {BURN % ("api-availability", w): "_x40" for w in ("5m", "1h")},
    "KedgeNoLeader": {  # a standby does not lead, and need not
        'kedge_runtime_leading{lease="l",instance="a"}': "1x40",
        'kedge_runtime_leading{lease="l",instance="b"}': "0x40",
    },
    "KedgeCacheStale": {'kedge_cache_age_seconds{cache="Pod",instance="a"}': "6x40"},
    "KedgeQueueOld": {  # keys of a standby wait for ever
        'kedge_queue_oldest_seconds{queue="deployment",instance="b"}': "0+60x40",
        'kedge_runtime_leading{lease="l",instance="b"}': "0x40",
        'kedge_runtime_leading{lease="l",instance="a"}': "1x40",
    },
    "KedgeGenerationBehind": {'kedge_generation_ahead_seconds{kind="Deployment",instance="a"}': "3x40"},
    "KedgeStoreAlarm": {'kedge_store_alarms_total{alarm="write failed",instance="a"}': "4x40"},
    "KedgeDecisionRecordsLost": {'kedge_decisions_log_lost_total{instance="a"}': "5x40"},
}
"""Series as near to an alert as they may come without raising it."""


def expressions() -> dict[str, str]:
    """The expressions of the dashboard, by the title of their panel."""
    found = {}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "5m").replace("$job", ".*")
            found[f"{panel['title']} {target['refId']}"] = expression
    return found


def check_series(expression: str) -> None:
    """Every metric exists, and has the labels by which it is selected and grouped."""
    names = set(re.findall(r"\bkedge_[a-z0-9_]+", expression))
    assert names, expression
    assert names - set(LABELS) == set()
    known = set.union(*(LABELS[name] for name in names)) | OF_THE_SCRAPE
    grouped = {each.strip() for part in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for each in part.split(",")}
    assert grouped <= known, expression
    for name, selector in re.findall(r"\b(kedge_[a-z0-9_]+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)\s*[=!]", selector)) <= LABELS[name] | OF_THE_SCRAPE, expression


@pytest.mark.parametrize("alert", ALERTS)
def test_the_series_of_an_alert_exist(alert: str) -> None:
    check_series(ALERTS[alert]["expr"])
    shown = set(re.findall(r"\$labels\.(\w+)", json.dumps(ALERTS[alert]["annotations"])))
    grouped = {
        each.strip() for part in re.findall(r"by \(([^)]*)\)", ALERTS[alert]["expr"]) for each in part.split(",")
    }
    assert shown <= grouped, "an annotation shows a label that the expression has aggregated away"


@pytest.mark.parametrize("title", expressions())
def test_the_series_of_a_panel_exist(title: str) -> None:
    check_series(expressions()[title])


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_names_its_runbook(alert: str) -> None:
    page = ROOT / ALERTS[alert]["annotations"]["runbook"]
    assert page.parent == ROOT / "docs" / "runbooks"
    assert page.read_text().splitlines()[0] == f"# {alert}"
    assert f"| {alert} | [{page.stem}]({page.name}) |" in (page.parent / "README.md").read_text()
    assert ALERTS[alert]["labels"]["severity"] in ("page", "ticket")


def test_every_page_is_of_an_alert() -> None:
    pages = {each.name for each in (ROOT / "docs" / "runbooks").glob("*.md")} - {"README.md"}
    assert pages == {Path(each["annotations"]["runbook"]).name for each in ALERTS.values()}


def test_promtool_accepts_the_rules_and_the_scrape_configuration() -> None:
    for words in (["rules", str(RULES)], ["config", "--syntax-only", str(SCRAPE)]):
        done = subprocess.run([promtool(), "check", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"panel{number}", "expr": each} for number, each in enumerate(expressions().values())]
    file = tmp_path / "panels.yaml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run([promtool(), "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_series_that_raise_it_and_series_that_do_not() -> None:
    assert set(FIRING) == set(STILL) == set(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_promtool_raises_an_alert_on_its_series_and_not_otherwise(alert: str, tmp_path: Path) -> None:
    assert alert in evaluate_rules(FIRING[alert], tmp_path)
    assert evaluate_rules(STILL[alert], tmp_path) == []


def test_the_dashboard_has_a_data_source_of_the_reader() -> None:
    board: dict[str, Any] = json.loads(DASHBOARD.read_text())
    assert {each["name"] for each in board["templating"]["list"]} == {"datasource", "job"}
    places = [tuple(each["gridPos"][side] for side in "xy") for each in board["panels"]]
    assert len(places) == len(set(places)), "two panels are in one place"
    assert len({each["id"] for each in board["panels"]}) == len(places)


def test_the_rules_are_one_file_that_the_scrape_configuration_names() -> None:
    assert yaml.safe_load(SCRAPE.read_text())["rule_files"] == [RULES.name]


def test_recording_windows_open_at_the_burn_rates_of_the_alerts() -> None:
    found = re.findall(r'window="(\w+)"\}\) > ([\d.]+)', RULES.read_text())
    assert found == [(window, f"{most:g}") for long, short, most in ALERT_BURNS for window in (long, short)] * 3
