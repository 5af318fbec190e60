"""Certificate signing requests: the server adds the user, approves some by rule, and signs approved ones.

All of it happens in the commit of the write that causes it, on the server that has the key of the authority: a create
that a rule approves answers with the certificate, and `kubectl certificate approve` with one that is signed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from kedge.api.access import AUTHENTICATED, Attributes, Caller
from kedge.api.codec import encode_object
from kedge.api.conditions import TRUE, condition, set_condition
from kedge.api.objects import Object
from kedge.api.requests import WriteOptions
from kedge.api.validation.certificates import APPROVED, DENIED, FAILED
from kedge.api.views import CertificateSigningRequestView
from kedge.api.wellknown import CERTIFICATES_GROUP, NODE_KIND
from kedge.errors import BadRequest, Forbidden
from kedge.keys import NO_REVISION, Key
from kedge.server.service.core import Core, Proof, part
from kedge.server.service.credentials.signing_rules import (
    SIGNERS,
    CertificateSigner,
    RequestedCertificate,
    node_to_read,
    plan_approval,
    signer_problem,
)

_RESOURCE = "certificatesigningrequests"
_CALLER_FIELDS = ("username", "uid", "groups", "extra")


async def complete(core: Core, proof: Proof, options: WriteOptions, old: Object | None, new: Object) -> Object:
    """The request as it is stored: with its user, and approved and signed where that is due.

    Raises:
        BadRequest: `spec.request` cannot be read.
        Forbidden: the subject is not allowed, or the caller may not approve or sign for this signer.
    """
    document = new.edit()
    view = new.as_view(CertificateSigningRequestView)
    if old is None:
        spec = {name: value for name, value in document["spec"].items() if name not in _CALLER_FIELDS}
        if options.caller:
            spec |= {"username": options.caller, "groups": [*options.origin.groups, AUTHENTICATED]}
        document["spec"] = spec
    else:
        _check_change(core, options, old.as_view(CertificateSigningRequestView), view)
    signer = core.certificate_signer
    if signer is not None and view.spec.signer_name in SIGNERS:
        stored = _stored(new, document)
        wanted = _read(signer, stored)
        if old is None:
            await _decide(core, proof, stored, wanted, document)
        if not options.dry_run:  # a certificate is valid, stored or not
            _sign(core, signer, _stored(new, document), wanted, document)
    return _stored(new, document)


def _stored(new: Object, document: dict[str, Any]) -> Object:
    return Object(new.kind, new.key, encode_object(document), revision=NO_REVISION)


def _read(signer: CertificateSigner, request: Object) -> RequestedCertificate:
    view = request.as_view(CertificateSigningRequestView)
    try:
        return signer.read(base64.b64decode(view.spec.request, validate=True))
    except (ValueError, binascii.Error) as error:
        raise BadRequest(f"spec.request of {request.key.name} cannot be read: {error}", key=request.key) from error


async def _decide(
    core: Core, proof: Proof, request: Object, wanted: RequestedCertificate, document: dict[str, Any]
) -> None:
    """Approve a new request if a rule does."""
    spec = request.as_view(CertificateSigningRequestView).spec
    caller = Caller(spec.username, spec.groups)
    node = node_to_read(spec, wanted)
    exists = bool(node) and await proof.object(Key(NODE_KIND, "", node)) is not None

    def allows(right: str) -> bool:
        return bool(spec.username) and core.access.allows_nowait(
            caller, Attributes("create", CERTIFICATES_GROUP, _RESOURCE, right, "", "")
        ) is True  # fmt: skip

    approval = plan_approval(spec, wanted, allows, node_exists=exists)
    if approval is not None:
        _add(core, document, APPROVED, approval.reason, approval.message)


def _sign(
    core: Core, signer: CertificateSigner, request: Object, wanted: RequestedCertificate, document: dict[str, Any]
) -> None:
    """Sign a request that is approved and has neither a certificate nor a failure."""
    view = request.as_view(CertificateSigningRequestView)
    types = {each.type for each in view.status.conditions}
    if APPROVED not in types or FAILED in types or view.status.certificate:
        return
    problem = signer_problem(view.spec, wanted)
    if problem:
        core.certificates.labels("refused").inc()
        _add(core, document, FAILED, "SignerValidationFailure", problem)
        return
    valid_s = core.env.limits.certificate_s_max
    if view.spec.expiration_seconds is not None:
        valid_s = min(valid_s, float(view.spec.expiration_seconds))
    signed = signer.sign(base64.b64decode(view.spec.request), view.spec.usages, valid_s)
    part(document, "status")["certificate"] = base64.b64encode(signed).decode()
    core.certificates.labels("signed").inc()


def _add(core: Core, document: dict[str, Any], type_: str, reason: str, message: str) -> None:
    now = core.timestamp()
    status = part(document, "status")
    made = {**condition(type_, status=TRUE, reason=reason, message=message), "lastUpdateTime": now}
    status["conditions"] = set_condition(status.get("conditions") or [], made, now)


def _check_change(
    core: Core, options: WriteOptions, old: CertificateSigningRequestView, new: CertificateSigningRequestView
) -> None:
    """Check that the caller may approve or sign for the signer, by what it changes."""
    if not core.access.started or not options.caller:
        return
    before, after = ({each.type: each for each in view.status.conditions} for view in (old, new))
    verbs = []
    if any(before.get(each) != after.get(each) for each in (APPROVED, DENIED)):
        verbs.append("approve")
    if before.get(FAILED) != after.get(FAILED) or old.status.certificate != new.status.certificate:
        verbs.append("sign")
    caller = Caller(options.caller, (*options.origin.groups, AUTHENTICATED))
    domain = f"{new.spec.signer_name.partition('/')[0]}/*"
    for verb in verbs:
        wanted = [
            Attributes(verb, CERTIFICATES_GROUP, "signers", "", "", name) for name in (new.spec.signer_name, domain)
        ]
        if not any(core.access.allows_nowait(caller, each) for each in wanted):
            raise Forbidden(
                f'{_RESOURCE}.{CERTIFICATES_GROUP} "{new.name}" is forbidden: User "{caller.user}" cannot {verb} for'
                f' the signer "{new.spec.signer_name}": an administrator can allow it with a ClusterRole about signers',
            )


def is_settled(document: Mapping[str, Any]) -> bool:
    """Whether a request waits for nothing any more."""
    status = document.get("status") or {}
    types = {each.get("type") for each in status.get("conditions") or ()}
    return bool(status.get("certificate")) or DENIED in types or FAILED in types
