"""The character rules of Kubernetes for names, labels and ports, one function each.

Every function returns Kubernetes' own error message, or the empty string. Results are cached: the same few names recur
in every object.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import TypeVar

from kedge.caches import remembered

_T = TypeVar("_T")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+", re.ASCII)
_ENV_NAME = re.compile(r"[^=\x00-\x1f\x7f]+")
_PORT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)

LABEL_LENGTH_MAX = 63
SUBDOMAIN_LENGTH_MAX = 253

_REMEMBERED_LENGTH_MAX = SUBDOMAIN_LENGTH_MAX + 1 + LABEL_LENGTH_MAX
"""No valid name is longer. Longer ones are not cached, so that they cannot fill memory."""


def remembered_name(of_name: Callable[[str], _T]) -> Callable[[str], _T]:
    """A function of a name from a request, computed once a name. The result is a message at most."""
    return remembered(entries=16_384, entry_bytes=2048, key_length=_REMEMBERED_LENGTH_MAX)(of_name)


_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'example.com', regex used for validation is"
    " '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with"
    " an alphanumeric character (e.g. 'my-name', or '123-abc', regex used for validation is"
    " '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_LABEL_1035_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character,"
    " and end with an alphanumeric character (e.g. 'my-name', or 'abc-123', regex used for validation is"
    " '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_QUALIFIED_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
    " character (e.g. 'MyName', or 'my.name', or '123-abc', regex used for validation is"
    " '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'MyValue', or 'my_value', or '12345', regex used for validation is"
    " '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def subdomain_problem(name: str) -> str:
    """A name of most objects: `web-7f2.example`. Not cached: few of them recur."""
    if len(name) > SUBDOMAIN_LENGTH_MAX:
        return f"must be no more than {SUBDOMAIN_LENGTH_MAX} characters"
    return "" if _SUBDOMAIN.fullmatch(name) else _SUBDOMAIN_RULE


@remembered_name
def label_problem(name: str) -> str:
    """A name that is one DNS label: a namespace, a container."""
    if len(name) > LABEL_LENGTH_MAX:
        return f"must be no more than {LABEL_LENGTH_MAX} characters"
    return "" if _LABEL.fullmatch(name) else _LABEL_RULE


def label_1035_problem(name: str) -> str:
    """A DNS label that starts with a letter: a Service."""
    if len(name) > LABEL_LENGTH_MAX:
        return f"must be no more than {LABEL_LENGTH_MAX} characters"
    return "" if _LABEL_1035.fullmatch(name) else _LABEL_1035_RULE


@remembered_name
def qualified_name_problem(name: str) -> str:
    """A label key, a taint key, a resource: `app`, `example.com/gpu`."""
    prefix, slash, rest = name.rpartition("/")
    if slash:
        if not prefix:
            return "prefix part must be non-empty"
        if "/" in prefix:
            return (
                f"a qualified name {_QUALIFIED_RULE.removeprefix('name part ')} with an optional DNS subdomain prefix"
            )
        problem = subdomain_problem(prefix)
        if problem:
            return f"prefix part {problem}"
    if not rest:
        return "name part must be non-empty"
    if len(rest) > LABEL_LENGTH_MAX:
        return f"name part must be no more than {LABEL_LENGTH_MAX} characters"
    return "" if _QUALIFIED.fullmatch(rest) else _QUALIFIED_RULE


@remembered_name
def label_value_problem(value: str) -> str:
    if len(value) > LABEL_LENGTH_MAX:
        return f"must be no more than {LABEL_LENGTH_MAX} characters"
    return "" if not value or _QUALIFIED.fullmatch(value) else _VALUE_RULE


@remembered_name
def config_key_problem(key: str) -> str:
    """A key of a ConfigMap or a Secret: it becomes a file name."""
    if len(key) > SUBDOMAIN_LENGTH_MAX:
        return f"must be no more than {SUBDOMAIN_LENGTH_MAX} characters"
    if key in (".", "..") or key.startswith(".."):
        return "must not be '.', nor begin with '..'"
    if not _CONFIG_KEY.fullmatch(key):
        return "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
    return ""


@remembered_name
def env_name_problem(name: str) -> str:
    return "" if _ENV_NAME.fullmatch(name) else "a valid environment variable name has no '=' and no control characters"


@remembered_name
def port_name_problem(name: str) -> str:
    """An IANA service name: the name of a container's port."""
    if len(name) > 15:
        return "must be no more than 15 characters"
    if not _PORT_NAME.fullmatch(name) or "--" in name:
        return "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-), one at a time, inside"
    return "" if any(char.isalpha() for char in name) else "must contain at least one letter (a-z)"


def path_segment_problem(name: str) -> str:
    """A name that is one part of a path: a role may be called `system:node`."""
    if name in (".", ".."):
        return f"may not be '{name}'"
    found = next((part for part in ("/", "%") if part in name), "")
    return f"may not contain '{found}'" if found else ""


def port_number_problem(number: int) -> str:
    return "" if 1 <= number <= 65535 else "must be between 1 and 65535, inclusive"


def ip_problem(address: str) -> str:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
    return ""
