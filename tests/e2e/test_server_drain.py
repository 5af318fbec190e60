"""SIGTERM to a real `kedge server`, over TLS: requests under way finish, new ones get 503, the exit code is 0."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from tests.kit.api_server import ServerProcess, running_server

from kedge.client.http.kubeconfig import read_kubeconfig

MAPS = "/api/v1/namespaces/default/configmaps"
BODY = b'{"metadata":{"name":"half"}}'


def connect(server: ServerProcess) -> ssl.SSLSocket:
    address = read_kubeconfig(server.kubeconfig)
    assert address.tls is not None
    plain = socket.create_connection((address.host, address.port), timeout=60)
    return address.tls.wrap_socket(plain, server_hostname=address.host)


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def read_until(connection: ssl.SSLSocket, text: bytes) -> bytes:
    found = b""
    while text not in found:
        data = connection.recv(65536)
        assert data, f"the server closed the connection after {found!r}"
        found += data
    return found


def read_rest(connection: ssl.SSLSocket) -> bytes:
    found = b""
    with connection:
        while data := connection.recv(65536):
            found += data
    return found


def test_sigterm_drains_a_real_server(tmp_path: Path) -> None:
    with running_server(tmp_path / "state") as server:
        writer, watcher, idle = connect(server), connect(server), connect(server)
        idle.sendall(get("/livez"))
        read_until(idle, b"ok")
        watcher.sendall(get(f"{MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion=0"))
        read_until(watcher, b"\r\n\r\n")
        head = f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(BODY)}\r\n\r\n"
        writer.sendall(head.encode())
        read_until(writer, b"100 Continue\r\n\r\n")  # the head has arrived, and nothing of the body
        server.terminate()
        ended = read_rest(watcher)
        assert b'"type":"BOOKMARK"' in ended
        assert ended.endswith(b"0\r\n\r\n")
        for connection in (idle, connect(server)):
            connection.sendall(get(f"{MAPS}/x"))
            refused = read_rest(connection)
            assert refused.startswith(b"HTTP/1.1 503")
            assert b"Retry-After: 1" in refused
        writer.sendall(BODY)
        assert b"HTTP/1.1 201" in read_rest(writer)
        assert server.wait() == 0
