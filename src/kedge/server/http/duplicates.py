"""Fields that stand twice in one object of a request body. Readers keep the last; strict validation reports each.

JSON bodies without such fields, nearly all, are recognised without a second parse. The texts are those of Kubernetes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from kedge.api.codec import encode_json


class _JsonMembers(list[tuple[str, Any]]):
    """All members of a JSON object, in the order they stand."""


def duplicates_in_json(body: bytes, decoded: Any) -> Iterator[str]:
    """Messages about fields that stand twice. `decoded` is the body as it was read."""
    # A member that was dropped takes its colon with it. A colon inside a string stands in both texts, unless the sender
    # escaped it.
    if b"\\u" not in body and body.count(b":") == encode_json(decoded).count(b":"):
        return
    every = json.loads(body, object_pairs_hook=_JsonMembers, parse_int=str, parse_float=str)
    for path in _repeated(every, ""):
        yield f'duplicate field "{path}"'


def _repeated(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _JsonMembers):
        times: dict[str, int] = {}
        for name, item in value:
            place = f"{path}.{name}" if path else name
            times[name] = times.get(name, 0) + 1
            if times[name] == 2:
                yield place
            yield from _repeated(item, place)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _repeated(item, f"{path}[{index}]")


def duplicates_in_yaml(root: yaml.Node) -> Iterator[str]:
    """As `duplicates_in_json`, for the nodes of a YAML document."""
    left, seen = [root], set()
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            names = set()
            for key, item in node.value:
                left += (key, item)
                if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                    if key.value in names:
                        line = key.start_mark.line + 1
                        yield f'yaml: unmarshal errors: line {line}: key "{key.value}" already set in map'
                    names.add(key.value)
        elif isinstance(node, yaml.SequenceNode):
            left += node.value


_MERGE = "tag:yaml.org,2002:merge"
