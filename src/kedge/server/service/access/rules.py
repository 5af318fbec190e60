"""Rules of roles: whether one allows a request, and whether rules cover others. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Final

from kedge.api.access import Attributes
from kedge.api.views import PolicyRule
from kedge.errors import Forbidden

EVERY: Final = "*"
EVERYTHING: Final = (
    PolicyRule(verbs=(EVERY,), api_groups=(EVERY,), resources=(EVERY,)),
    PolicyRule(verbs=(EVERY,), non_resource_urls=(EVERY,)),
)
"""The rules of an administrator."""


def allows_kind_of(rule: PolicyRule, wanted: Attributes) -> bool:
    """Whether a rule allows such requests, at least for the names that it lists."""
    return (
        _has(rule.verbs, wanted.verb)
        and _has(rule.api_groups, wanted.group)
        and _has_resource(rule.resources, wanted.resource, wanted.subresource)
    )


def allows_path(rules: Iterable[PolicyRule], verb: str, path: str) -> bool:
    """Whether any rule allows a request for a path that is no resource."""
    return any(
        _has(rule.verbs, verb) and any(_has_path(each, path) for each in rule.non_resource_urls) for rule in rules
    )


def missing_rules(
    owned: Sequence[PolicyRule], wanted: Sequence[PolicyRule], *, combinations_max: int
) -> list[PolicyRule]:
    """The parts of `wanted` that `owned` does not cover, each with one verb, group and resource.

    Raises:
        Forbidden: a rule has more combinations than may be examined.
    """
    missing: dict[PolicyRule, None] = {}
    left = combinations_max
    for rule in wanted:
        # A rule that is covered as a whole needs no combinations; one with too many is not even compared.
        size = combinations([rule])
        if size <= combinations_max and any(_covers(each, rule) for each in owned):
            continue
        left -= size
        if left < 0:
            raise Forbidden(
                f"the rules have more than {combinations_max} combinations of verbs, groups, resources and names:"
                " split them over several roles"
            )
        missing.update((part, None) for part in _parts(rule) if not any(_covers(each, part) for each in owned))
    return list(missing)


def combinations(rules: Iterable[PolicyRule]) -> int:
    """How many rules with one verb, group, resource and name, or path, are in these."""
    return sum(
        len(rule.verbs) * len(rule.non_resource_urls)
        or len(rule.verbs) * len(rule.api_groups) * len(rule.resources) * max(1, len(rule.resource_names))
        for rule in rules
    )


def rule_text(rule: PolicyRule) -> str:
    """A rule as Kubernetes prints it in refusals."""
    parts = (
        ("NonResourceURLs", rule.non_resource_urls),
        ("APIGroups", rule.api_groups),
        ("Resources", rule.resources),
        ("ResourceNames", rule.resource_names),
        ("Verbs", rule.verbs),
    )
    shown = (f"{name}:[{', '.join(f'{each!r}' for each in values)}]" for name, values in parts if values)
    return "{" + ", ".join(shown).replace("'", '"') + "}"


def _has(values: Sequence[str], value: str) -> bool:
    return EVERY in values or value in values


def _has_resource(values: Sequence[str], resource: str, subresource: str) -> bool:
    if EVERY in values:
        return True
    if not subresource:
        return resource in values
    return f"{resource}/{subresource}" in values or f"*/{subresource}" in values


def _has_path(pattern: str, path: str) -> bool:
    return pattern in (EVERY, path) or (pattern.endswith(EVERY) and path.startswith(pattern[:-1]))


def _parts(rule: PolicyRule) -> Iterable[PolicyRule]:
    if rule.non_resource_urls:
        for verb, path in product(rule.verbs, rule.non_resource_urls):
            yield PolicyRule(verbs=(verb,), non_resource_urls=(path,))
        return
    for verb, group, resource in product(rule.verbs, rule.api_groups, rule.resources):
        part = PolicyRule(verbs=(verb,), api_groups=(group,), resources=(resource,))
        if not rule.resource_names:
            yield part
        for name in rule.resource_names:
            yield PolicyRule(verbs=(verb,), api_groups=(group,), resources=(resource,), resource_names=(name,))


def _covers(owned: PolicyRule, wanted: PolicyRule) -> bool:
    """Whether one rule alone allows everything that the other does."""
    if not all(_has(owned.verbs, each) for each in wanted.verbs):
        return False
    if wanted.non_resource_urls:
        # A pattern counts as a path here: only a wider pattern of the same shape covers it.
        return all(any(_has_path(own, each) for own in owned.non_resource_urls) for each in wanted.non_resource_urls)
    return (
        bool(owned.resources)
        and all(_has(owned.api_groups, each) for each in wanted.api_groups)
        and all(_covers_resource(owned.resources, each) for each in wanted.resources)
        and (not owned.resource_names or (bool(wanted.resource_names) and _within(wanted, owned)))
    )


def _covers_resource(owned: Sequence[str], wanted: str) -> bool:
    if EVERY in owned or wanted in owned:
        return True
    _, slash, subresource = wanted.partition("/")
    return bool(slash) and f"*/{subresource}" in owned


def _within(wanted: PolicyRule, owned: PolicyRule) -> bool:
    return set(wanted.resource_names) <= set(owned.resource_names)
