"""Rules of certificate signing requests, with the error texts of Kubernetes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from kedge.api.codec import same_json
from kedge.api.conditions import TRUE
from kedge.api.names import subdomain_problem
from kedge.api.validation.error_list import ErrorList
from kedge.api.views import CertificateSigningRequestView

APPROVED, DENIED, FAILED = "Approved", "Denied", "Failed"
EXPIRATION_S_MIN: Final = 600
USAGES: Final = (
    "any", "cert sign", "client auth", "code signing", "content commitment", "crl sign", "data encipherment",
    "decipher only", "digital signature", "email protection", "encipher only", "ipsec end system", "ipsec tunnel",
    "ipsec user", "key agreement", "key encipherment", "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime",
    "server auth", "signing", "timestamping",
)  # fmt: skip
_PEM_BEGIN: Final = b"-----BEGIN CERTIFICATE REQUEST-----"
_FINAL: Final = (APPROVED, DENIED, FAILED)


def check_signing_request(errors: ErrorList, request: CertificateSigningRequestView) -> None:
    spec = request.spec
    if not spec.request:
        errors.required("spec.request")
    elif _PEM_BEGIN not in _decoded(spec.request):
        errors.invalid("spec.request", spec.request[:64], "PEM block type must be CERTIFICATE REQUEST")
    _check_signer_name(errors, spec.signer_name)
    if not spec.usages:
        errors.required("spec.usages")
    for index, usage in enumerate(spec.usages):
        if usage not in USAGES:
            errors.unsupported(f"spec.usages[{index}]", usage, USAGES)
        elif usage in spec.usages[:index]:
            errors.duplicate(f"spec.usages[{index}]", usage)
    if spec.expiration_seconds is not None and spec.expiration_seconds < EXPIRATION_S_MIN:
        errors.invalid(
            "spec.expirationSeconds",
            spec.expiration_seconds,
            f"may not specify a duration less than {EXPIRATION_S_MIN} seconds",
        )
    types = [each.type for each in request.status.conditions]
    for index, condition in enumerate(request.status.conditions):
        path = f"status.conditions[{index}]"
        if not condition.type:
            errors.required(f"{path}.type")
        elif condition.type in types[:index]:
            errors.duplicate(f"{path}.type", condition.type)
        if condition.type in _FINAL and condition.status != TRUE:
            errors.invalid(f"{path}.status", condition.status, f'"{condition.type}" condition status must be "True"')
    if APPROVED in types and DENIED in types:
        errors.invalid("status.conditions", types, "Approved and Denied conditions are mutually exclusive")


def check_signing_update(errors: ErrorList, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    if not same_json(before.get("spec"), after.get("spec")):
        errors.invalid("spec", "", "field is immutable")
    old, new = before.get("status") or {}, after.get("status") or {}
    kept = {str(each.get("type")) for each in new.get("conditions") or () if isinstance(each, Mapping)}
    for each in old.get("conditions") or ():
        if each["type"] in _FINAL and each["type"] not in kept:
            errors.forbidden("status.conditions", f"updates may not remove a condition of type {each['type']!r}")
    if old.get("certificate") and old["certificate"] != new.get("certificate"):
        errors.forbidden("status.certificate", "updates may not set certificate content after it is set")


def _check_signer_name(errors: ErrorList, name: str) -> None:
    domain, slash, path = name.partition("/")
    if not name:
        errors.required("spec.signerName")
    elif not slash or not path:
        errors.invalid("spec.signerName", name, "must be a fully qualified domain and path of the form 'example.com/x'")
    else:
        problem = subdomain_problem(domain) or (
            "" if "." in domain else "should be a domain with at least two segments"
        )
        errors.name("spec.signerName", name, problem)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
