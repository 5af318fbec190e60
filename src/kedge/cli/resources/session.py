"""One command's session with one server: which server, as which user, in which namespace; errors as sentences.

The server comes from `--kubeconfig`, `--state`, `KUBECONFIG`, the local cluster's state folder or `~/.kube/config`: the
first of these that is there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kedge.api.wellknown import DISCOVERY_GROUP
from kedge.cli.kubeconfig_option import kubeconfig_files
from kedge.cli.resources.arguments import check_words
from kedge.cli.resources.next_steps import with_next_step
from kedge.errors import Forbidden, KedgeError, NotFound, Terminal, Unauthorized, Unavailable

if TYPE_CHECKING:
    from kedge.cli.resources.catalog import Catalog, ResourceType
    from kedge.client.http import RestClient, ServerAddress

AGGREGATED = f"application/json;v=v2;g={DISCOVERY_GROUP};as=APIGroupDiscoveryList"
PAGE = 500
"""Objects in one page of a list."""


class IncompleteCommand(click.ClickException):
    """A command that could not do all of its work. Its message is one sentence."""


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """The options that choose a server and a namespace."""

    kubeconfig: Path | None = None
    context: str = ""
    state: Path | None = None
    namespace: str = ""

    def paths(self) -> tuple[Path, ...]:
        """The kubeconfig files; several only if `KUBECONFIG` lists several.

        Raises:
            UsageError: the file that is named is not there.
            NotFound: there is none.
        """
        from kedge.cli.up import default_state, no_cluster

        if self.kubeconfig is not None:
            if not self.kubeconfig.is_file():
                raise click.UsageError(f"there is no kubeconfig {self.kubeconfig}: name another, or start a `kedge up`")
            return (self.kubeconfig,)
        if self.state is not None:
            own = self.state / "admin.kubeconfig"
            if not own.is_file():
                raise NotFound(no_cluster(self.state))
            return (own,)
        if listed := kubeconfig_files(os.environ.get("KUBECONFIG", "")):
            return listed
        for each in (default_state() / "admin.kubeconfig", Path.home() / ".kube" / "config"):
            if each.is_file():
                return (each,)
        raise NotFound("there is no cluster: start one with `kedge up`, or name one with --kubeconfig or --state")

    def address(self) -> ServerAddress:
        """The server and the identity for it.

        Raises:
            UsageError: the kubeconfig or the context that is named is not there.
            NotFound: there is no kubeconfig.
            Terminal: the kubeconfig cannot be used.
        """
        from kedge.client.http import read_kubeconfig
        from kedge.client.http.kubeconfig import KubeconfigFiles

        paths = self.paths()
        if self.context:
            files = KubeconfigFiles(paths)
            try:
                files.named("contexts", self.context)
            except Terminal as error:
                raise click.UsageError(str(error)) from error
        return read_kubeconfig(*paths, context=self.context)


class Session:
    """One server, as one command uses it."""

    def __init__(self, rest: RestClient, namespace: str, address: ServerAddress) -> None:
        self.rest = rest
        self.namespace = namespace
        self.address = address
        self._catalog: Catalog | None = None

    async def catalog(self) -> Catalog:
        """The server's resource types, read once."""
        from kedge.cli.resources.catalog import catalog_of

        if self._catalog is None:
            documents = [await self.rest.call("GET", path, accept=AGGREGATED) for path in ("/api", "/apis")]
            self._catalog = catalog_of(documents)
        return self._catalog

    def path(self, kind: ResourceType, name: str = "", subresource: str = "", namespace: str | None = None) -> str:
        return kind.path(self.namespace if namespace is None else namespace, name, subresource)

    async def get(self, kind: ResourceType, name: str, namespace: str | None = None) -> dict[str, Any]:
        found: dict[str, Any] = await self.rest.call("GET", self.path(kind, name, namespace=namespace))
        return found

    async def find(self, kind: ResourceType, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        try:
            return await self.get(kind, name, namespace)
        except NotFound:
            return None

    async def list(
        self, kind: ResourceType, query: Mapping[str, str] | None = None, *, everywhere: bool = False
    ) -> list[dict[str, Any]]:
        """Every object of a type, page by page."""
        namespace = "" if everywhere else None
        found: list[dict[str, Any]] = []
        parameters = {**(query or {}), "limit": str(PAGE)}
        while True:
            page = await self.rest.call("GET", self.path(kind, namespace=namespace), query=parameters)
            for each in page.get("items") or ():
                found.append({"apiVersion": kind.api_version, "kind": kind.kind, **each})
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return found
            parameters["continue"] = token

    async def patch(
        self,
        kind: ResourceType,
        name: str,
        body: Any,
        *,
        subresource: str = "",
        patch_type: str = "merge",
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        found: dict[str, Any] = await self.rest.call(
            "PATCH",
            self.path(kind, name, subresource, namespace),
            query={"dryRun": "All"} if dry_run else None,
            body=body,
            content_type=f"application/{patch_type}-patch+json",
        )
        return found


@asynccontextmanager
async def open_session(choice: ServerChoice) -> AsyncIterator[Session]:
    """Connect to the chosen server. Its warnings go to stderr."""
    from kedge.client.http import RestClient

    address = choice.address()
    rest = RestClient(address, on_warning=lambda text: click.echo(f"Warning: {text}", err=True))
    try:
        yield Session(rest, choice.namespace or address.namespace, address)
    except Unavailable as error:
        if error.from_server:
            raise
        from kedge.cli.up import with_state

        start = with_state("kedge up", choice.state) if choice.state is not None else "kedge up"
        raise Unavailable(f"{error}: is the cluster up? `{start}` starts a local one") from error
    except Unauthorized as error:
        raise Unauthorized(
            f"{address.url} does not accept this identity ({error}): use another --kubeconfig"
        ) from error
    except Forbidden as error:
        raise Forbidden(f"{error}: ask an administrator, or use another --kubeconfig") from error
    finally:
        await rest.close()


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that choose server and namespace; the command gets them as `choice`."""

    @wraps(command)
    def with_choice(kubeconfig: Path | None, context: str, state: Path | None, namespace: str, **rest: Any) -> Any:
        return command(choice=ServerChoice(kubeconfig, context, state, namespace), **rest)

    options = (
        click.option("--namespace", "-n", default="", help="Namespace; that of the kubeconfig's context if empty."),
        click.option("--kubeconfig", type=click.Path(path_type=Path, dir_okay=False), help="Server and identity."),
        click.option("--context", default="", help="Context in the kubeconfig; its current one if empty."),
        click.option(
            "--state", type=click.Path(path_type=Path, file_okay=False), help="Folder that `kedge up` was given."
        ),
    )
    for option in options:
        with_choice = option(with_choice)
    return with_choice


def run_session(choice: ServerChoice, work: Callable[[Session], Awaitable[Any]]) -> Any:
    """Run a command's work. Errors become one sentence and exit code 1."""

    async def connected() -> Any:
        async with open_session(choice) as session:
            return await work(session)

    with command_sentences():
        return asyncio.run(connected())


@contextmanager
def command_sentences() -> Iterator[None]:
    """Errors become one sentence with the next step, and exit code 1."""
    try:
        yield
    except KedgeError as error:
        raise IncompleteCommand(with_next_step(error)) from error
    except BrokenPipeError:
        # The reader of stdout has gone, as in `kedge get pods | head`. Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(0) from None


async def references(session: Session, words: Iterable[str]) -> list[tuple[ResourceType, str]]:
    """Arguments as pairs of type and name: `TYPE`, `TYPE NAME...`, `TYPE/NAME...`, `TYPE,TYPE`. No name is "".

    Raises:
        UsageError: both forms are mixed, or no type is named.
        NotFound: the server has no such type.
    """
    words = list(words)
    check_words(words)
    catalog = await session.catalog()
    if any("/" in word for word in words):
        pairs = [word.split("/", 1) for word in words]
        return [(catalog.resolve(word)[0], name) for word, name in pairs]
    kinds = [kind for word in words[0].split(",") for kind in catalog.resolve(word)]
    return [(kind, name) for kind in kinds for name in words[1:] or [""]]
