"""The fixture `kedge_server`: a real server, a clean store for each test, memory or a file."""

from __future__ import annotations

import subprocess

import pytest
from kubernetes import client, config
from tests.tools import need_kubectl

from kedge.sim.api_fixture import RunningServer, ServerThread


def core(server: RunningServer) -> client.CoreV1Api:
    return client.CoreV1Api(config.new_client_from_config(str(server.kubeconfig)))


@pytest.mark.parametrize("number", range(3))
def test_each_test_has_a_store_of_its_own(kedge_server: RunningServer, number: int) -> None:
    api = core(kedge_server)
    assert api.list_namespaced_config_map("default").items == []
    api.create_namespaced_config_map("default", {"metadata": {"name": f"made-{number}"}})
    assert [each.metadata.name for each in api.list_namespaced_config_map("default").items] == [f"made-{number}"]
    assert {each.metadata.name for each in api.list_namespace().items} >= {"default", "kube-system"}


@pytest.mark.kedge_server(store="sqlite")
def test_a_store_in_a_file(kedge_server: RunningServer) -> None:
    core(kedge_server).create_namespaced_config_map("default", {"metadata": {"name": "kept"}})
    assert (kedge_server.kubeconfig.parent / "kedge.db").exists()


def test_a_program_of_its_own_uses_the_environment(kedge_server: RunningServer) -> None:
    kubectl = need_kubectl()
    command = [kubectl, "create", "configmap", "by-kubectl"]
    subprocess.run(command, env=kedge_server.environment, check=True, capture_output=True, timeout=60)
    assert core(kedge_server).read_namespaced_config_map("by-kubectl", "default").metadata.name == "by-kubectl"


def test_a_store_that_does_not_exist_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    thread = ServerThread(tmp_path_factory.mktemp("thread"))
    try:
        with pytest.raises(ValueError, match="memory, sqlite"), thread.server("etcd", tmp_path_factory.mktemp("x")):
            pass
    finally:
        thread.close()
