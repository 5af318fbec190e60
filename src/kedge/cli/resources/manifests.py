"""Manifests from files, folders and stdin: YAML with several documents, JSON, and Lists, as one sequence of objects."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from kedge.errors import BadRequest

SUFFIXES = (".yaml", ".yml", ".json")


class Manifest(NamedTuple):
    """One object, and where it was read."""

    body: dict[str, Any]
    where: str


def read_manifests(filenames: Iterable[str], *, recursive: bool = False) -> list[Manifest]:
    """Every object, in order. `recursive` reads folders in folders too.

    Raises:
        BadRequest: a file cannot be read, or is no manifest; the message names the file and document.
    """
    named = tuple(filenames)
    found = [each for name in named for text, where in _texts(name, recursive) for each in _objects(text, where)]
    if not found:
        raise BadRequest(f"no objects in {', '.join(named)}: a manifest has apiVersion, kind and metadata.name")
    return found


def _texts(name: str, recursive: bool) -> Iterator[tuple[str, str]]:
    if name == "-":
        yield sys.stdin.read(), "stdin"
        return
    path = Path(name)
    try:
        inside = path.rglob("*") if recursive else path.glob("*")
        files = sorted(each for each in inside if each.suffix in SUFFIXES and each.is_file())
        for each in files if path.is_dir() else [path]:
            yield each.read_text(encoding="utf-8"), str(each)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadRequest(f"{name} cannot be read: {reason}; pass a manifest, a folder of them, or -") from error


def _objects(text: str, where: str) -> Iterator[Manifest]:
    try:
        documents = list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        raise BadRequest(f"{where} is not YAML: {' '.join(str(error).split())}; correct it and apply again") from error
    for number, document in enumerate(documents, 1):
        place = where if len(documents) == 1 else f"{where}, document {number}"
        if document is None:
            continue
        yield from _manifests(document, place)


def _manifests(document: Any, where: str) -> Iterator[Manifest]:
    if not isinstance(document, dict) or not document.get("apiVersion") or not document.get("kind"):
        raise BadRequest(f"{where} is no manifest: it needs apiVersion and kind")
    if str(document["kind"]).endswith("List") and isinstance(document.get("items"), list):
        for number, item in enumerate(document["items"], 1):
            yield from _manifests(item, f"{where}, item {number}")
        return
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        raise BadRequest(f"{where}: the {document['kind']} has no metadata.name: give it one")
    yield Manifest(document, where)
