"""`kedge why`: why an object is as it is, from a running cluster or a recording; run again, or with other inputs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from kedge.cli.recording_option import at_option, check_at, open_recording, recording_option
from kedge.cli.resources.arguments import wrong_values
from kedge.cli.state_folder import command_errors
from kedge.cli.timeline import keys_of, kinds_of
from kedge.cli.up import state_in_use

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kedge.keys import Key
    from kedge.observe.readers.recording import Recording
    from kedge.observe.readers.why import Answer, ClusterEvidence, EvidenceLine
    from kedge.observe.records import Decision
    from kedge.scheduler.report.recheck import Held


class Question(NamedTuple):
    """The object, and how to answer."""

    name: str
    namespace: str
    generation: int | None = None
    recheck: bool = False
    changes: tuple[str, ...] = ()


@click.command()
@click.argument("name")
@click.option("--namespace", "-n", default="default", show_default=True)
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="Folder that `kedge up` was given.")
@recording_option
@at_option("--revision")
@click.option("--generation", type=click.IntRange(min=1), help="Use only decisions about this generation of NAME.")
@click.option("--recheck", is_flag=True, help="Run the decisions again; exit with 1 if one differs from its record.")
@click.option(
    "--what-if",
    "changes",
    multiple=True,
    metavar="CHANGE",
    help='Decide again with another input, such as "quota/risk.zone-c.cpu=+2"; repeat it for several.',
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def why(
    name: str,
    namespace: str,
    state: Path | None,
    recording: Path | None,
    at: str | None,
    generation: int | None,
    recheck: bool,
    changes: tuple[str, ...],
    output: str,
) -> None:
    """Explain the state of NAME: KIND/NAME, or a pod, Deployment, ReplicaSet or Job.

    The first line is the answer. The lines below are its evidence: the tier (fine, waiting, misconfigured or broken),
    the stage, the last decision, every node, the inputs with their revisions and ages, conditions, and the coverage.
    """
    check_at(recording, at)
    if changes:
        from kedge.observe.readers.what_if import parse_change

        with wrong_values():
            for each in changes:
                parse_change(each)
    kinds_of(name)
    question = Question(name, namespace, generation, recheck, changes)
    with command_errors():
        if recording is not None:
            answer = asyncio.run(_answer_from_file(recording, question, at))
        else:
            answer = asyncio.run(_answer_live(question, state_in_use(state)))
    if output == "json":
        import json

        click.echo(json.dumps(answer.document(), indent=2))
    else:
        click.echo(answer.text())
    if any(each.label == "recheck" and each.text.startswith("DIFFERS") for each in answer.evidence):
        raise SystemExit(1)


async def _answer_from_file(path: Path, question: Question, at: str | None) -> Answer:
    from kedge.observe.readers.why import evidence_of

    found, moment = open_recording(path, at)
    evidence = evidence_of(found, at=moment.at if moment is not None else None)
    return await _answered(question, evidence, found, None)


async def _answer_live(question: Question, state: Path) -> Answer:
    from dataclasses import replace

    from kedge.api.wellknown import SCHEDULING_POLICY_KIND
    from kedge.cli.live import live_cluster, logged_records
    from kedge.observe.readers.why import asking

    async with live_cluster(state) as cluster:
        kinds, keys = kinds_of(question.name), keys_of(question.name, question.namespace)
        versions_of = (SCHEDULING_POLICY_KIND,) if question.changes else ()
        evidence, logged = await cluster.evidence(keys, question.namespace, kinds, versions_of=versions_of)
        asked: list[tuple[Key, str]] = []
        first = replace(evidence, condition_write=asking(asked))
        answer_about(question.name, question.namespace, first, generation=question.generation)
        lookup = await cluster.condition_writes(asked, evidence.decisions)
        evidence = replace(evidence, condition_write=lookup)
        if question.recheck:
            logged = logged_records(state)  # the index has no cache contents, which attempts are run again on
        now = await cluster.scheduled_objects() if question.changes else None
        return await _answered(question, evidence, logged, now)


async def _answered(question: Question, evidence: ClusterEvidence, recording: Recording, now: Held | None) -> Answer:
    answer = answer_about(question.name, question.namespace, evidence, generation=question.generation)
    if not question.recheck and not question.changes:
        return answer
    from kedge.cli.kept_decisions import recheck_decisions, with_lines

    lines: list[EvidenceLine] = []
    keys = _keys_of(answer)
    about = [each for each in evidence.decisions if str(each.key) in keys]
    if question.recheck:
        lines += (await recheck_decisions(about, recording)).lines()
    if question.changes:
        lines += _what_if(question.changes, about, recording, now)
    return with_lines(answer, lines)


def _keys_of(answer: Answer) -> set[str]:
    return {answer.about, *(each.about for each in answer.parts)}


def _what_if(
    texts: Sequence[str], about: Sequence[Decision], recording: Recording, now: Held | None
) -> list[EvidenceLine]:
    """The last attempt for each pod of the answer, with the changes.

    Raises:
        BadRequest: a change is none of the forms.
        NotFound: no attempt for any of these pods was kept, or a change is about an object that there was not.
    """
    from kedge.cli.kept_decisions import what_if_lines
    from kedge.errors import NotFound
    from kedge.observe.readers.what_if import parse_change

    changes = [parse_change(each) for each in texts]
    last: dict[Key, Decision] = {}
    for decision in about:
        if decision.scheduling is not None and decision.scheduling.choice is not None:
            last[decision.key] = decision
    if not last:
        raise NotFound(
            "no attempt to schedule it was kept, so there is none to run with other inputs: open a window with"
            " `kedge record start`, then wait for the next attempt"
        )
    return what_if_lines(changes, texts, list(last.values()), recording, now)


def answer_about(name: str, namespace: str, evidence: ClusterEvidence, *, generation: int | None = None) -> Answer:
    """The answer about the first object that the name may mean.

    Raises:
        NotFound: there is none.
    """
    from kedge.api.wellknown import DEPLOYMENT_KIND, JOB_KIND, POD_KIND, REPLICA_SET_KIND
    from kedge.errors import NotFound
    from kedge.observe.readers.why import why_gone, why_object, why_pod, why_workload

    readers = {POD_KIND: why_pod, **dict.fromkeys((DEPLOYMENT_KIND, REPLICA_SET_KIND, JOB_KIND), why_workload)}
    kinds, bare = kinds_of(name), name.rpartition("/")[2]
    keys = keys_of(name, namespace)
    for key in keys:
        found = evidence.objects.get(key)
        if found is not None:
            explain = readers.get(key.kind, why_object)
            return explain(found, evidence if generation is None else evidence.of_generation(key, generation))
    for key in keys:
        if key.kind == POD_KIND and (gone := why_gone(key, evidence)) is not None:
            return gone
    sought = " and no ".join(kind.kind for kind in kinds)
    raise NotFound(f"there is no {sought} {bare} in the namespace {namespace}: check the name, or use -n or KIND/NAME")
