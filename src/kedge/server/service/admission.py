"""The admission chain: policies that may change a write, then policies that may reject it.

A policy is a pure function of the request and of the objects it declares as inputs; the commit proves those
inputs, so a policy cannot decide on stale state. Every mutation is recorded in the object with the
policy's name and revision. Policies in CEL will implement the same two protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from kedge.api.codec import encode_json
from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.patch import apply_json_patch
from kedge.api.wellknown import MUTATIONS_ANNOTATION
from kedge.errors import Forbidden, Invalid
from kedge.keys import Key, Revision
from kedge.metrics import Counter


class AdmissionRequest(NamedTuple):
    """One write, as policies see it."""

    verb: str
    """`create`, `update` or `delete`; a patch is an update."""
    kind: Kind
    key: Key
    subresource: str
    caller: str
    object: Mapping[str, Any]
    """As it will be. For a delete: as it is."""
    old: Mapping[str, Any] | None
    dry_run: bool


Inputs = Mapping[Key, Object | None]


class Policy(Protocol):
    """The common part of mutating and validating policies."""

    @property
    def name(self) -> str: ...

    @property
    def revision(self) -> Revision:
        """The revision of the object that configures the policy; 0 for a built-in policy."""

    def applies(self, verb: str, kind: Kind, subresource: str) -> bool:
        """Whether the policy applies to such writes. Cheap: it is called for every write."""

    def inputs(self, request: AdmissionRequest) -> Sequence[Key]:
        """The other objects it reads. The commit of the write proves them."""


class MutatingPolicy(Policy, Protocol):
    def mutate(self, request: AdmissionRequest, inputs: Inputs) -> Sequence[Mapping[str, Any]]:
        """JSON patch operations; none if the object is fine as it is. Must be idempotent."""


class ValidatingPolicy(Policy, Protocol):
    def validate(self, request: AdmissionRequest, inputs: Inputs) -> Iterable[str]:
        """Reasons to reject the write, as texts for the caller."""


class Mutation(msgspec.Struct, frozen=True):
    """One policy's changes to one object."""

    policy: str
    revision: Revision
    paths: tuple[str, ...]


class AdmissionChain:
    """Mutating policies in order, then validating ones. Immutable: a new configuration is a new chain."""

    def __init__(self, mutating: Sequence[MutatingPolicy] = (), validating: Sequence[ValidatingPolicy] = ()) -> None:
        self._mutating = tuple(mutating)
        self._validating = tuple(validating)

    def describe(self) -> list[dict[str, Any]]:
        """The policies in order, as JSON, for records."""
        return [
            {"name": policy.name, "revision": policy.revision, "type": role}
            for role, policies in (("mutating", self._mutating), ("validating", self._validating))
            for policy in policies
        ]

    def for_write(self, verb: str, kind: Kind, subresource: str) -> AdmissionChain | None:
        """The policies that apply to such a write; None if none does, so that the common case costs nothing."""
        if not self._mutating and not self._validating:
            return None
        mutating = tuple(p for p in self._mutating if p.applies(verb, kind, subresource))
        validating = tuple(p for p in self._validating if p.applies(verb, kind, subresource))
        return AdmissionChain(mutating, validating) if mutating or validating else None

    async def mutate(
        self, request: AdmissionRequest, read: ReadInputs, note: Note, *, rounds_max: int, rounds: Counter
    ) -> dict[str, Any]:
        """The object after every mutating policy, with the record of their changes.

        A second round lets an early policy see a later one's changes, like reinvocation in Kubernetes.
        """
        document: dict[str, Any] = dict(request.object)
        mutations: dict[str, Mutation] = {}
        for _ in range(rounds_max):
            changed = False
            rounds.inc()
            for policy in self._mutating:
                asked = request._replace(object=document)
                operations = policy.mutate(asked, await read(policy.inputs(asked)))
                if not operations:
                    continue
                try:
                    after = apply_json_patch(document, operations)
                except Invalid as error:
                    raise Forbidden(
                        f"policy {policy.name} made a patch that does not apply to {request.key}: {error.message}",
                        key=request.key,
                    ) from error
                if after == document:
                    continue
                document, changed = after, True
                paths = tuple(str(operation["path"]) for operation in operations)
                before = mutations.get(policy.name)
                known = before.paths if before is not None else ()
                mutations[policy.name] = Mutation(policy.name, policy.revision, tuple(dict.fromkeys(known + paths)))
            if not changed:
                break
        for each in mutations.values():
            note(each.policy, "changed", ", ".join(each.paths), each.revision)
        return _record(document, mutations) if mutations else document

    async def validate(self, request: AdmissionRequest, read: ReadInputs, note: Note) -> None:
        """Raise `Forbidden` with the reasons of all policies at once."""
        refusals = []
        for policy in self._validating:
            reasons = list(policy.validate(request, await read(policy.inputs(request))))
            if reasons:
                note(policy.name, "refused", "; ".join(reasons), policy.revision)
            refusals += [f"policy {policy.name} denied it: {reason}" for reason in reasons]
        if refusals:
            raise Forbidden(f"{request.verb} of {request.key} is forbidden: {'; '.join(refusals)}", key=request.key)

    @property
    def mutates(self) -> bool:
        return bool(self._mutating)


class Note(Protocol):
    """Notes what a policy did to the write at hand."""

    def __call__(self, policy: str | Key, verb: str, detail: str, revision: Revision = 0) -> None: ...


class ReadInputs(Protocol):
    """Reads a policy's inputs under the proof of the write at hand."""

    async def __call__(self, keys: Sequence[Key]) -> Inputs: ...


def mutations_of(annotations: Mapping[str, str]) -> tuple[Mutation, ...]:
    """The mutations that policies made to an object, from its annotations."""
    text = annotations.get(MUTATIONS_ANNOTATION)
    try:
        return msgspec.json.decode(text, type=tuple[Mutation, ...]) if text else ()
    except msgspec.MsgspecError:
        return ()  # a user may have written anything there


def _record(document: dict[str, Any], mutations: Mapping[str, Mutation]) -> dict[str, Any]:
    metadata = dict(document.get("metadata") or {})
    annotations = dict(metadata.get("annotations") or {})
    kept = [m for m in mutations_of(annotations) if m.policy not in mutations]
    annotations[MUTATIONS_ANNOTATION] = encode_json([*kept, *mutations.values()]).decode()
    return {**document, "metadata": {**metadata, "annotations": annotations}}


# -- policies as plain functions -------------------------------------------------------------------


class FunctionPolicy:
    """A policy made of functions, where a class is not needed. Serves as mutating and as validating policy."""

    def __init__(
        self,
        name: str,
        *,
        kinds: Iterable[str],
        verbs: Iterable[str] = ("create", "update"),
        revision: Revision = 0,
        inputs: Callable[[AdmissionRequest], Sequence[Key]] = lambda _: (),
        mutate: Callable[[AdmissionRequest, Inputs], Sequence[Mapping[str, Any]]] = lambda _request, _inputs: (),
        validate: Callable[[AdmissionRequest, Inputs], Iterable[str]] = lambda _request, _inputs: (),
    ) -> None:
        self.name = name
        self.revision = revision
        self.inputs = inputs
        self.mutate = mutate
        self.validate = validate
        self._kinds = frozenset(kinds)
        self._verbs = frozenset(verbs)

    def applies(self, verb: str, kind: Kind, subresource: str) -> bool:
        return not subresource and verb in self._verbs and kind.key_kind in self._kinds
