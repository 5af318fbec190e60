"""The options `-f` and `-R` of commands that read manifests. They are apart from the reader, which imports YAML."""

from __future__ import annotations

import click

from kedge.cli.resources.arguments import existing_files

FILES_OPTION = click.option(
    "--filename",
    "-f",
    "filenames",
    multiple=True,
    metavar="FILE|-|DIR",
    callback=existing_files,
    help="Manifest, stdin, or a folder of manifests; may be repeated.",
)

RECURSIVE_OPTION = click.option("--recursive", "-R", is_flag=True, help="Also the folders in a folder of -f.")
