"""Kubeconfig files: the address of a server, the authority that signs for it, and the caller's identity."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping, Sequence
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

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls is not None else 'http'}://{host}:{self.port}"


def read_kubeconfig(*paths: Path, context: str = "") -> ServerAddress:
    """The server of a context, or of the current one if none is named. The first of the files with an entry wins.

    Raises:
        Terminal: a file cannot be read, or a part is in none of them; the message names it.
    """
    files = KubeconfigFiles(paths)
    chosen = context or files.current_context
    scope, _ = files.named("contexts", chosen)
    cluster, cluster_path = files.named("clusters", str(scope.get("cluster")))
    user, user_path = files.named("users", str(scope.get("user")))
    url = urlsplit(str(cluster.get("server") or ""))
    if url.scheme not in ("http", "https") or not url.hostname:
        raise Terminal(
            f"{cluster_path}: the server of {chosen} must be an http or https address: {cluster.get('server')!r}"
        )
    return ServerAddress(
        url.hostname,
        url.port or (443 if url.scheme == "https" else 80),
        _tls(cluster, cluster_path, user, user_path) if url.scheme == "https" else None,
        str(user.get("token") or ""),
        str(scope.get("namespace") or "default"),
    )


class KubeconfigFiles:
    """Kubeconfig files as one, merged as kubectl does."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = [(path, _document(path)) for path in paths]

    @property
    def current_context(self) -> str:
        found = (str(config.get("current-context") or "") for _, config in self._files)
        return next((each for each in found if each), "")

    def named(self, part: str, name: str) -> tuple[Mapping[str, Any], Path]:
        """An entry of `clusters`, `users` or `contexts`, and its file, to which names of files in it are relative.

        Raises:
            Terminal: there is none.
        """
        for path, config in self._files:
            for each in config.get(part) or ():
                if isinstance(each, Mapping) and each.get("name") == name:
                    return each.get(part.removesuffix("s")) or {}, path
        where = ", ".join(str(path) for path, _ in self._files)
        raise Terminal(f"{where} has no entry {name!r} in {part}: name one that it has with --context")


def _document(path: Path) -> Mapping[str, Any]:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, ValueError) as error:
        why = " ".join(str(error).split())
        raise Terminal(f"{path} cannot be read as a kubeconfig ({why}): name another with --kubeconfig") from error
    if not isinstance(config, Mapping):
        raise Terminal(f"{path} is not a kubeconfig, which has clusters, users and contexts: give another")
    return config


def _tls(cluster: Mapping[str, Any], cluster_path: Path, user: Mapping[str, Any], user_path: Path) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(
            cadata=(_part(cluster, "certificate-authority", cluster_path) or b"").decode() or None
        )
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate, key = _part(user, "client-certificate", user_path), _part(user, "client-key", user_path)
        if certificate is not None and key is not None:
            _load(context, key + b"\n" + certificate)
    except (OSError, ValueError) as error:
        raise Terminal(f"{user_path}: its certificates cannot be used ({error}): get a new kubeconfig") from error
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
