"""Paths of the Kubernetes API, read as resources."""

from __future__ import annotations

import pytest

from kedge.errors import BadRequest
from kedge.server.http.routes import ResourcePath, resource_path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/v1/pods", ResourcePath("", "v1", "pods")),
        ("/api/v1/namespaces", ResourcePath("", "v1", "namespaces")),
        ("/api/v1/namespaces/a", ResourcePath("", "v1", "namespaces", name="a")),
        ("/api/v1/namespaces/a/status", ResourcePath("", "v1", "namespaces", name="a", subresource="status")),
        ("/api/v1/namespaces/a/finalize", ResourcePath("", "v1", "namespaces", name="a", subresource="finalize")),
        ("/api/v1/namespaces/a/pods", ResourcePath("", "v1", "pods", "a")),
        ("/api/v1/namespaces/a/pods/p", ResourcePath("", "v1", "pods", "a", "p")),
        ("/api/v1/namespaces/a/pods/p/eviction", ResourcePath("", "v1", "pods", "a", "p", "eviction")),
        ("/apis/apps/v1/deployments", ResourcePath("apps", "v1", "deployments")),
        (
            "/apis/apps/v1/namespaces/a/deployments/d/scale",
            ResourcePath("apps", "v1", "deployments", "a", "d", "scale"),
        ),
        ("/apis/x.dev/v1/namespaces/a/status", ResourcePath("x.dev", "v1", "status", "a")),
        ("/api/v1/nodes/n%2d1/", ResourcePath("", "v1", "nodes", name="n-1")),
    ],
)
def test_a_path_names_a_resource(path: str, expected: ResourcePath) -> None:
    assert resource_path(path.encode()) == expected


@pytest.mark.parametrize(
    "path", ["/", "/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/version", "/metrics"]
)
def test_other_paths_name_no_resource(path: str) -> None:
    assert resource_path(path.encode()) is None


@pytest.mark.parametrize("path", ["/api/v1/namespaces/a/pods/p/status/more", "/api/v1/pods/%ff"])
def test_a_path_that_is_no_resource_is_a_bad_request(path: str) -> None:
    with pytest.raises(BadRequest):
        resource_path(path.encode())
