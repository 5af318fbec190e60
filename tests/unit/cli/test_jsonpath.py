"""JSONPath templates. `tests/e2e/test_cli_objects.py` compares some with kubectl."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.cli.resources.jsonpath import JsonPath
from kedge.errors import BadRequest

LIST: dict[str, Any] = {
    "items": [
        {"metadata": {"name": "a", "labels": {"app.kubernetes.io/name": "x"}}, "spec": {"n": 1, "on": True}},
        {"metadata": {"name": "b"}, "spec": {"n": 20}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}},
    ]
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.items[*].metadata.name}", "a b"),
        ("{.items[0].metadata.name}", "a"),
        ("{.items[-1].metadata.name}", "b"),
        ("{.items[0:1].metadata.name}", "a"),
        ("{$.items[0].spec.on}", "true"),
        ("{..name}", "a b"),
        ("{.items[?(@.spec.n>5)].metadata.name}", "b"),
        ('{.items[?(@.metadata.name=="a")].spec.n}', "1"),
        ("{.items[?(@.status)].metadata.name}", "b"),
        ('{range .items[*]}{.metadata.name}{"\\t"}{.spec.n}{"\\n"}{end}', "a\t1\nb\t20\n"),
        ("{.items[0].metadata.labels.app\\.kubernetes\\.io/name}", "x"),
        ("{.items[0].metadata['name']}", "a"),
        ("{.items[0].spec}", '{"n":1,"on":true}'),
        ("{.missing}", ""),
        (".items[0].metadata.name", "a"),
        ("name: {.items[0].metadata.name}!", "name: a!"),
        ('{.items[1].status.conditions[?(@.type=="Ready")].status}', "True"),
    ],
)
def test_a_template_is_printed(template: str, text: str) -> None:
    assert JsonPath(template).text(LIST) == text


@pytest.mark.parametrize("template", ["{.items[}", "{range .items[*]}x", "{end}", "{.a", "{.items[?(x)]}"])
def test_a_malformed_template_is_refused_with_its_text(template: str) -> None:
    with pytest.raises(BadRequest, match="jsonpath"):
        JsonPath(template)
