"""Kubeconfig files: the address of a server, the authority that signs for it, and the caller's identity."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from kedge.errors import Terminal


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """How to reach one server, and as which user."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    token: str = ""
    namespace: str = "default"


def read_kubeconfig(path: Path, *, context: str = "") -> ServerAddress:
    """The server of a context; of the current one if none is named.

    Raises:
        Terminal: the file cannot be read, or lacks a part; the message names it.
    """
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise Terminal(f"{path} cannot be read as a kubeconfig: {error}") from error
    if not isinstance(config, Mapping):
        raise Terminal(f"{path} is not a kubeconfig: it needs clusters, users and contexts")
    chosen = context or str(config.get("current-context") or "")
    scope = _named(config, "contexts", chosen, path).get("context") or {}
    cluster = _named(config, "clusters", str(scope.get("cluster")), path).get("cluster") or {}
    user = _named(config, "users", str(scope.get("user")), path).get("user") or {}
    url = urlsplit(str(cluster.get("server") or ""))
    if url.scheme not in ("http", "https") or not url.hostname:
        raise Terminal(f"{path}: the server of {chosen} must be an http or https address: {cluster.get('server')!r}")
    return ServerAddress(
        url.hostname,
        url.port or (443 if url.scheme == "https" else 80),
        _tls(cluster, user, path) if url.scheme == "https" else None,
        str(user.get("token") or ""),
        str(scope.get("namespace") or "default"),
    )


def _named(config: Mapping[str, Any], part: str, name: str, path: Path) -> Mapping[str, Any]:
    for each in config.get(part) or ():
        if isinstance(each, Mapping) and each.get("name") == name:
            return each
    raise Terminal(f"{path} has no entry {name!r} in {part}: name one that it has with --context")


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], path: Path) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(
            cadata=(_part(cluster, "certificate-authority", path) or b"").decode() or None
        )
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate, key = _part(user, "client-certificate", path), _part(user, "client-key", path)
        if certificate is not None and key is not None:
            _load(context, key + b"\n" + certificate)
    except (OSError, ValueError) as error:
        raise Terminal(f"{path}: its certificates cannot be used ({error}): get a new kubeconfig") from error
    return context


def _part(section: Mapping[str, Any], name: str, path: Path) -> bytes | None:
    """A value that is inline as `NAME-data`, or in a file; relative names are relative to the kubeconfig."""
    if section.get(f"{name}-data"):
        return base64.b64decode(section[f"{name}-data"], validate=True)
    if section.get(name):
        return (path.parent / str(section[name])).read_bytes()
    return None


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a certificate with its key. `ssl` reads them from a file only: one that this user alone can read."""
    descriptor, name = tempfile.mkstemp(prefix="kedge-")
    try:
        os.write(descriptor, pem)
        os.close(descriptor)
        context.load_cert_chain(name)
    finally:
        Path(name).unlink()
