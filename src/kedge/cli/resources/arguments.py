"""Arguments and options of the verbs about objects, checked before a server is asked: exit code 2 for a mistake.

Facts of the server, such as its resource types, are checked by the verbs themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

DRY_RUNS = {"none": "", "client": " (dry run)", "server": " (server dry run)"}
"""The values of `--dry-run`, and the words behind each line of output."""

DRY_RUN_OPTION = click.option(
    "--dry-run",
    type=click.Choice(list(DRY_RUNS)),
    default="none",
    help="Write nothing. client: decide here alone; server: the server checks it too.",
)


@contextmanager
def wrong_values() -> Iterator[None]:
    """Errors of a parser about a text from the command line become `UsageError`."""
    from kedge.errors import BadRequest

    try:
        yield
    except BadRequest as error:
        raise click.UsageError(str(error)) from error


class LabelSelectorType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """A label selector, such as `app=web,tier in (a, b)`."""

    name = "selector"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from kedge.api.selectors import parse_label_selector
        from kedge.errors import BadRequest

        try:
            parse_label_selector(str(value))
        except BadRequest as error:
            self.fail(f"{error}: write it like app=web", param, ctx)
        return str(value)


SELECTOR = LabelSelectorType()


def check_path(text: str) -> None:
    """
    Raises:
        UsageError: it is no JSONPath.
    """
    from kedge.cli.resources.jsonpath import JsonPath

    with wrong_values():
        JsonPath(text)


def existing_files(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """The callback of `-f`: each is stdin, a file or a folder."""
    for each in value:
        if each != "-" and not Path(each).exists():
            text = f"there is no {each}: pass a manifest, a folder of them, or -"
            raise click.BadParameter(text, ctx=ctx, param=param)
    return value


# -- which objects ---------------------------------------------------------------------------------


def check_words(words: Iterable[str]) -> None:
    """Arguments are `TYPE`, `TYPE NAME...` or `TYPE/NAME...`.

    Raises:
        UsageError: no type is named, or the forms are mixed.
    """
    words = list(words)
    if not words or not all(words):
        raise click.UsageError("name a resource type, such as pods: `kedge get --types` lists those of the server")
    if not any("/" in word for word in words):
        return
    for word in words:
        kind, slash, name = word.partition("/")
        if not slash:
            raise click.UsageError(f"{word!r} has no type: write every argument as TYPE/NAME, or none of them")
        if not kind or not name:
            raise click.UsageError(f"{word!r} is not TYPE/NAME: write it like deployment/web")


def has_names(words: Sequence[str]) -> bool:
    """Whether arguments name objects, and not only types."""
    return len(words) > 1 or any("/" in word for word in words)


def check_one_source(words: Sequence[str], filenames: Sequence[str]) -> None:
    """Objects are chosen by arguments or by manifests.

    Raises:
        UsageError: both choose, or neither.
    """
    if filenames and words:
        raise click.UsageError("choose objects by manifest or by name, not both: leave out -f or the names")
    if not filenames:
        check_words(words)


def check_named(words: Sequence[str]) -> None:
    """
    Raises:
        UsageError: an argument is a type without the name of an object.
    """
    check_words(words)
    if not has_names(words):
        raise click.UsageError(f"name an object: {words[0]} NAME or {words[0]}/NAME")


def check_targets(
    words: Sequence[str], filenames: Sequence[str] = (), *, selector: str = "", everything: bool = False
) -> None:
    """Objects are chosen in one way: by name, by manifest, by `-l` or by `--all`.

    Raises:
        UsageError: nothing is chosen, or in two ways at once.
    """
    check_one_source(words, filenames)
    named = "-f" if filenames else "the name" if has_names(words) else ""
    ways = [each for each in (named, "-l" if selector else "", "--all" if everything else "") if each]
    if len(ways) > 1:
        raise click.UsageError(f"objects are chosen in one way: leave out {' or '.join(ways)}")
    if not ways:
        raise click.UsageError(f"name an object ({words[0]} NAME or {words[0]}/NAME), select with -l, or give --all")


def check_nodes(names: Sequence[str], selector: str) -> None:
    """
    Raises:
        UsageError: both choose nodes, or neither.
    """
    if bool(names) == bool(selector):
        raise click.UsageError("name nodes, or select them with -l: `kedge get nodes --show-labels` lists both")


def check_grace(*, grace_s: int, now: bool = False, force: bool = False) -> None:
    """
    Raises:
        UsageError: two options give different times to stop.
    """
    if now and grace_s >= 0:
        raise click.UsageError("--now is --grace-period=1: leave out one of both")
    if force and grace_s > 0:
        raise click.UsageError("--force leaves no time to stop: leave out --force or --grace-period")
