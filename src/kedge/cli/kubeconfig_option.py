"""Kubeconfig files on the command line: one file, or the list in `KUBECONFIG`, which is merged as kubectl does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


def kubeconfig_files(text: str) -> tuple[Path, ...]:
    """The files that exist of one file or a list such as `a:b`, each once. kubectl leaves out missing ones too."""
    if Path(text).is_file():
        return (Path(text),)
    return tuple(dict.fromkeys(Path(each) for each in text.split(os.pathsep) if each and Path(each).is_file()))


class KubeconfigType(click.Path):
    """One kubeconfig, or a list of them; the value is a tuple of paths."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        found = kubeconfig_files(str(value))
        if not found:
            self.fail(f"{value} is no file: name a kubeconfig, such as STATE/admin.kubeconfig", param, ctx)
        return found


KUBECONFIG_OPTION = click.option(
    "--kubeconfig",
    type=KubeconfigType(),
    envvar="KUBECONFIG",
    required=True,
    help="The server and this component's identity.",
)
