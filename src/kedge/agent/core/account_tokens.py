"""Tokens of ServiceAccounts for the pods of one node: requested for a pod, kept in memory, renewed before they end.

`config` writes them into projected volumes. A pod has one more volume than it declares, as Kubernetes adds it: token,
authority and namespace at the path where clients look for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from kedge.agent.core.driver import CannotStart
from kedge.api.requests import BoundObject
from kedge.api.views import PodView, ServiceAccountView
from kedge.api.views.accounts import account_of
from kedge.api.wellknown import POD_KIND, SERVICE_ACCOUNT_KIND
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import NotFound
from kedge.keys import Key

ACCOUNT_VOLUME: Final = "kube-api-access"
ROOT_AUTHORITY: Final = "kube-root-ca.crt"
"""The ConfigMap that has the authority in Kubernetes. Manifests that were exported there refer to it."""
TOKEN_S: Final = 3600
_RENEWED_AT: Final = 0.8
"""The part of a token's time after which it is renewed, as a kubelet does."""


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """How processes of pods reach the API."""

    host: str
    port: int
    authority_pem: str

    @property
    def variables(self) -> dict[str, str]:
        port = str(self.port)
        return {
            "KUBERNETES_SERVICE_HOST": self.host,
            "KUBERNETES_SERVICE_PORT": port,
            "KUBERNETES_SERVICE_PORT_HTTPS": port,
        }


class TokenWish(NamedTuple):
    """A token that a pod needs."""

    audience: str = ""
    expiration_s: int = TOKEN_S


@dataclass(frozen=True, slots=True)
class PodAccess:
    """The API as one pod reaches it."""

    api: ApiAccess | None = None
    tokens: Mapping[TokenWish, str] = field(default_factory=dict)
    automatic: bool = False
    """Whether containers get the volume that the pod does not declare."""


NO_ACCESS: Final = PodAccess()


@dataclass(frozen=True, slots=True)
class _Kept:
    token: str
    renew: datetime


def projected_tokens(pod: PodView) -> Iterator[TokenWish]:
    """The tokens in the volumes that a pod declares."""
    for volume in pod.spec.volumes:
        for source in volume.projected.sources if volume.projected is not None else ():
            if source.service_account_token is not None:
                yield TokenWish(source.service_account_token.audience, source.service_account_token.expiration_seconds)


class AccountTokens:
    """The tokens of the pods of one node."""

    def __init__(self, client: Client, env: Env, api: ApiAccess | None) -> None:
        """Without `api` pods get the tokens that they declare, and nothing else."""
        self._client = client
        self._env = env
        self._api = api
        self._kept: dict[str, dict[TokenWish, _Kept]] = {}
        """By uid of the pod. A pod that is gone is forgotten."""
        gauge = env.metrics.gauge("kedge_agent_tokens", "Tokens of ServiceAccounts in memory")
        gauge.set_function(lambda: sum(len(each) for each in self._kept.values()))

    def may_renew(self, pod: PodView) -> bool:
        """Whether the pod may have a token that it does not declare."""
        return self._api is not None and pod.spec.automount_service_account_token is not False

    def left_s(self, pod_uid: str) -> float | None:
        """How long until a token of a pod is to be renewed; None if it has none."""
        ends = [each.renew for each in self._kept.get(pod_uid, {}).values()]
        return max(0.0, (min(ends) - self._env.now()).total_seconds()) if ends else None

    def forget(self, pod_uid: str) -> None:
        self._kept.pop(pod_uid, None)

    async def access(self, pod: PodView) -> PodAccess:
        """The tokens that a pod needs now.

        Raises:
            CannotStart: its ServiceAccount does not exist.
        """
        automatic = await self._is_automatic(pod)
        wishes = [*projected_tokens(pod), *([TokenWish()] if automatic else [])]
        kept = self._kept.setdefault(pod.uid, {}) if wishes else {}
        for wish in wishes:
            found = kept.get(wish)
            if found is None or found.renew <= self._env.now():
                kept[wish] = await self._request(pod, wish)
        return PodAccess(self._api, {wish: kept[wish].token for wish in wishes}, automatic)

    async def _is_automatic(self, pod: PodView) -> bool:
        if not self.may_renew(pod):
            return False
        if pod.spec.automount_service_account_token is not None:
            return True
        account = await self._client.find(Key(SERVICE_ACCOUNT_KIND, pod.namespace, account_of(pod.spec)))
        return account is None or account.as_view(ServiceAccountView).automount_service_account_token is not False

    async def _request(self, pod: PodView, wish: TokenWish) -> _Kept:
        account = Key(SERVICE_ACCOUNT_KIND, pod.namespace, account_of(pod.spec))
        begins = self._env.now()
        try:
            issued = await self._client.request_token(
                account,
                audiences=(wish.audience,) if wish.audience else (),
                expiration_s=wish.expiration_s,
                bound=BoundObject(kind=POD_KIND, name=pod.name, uid=pod.uid),
            )
        except NotFound as error:
            raise CannotStart(
                f"serviceaccount {pod.namespace}/{account.name} is not found: create it, or name another one",
                "CreateContainerConfigError",
            ) from error
        return _Kept(issued.token, begins + (issued.expires - begins) * _RENEWED_AT)
