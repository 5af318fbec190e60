"""The work of `kedge rollout`: the state of a Deployment, and its revisions, which are its ReplicaSets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from kedge.api.wellknown import CHANGE_CAUSE, DEPLOYMENT_REVISION, RESTARTED_AT, TEMPLATE_HASH_LABEL
from kedge.cli.resources.catalog import ResourceType
from kedge.cli.resources.output import as_yaml, format_rows
from kedge.cli.resources.session import IncompleteCommand, Session, references
from kedge.errors import NotFound, Terminal

POLL_S = 0.2


def rollout_state(deployment: Mapping[str, Any], revision: int = 0) -> tuple[str, bool]:
    """One sentence about a rollout, and whether it is done. `revision` is the one to follow; 0 is the newest. Pure.

    Raises:
        Terminal: it made no progress within its deadline, or another revision is rolled out.
    """
    name, spec, status = deployment["metadata"]["name"], deployment["spec"], deployment.get("status") or {}
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 0):
        return "Waiting for deployment spec update to be observed...", False
    running = (deployment["metadata"].get("annotations") or {}).get(DEPLOYMENT_REVISION, "0")
    if revision and str(revision) != running:
        raise Terminal(
            f"deployment/{name} rolls out revision {running} and not {revision}: `kedge rollout history"
            f" deployment/{name}` lists them"
        )
    for each in status.get("conditions") or ():
        if each.get("type") == "Progressing" and each.get("reason") == "ProgressDeadlineExceeded":
            raise Terminal(
                f'deployment "{name}" exceeded its progress deadline: `kedge why {name}` may know the reason'
            )
    wanted = spec.get("replicas", 1)
    updated, total, ready = (status.get(each, 0) for each in ("updatedReplicas", "replicas", "availableReplicas"))
    head = f'Waiting for deployment "{name}" rollout to finish: '
    if updated < wanted:
        return f"{head}{updated} out of {wanted} new replicas have been updated...", False
    if total > updated:
        return f"{head}{total - updated} old replicas are pending termination...", False
    if ready < updated:
        return f"{head}{ready} of {updated} updated replicas are available...", False
    return f'deployment "{name}" successfully rolled out', True


class RolloutVerbs:
    """The verbs of `kedge rollout` on one server, by the name of a Deployment."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kind: ResourceType | None = None

    async def names(self, words: Sequence[str]) -> list[str]:
        """The Deployments that arguments name.

        Raises:
            UsageError: one is of another type.
        """
        found = await references(self._session, words)
        for kind, _ in found:
            if kind.kind != "Deployment":
                raise click.UsageError(f"a {kind.kind} has no rollout: name a Deployment, such as deployment/web")
            self._kind = kind
        return [name for _, name in found]

    @property
    def kind(self) -> ResourceType:
        assert self._kind is not None
        return self._kind

    async def status(self, name: str, *, watch: bool, timeout_s: float, revision: int) -> None:
        """The verdict is data, the waiting before it is progress."""
        shown = ""
        try:
            async with asyncio.timeout(timeout_s or None):
                while True:
                    text, done = rollout_state(await self._session.get(self.kind, name), revision)
                    if text != shown:
                        click.echo(text, err=watch and not done)
                        shown = text
                    if done or not watch:
                        return
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise IncompleteCommand(
                f"deployment/{name} is not rolled out after {timeout_s:g} s ({shown.rstrip('.')}): `kedge why {name}`"
                " may know the reason"
            ) from error

    async def history(self, name: str, *, revision: int | None) -> None:
        revisions = await self._revisions(name)
        if revision is not None:
            found = _chosen(revisions, revision, name)
            click.echo(f"{self.kind.label}/{name} with revision #{revision}")
            click.echo(as_yaml({"template": found["spec"]["template"]}), nl=False)
            return
        click.echo(f"{self.kind.label}/{name}")
        rows = [
            [str(number), (each["metadata"].get("annotations") or {}).get(CHANGE_CAUSE, "<none>")]
            for number, each in sorted(revisions.items())
        ]
        click.echo(format_rows(["REVISION", "CHANGE-CAUSE"], rows))

    async def undo(self, name: str, *, revision: int) -> None:
        deployment = await self._session.get(self.kind, name)
        if deployment["spec"].get("paused"):
            raise Terminal(f"deployment/{name} is paused: `kedge rollout resume deployment/{name}` first")
        revisions = await self._revisions(name)
        if not revision:
            if len(revisions) < 2:
                raise NotFound(
                    f"deployment/{name} has no revision before its newest: `kedge apply` changes its template"
                )
            revision = sorted(revisions)[-2]
        template = _without_hash(_chosen(revisions, revision, name)["spec"]["template"])
        if template == _without_hash(deployment["spec"]["template"]):
            click.echo(f"{self.kind.label}/{name} skipped rollback (it has the template of revision {revision})")
            return
        version = deployment["metadata"]["resourceVersion"]
        operations = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "replace", "path": "/spec/template", "value": template},
        ]
        await self._session.patch(self.kind, name, operations, patch_type="json")
        click.echo(f"{self.kind.label}/{name} rolled back")

    async def restart(self, name: str) -> None:
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        annotations = {"metadata": {"annotations": {RESTARTED_AT: moment}}}
        await self._session.patch(self.kind, name, {"spec": {"template": annotations}})
        click.echo(f"{self.kind.label}/{name} restarted")

    async def pause(self, name: str) -> None:
        await self._set_paused(name, paused=True)

    async def resume(self, name: str) -> None:
        await self._set_paused(name, paused=False)

    async def _set_paused(self, name: str, *, paused: bool) -> None:
        word = "paused" if paused else "resumed"
        deployment = await self._session.get(self.kind, name)
        if bool(deployment["spec"].get("paused")) == paused:
            state = "already paused" if paused else "not paused"
            other = "resume" if paused else "pause"
            raise Terminal(f"deployment/{name} is {state}: `kedge rollout {other} deployment/{name}` changes that")
        await self._session.patch(self.kind, name, {"spec": {"paused": True if paused else None}})
        click.echo(f"{self.kind.label}/{name} {word}")

    async def _revisions(self, name: str) -> dict[int, dict[str, Any]]:
        """The ReplicaSets of a Deployment, by revision."""
        uid = (await self._session.get(self.kind, name))["metadata"]["uid"]
        (kind,) = (await self._session.catalog()).resolve("replicasets")
        found = {}
        for each in await self._session.list(kind):
            owned = any(owner["uid"] == uid for owner in each["metadata"].get("ownerReferences") or ())
            number = (each["metadata"].get("annotations") or {}).get(DEPLOYMENT_REVISION, "")
            if owned and number.isdigit():
                found[int(number)] = each
        return found


def _chosen(revisions: Mapping[int, dict[str, Any]], revision: int, name: str) -> dict[str, Any]:
    if revision not in revisions:
        there = ", ".join(map(str, sorted(revisions)))
        step = f"use one of {there}" if there else "none is kept, so apply the manifest that you want instead"
        raise NotFound(f"deployment/{name} has no revision {revision}: {step}")
    return revisions[revision]


def _without_hash(template: Mapping[str, Any]) -> dict[str, Any]:
    metadata = dict(template.get("metadata") or {})
    metadata["labels"] = {
        name: value for name, value in (metadata.get("labels") or {}).items() if name != TEMPLATE_HASH_LABEL
    }
    metadata.pop("creationTimestamp", None)
    return {**template, "metadata": metadata}
