"""Views of probes and lifecycle hooks, which the agent runs."""

from __future__ import annotations

from kedge.api.views.base import ApiStruct, Int32, Int64, IntOrString


class ExecAction(ApiStruct, frozen=True):
    command: tuple[str, ...] = ()


class HTTPHeader(ApiStruct, frozen=True):
    name: str = ""
    value: str = ""


class HTTPGetAction(ApiStruct, frozen=True):
    path: str = "/"
    port: IntOrString = 0
    host: str = ""
    scheme: str = "HTTP"
    http_headers: tuple[HTTPHeader, ...] = ()


class TCPSocketAction(ApiStruct, frozen=True):
    port: IntOrString = 0
    host: str = ""


class GRPCAction(ApiStruct, frozen=True):
    port: Int32 = 0
    service: str = ""


class Probe(ApiStruct, frozen=True):
    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: GRPCAction | None = None
    initial_delay_seconds: Int32 = 0
    timeout_seconds: Int32 = 1
    period_seconds: Int32 = 10
    success_threshold: Int32 = 1
    failure_threshold: Int32 = 3
    termination_grace_period_seconds: Int64 | None = None


class SleepAction(ApiStruct, frozen=True):
    seconds: Int64 = 0


class LifecycleHook(ApiStruct, frozen=True):
    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    sleep: SleepAction | None = None


class Lifecycle(ApiStruct, frozen=True):
    post_start: LifecycleHook | None = None
    pre_stop: LifecycleHook | None = None
