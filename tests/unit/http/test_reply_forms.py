"""Forms of replies over raw HTTP: compressed, indented, metadata alone, and discovery in both forms."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from tests.kit.api_server import exchange, local_api
from tests.kit.loops import on_loop
from tests.kit.raw_http import CONFIG_MAPS, MERGE, STRATEGIC, create_config_map, sent

from kedge.server.http.replies import GZIP_BYTES_MIN

PARTIAL = "application/json;as=PartialObjectMetadata{};v=v1;g=meta.k8s.io"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
LARGE = {"metadata": {"name": "large"}, "data": {"x": "x" * GZIP_BYTES_MIN}}


async def fetched(port: int, path: str, *headers: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """The code, the headers by lower-case name, and the body without its transfer coding."""
    request = "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *headers, "", ""])
    head, _, body = (await exchange(port, request.encode(), end=False)).partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    named = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
    if named.get("transfer-encoding") == "chunked":
        whole = b""
        while (size := int(body[: body.index(b"\r\n")], 16)) > 0:
            body = body[body.index(b"\r\n") + 2 :]
            whole, body = whole + body[:size], body[size + 2 :]
        body = whole
    return int(first.split()[1]), named, body


async def fill(port: int) -> None:
    await create_config_map(port, "small")
    await sent(port, "POST", CONFIG_MAPS, LARGE)
    for number in range(40):  # more than one slice of a list
        await sent(port, "POST", CONFIG_MAPS, {"metadata": {"name": f"m{number:02}", "labels": {"n": str(number)}}})


@on_loop
async def test_large_replies_are_compressed_when_the_client_accepts_that() -> None:
    async with local_api() as (_, port):
        await fill(port)
        for path in (f"{CONFIG_MAPS}/large", CONFIG_MAPS, f"{CONFIG_MAPS}?labelSelector=n", f"{CONFIG_MAPS}?pretty=1"):
            _, _, plain = await fetched(port, path)
            code, headers, body = await fetched(port, path, "Accept-Encoding: br, gzip")
            assert (code, headers["content-encoding"]) == (200, "gzip")
            assert gzip.decompress(body) == plain
            assert len(body) < len(plain)


@on_loop
async def test_small_replies_and_replies_to_clients_that_refuse_it_are_not_compressed() -> None:
    async with local_api() as (_, port):
        await fill(port)
        for path, accepted in ((f"{CONFIG_MAPS}/small", "gzip"), (f"{CONFIG_MAPS}/large", "gzip;q=0, identity")):
            _, headers, body = await fetched(port, path, f"Accept-Encoding: {accepted}")
            assert "content-encoding" not in headers
            assert int(headers["content-length"]) == len(body)
            assert json.loads(body)["kind"] == "ConfigMap"


@pytest.mark.parametrize("suffix", ["/small", "", "?limit=2", "?labelSelector=n"])
def test_pretty_indents_the_same_document(suffix: str) -> None:
    @on_loop
    async def check() -> None:
        async with local_api() as (_, port):
            await fill(port)
            path = f"{CONFIG_MAPS}{suffix}"
            _, _, plain = await fetched(port, path)
            for value in ("true", "1"):
                _, _, pretty = await fetched(port, f"{path}{'&' if '?' in path else '?'}pretty={value}")
                assert json.loads(pretty) == json.loads(plain)
                assert pretty.decode() == json.dumps(json.loads(plain), indent=2, ensure_ascii=False)
            _, _, off = await fetched(port, f"{path}{'&' if '?' in path else '?'}pretty=false")
            assert off == plain

    check()


@on_loop
async def test_an_object_and_a_list_are_served_as_metadata_alone() -> None:
    async with local_api() as (_, port):
        await fill(port)
        _, _, one = await fetched(port, f"{CONFIG_MAPS}/large", f"Accept: {PARTIAL.format('')}")
        _, _, many = await fetched(port, CONFIG_MAPS, f"Accept: {PARTIAL.format('List')}, application/json")
        _, _, page = await fetched(port, f"{CONFIG_MAPS}?limit=2", f"Accept: {PARTIAL.format('List')}")
        _, _, whole = await fetched(port, CONFIG_MAPS)
    shown, listed, full = json.loads(one), json.loads(many), json.loads(whole)
    assert (shown["kind"], shown["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert set(shown) == {"kind", "apiVersion", "metadata"}
    assert shown["metadata"] in [each["metadata"] for each in full["items"]]
    assert (listed["kind"], listed["metadata"]) == ("PartialObjectMetadataList", full["metadata"])
    assert [each["metadata"] for each in listed["items"]] == [each["metadata"] for each in full["items"]]
    assert all(set(each) == {"kind", "apiVersion", "metadata"} for each in listed["items"])
    assert json.loads(page)["metadata"]["continue"]
    assert json.loads(page)["metadata"]["remainingItemCount"] == len(full["items"]) - 2


def _aggregated_resources(found: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (group["metadata"].get("name", ""), each["resource"]): each
        for group in found["items"]
        for version in group["versions"]
        for each in version["resources"]
    }


@on_loop
async def test_aggregated_and_legacy_discovery_list_the_same_resources() -> None:
    async with local_api() as (_, port):
        aggregated: dict[tuple[str, str], dict[str, Any]] = {}
        for path in ("/api", "/apis"):
            code, headers, body = await fetched(port, path, f"Accept: {AGGREGATED},application/json")
            assert (code, headers["content-type"]) == (200, AGGREGATED)
            found = json.loads(body)
            assert (found["kind"], found["apiVersion"]) == ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2")
            aggregated |= _aggregated_resources(found)
        _, headers, body = await fetched(port, "/api")
        assert headers["content-type"] == "application/json"
        assert (json.loads(body)["kind"], json.loads(body)["versions"]) == ("APIVersions", ["v1"])
        _, _, groups_body = await fetched(port, "/apis", "Accept: application/json")
        groups = json.loads(groups_body)
        assert groups["kind"] == "APIGroupList"
        paths = [("", "/api/v1")]
        for group in groups["groups"]:
            paths += [(group["name"], f"/apis/{version['groupVersion']}") for version in group["versions"]]
            _, _, alone = await fetched(port, f"/apis/{group['name']}")
            assert json.loads(alone)["preferredVersion"] == group["preferredVersion"]
        legacy: dict[tuple[str, str], dict[str, Any]] = {}
        for group_name, path in paths:
            _, _, body = await fetched(port, path)
            listed = json.loads(body)
            assert (listed["kind"], listed["groupVersion"]) == ("APIResourceList", path.split("/", 2)[2])
            legacy |= {(group_name, each["name"]): each for each in listed["resources"]}
        missing, _, _ = await fetched(port, "/apis/nothing.example/v1")
    assert missing == 404
    assert {name for name in legacy if "/" not in name[1]} == set(aggregated)
    for name, each in aggregated.items():
        assert each["verbs"] == legacy[name]["verbs"]
        assert (each["scope"] == "Namespaced") == legacy[name]["namespaced"]
        assert each["responseKind"]["kind"] == legacy[name]["kind"]
        subresources = {(name[0], f"{name[1]}/{sub['subresource']}") for sub in each.get("subresources", ())}
        assert subresources == {key for key in legacy if key[0] == name[0] and key[1].startswith(f"{name[1]}/")}
    assert ("", "pods/eviction") in legacy
    assert ("apps", "deployments/scale") in legacy


@on_loop
async def test_a_strategic_merge_of_a_kind_of_kedge_is_an_unsupported_media_type() -> None:
    path = "/apis/kedge.dev/v1/namespaces/default/zonequotas"
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        code, _, made = await sent(port, "POST", path, {"metadata": {"name": "p"}, "spec": {"zones": {}}})
        assert code == 201, made
        patch = {"metadata": {"labels": {"a": "b"}}}
        refused, _, status = await sent(port, "PATCH", f"{path}/p", patch, STRATEGIC)
        merged, _, after = await sent(port, "PATCH", f"{path}/p", patch, MERGE)
        unknown, _, other = await sent(port, "PATCH", f"{path}/p", patch, "application/apply-patch+yaml")
    assert (refused, status["reason"]) == (415, "UnsupportedMediaType")
    assert MERGE in status["message"]
    assert (unknown, other["reason"]) == (415, "UnsupportedMediaType")
    assert (merged, after["metadata"]["labels"]) == (200, {"a": "b"})
