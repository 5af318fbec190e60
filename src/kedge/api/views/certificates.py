"""The view of certificate signing requests."""

from __future__ import annotations

from kedge.api.views.base import ApiStruct, Condition, Int32, View


class CertificateSigningRequestSpec(ApiStruct, frozen=True):
    request: str = ""
    """The request as PEM, in base64."""
    signer_name: str = ""
    expiration_seconds: Int32 | None = None
    usages: tuple[str, ...] = ()
    username: str = ""
    """The user that made it. This and the groups are written by the server."""
    uid: str = ""
    groups: tuple[str, ...] = ()


class CertificateSigningRequestStatus(ApiStruct, frozen=True):
    conditions: tuple[Condition, ...] = ()
    certificate: str = ""
    """The certificate as PEM, in base64."""


class CertificateSigningRequestView(View, frozen=True):
    spec: CertificateSigningRequestSpec = CertificateSigningRequestSpec()
    status: CertificateSigningRequestStatus = CertificateSigningRequestStatus()
