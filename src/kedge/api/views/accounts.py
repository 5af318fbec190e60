"""Views of ServiceAccounts, the identities of pods."""

from __future__ import annotations

from kedge.api.views.base import ApiStruct, View
from kedge.api.views.core import PodSpec
from kedge.api.views.volumes import LocalObjectRef
from kedge.api.wellknown import DEFAULT_ACCOUNT


class AccountSecret(ApiStruct, frozen=True):
    """A reference to a Secret. Stored; kedge pulls no images and makes no tokens that are Secrets."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class ServiceAccountView(View, frozen=True):
    automount_service_account_token: bool | None = None
    secrets: tuple[AccountSecret, ...] = ()
    image_pull_secrets: tuple[LocalObjectRef, ...] = ()


def account_of(spec: PodSpec) -> str:
    """The name of a pod's ServiceAccount."""
    return spec.service_account_name or spec.service_account or DEFAULT_ACCOUNT
