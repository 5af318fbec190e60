"""The address that an agent publishes if it listens on all addresses of its machine."""

from __future__ import annotations

import pytest
from tests.objects import asynchronous

from kedge.cli.agent import facing_address
from kedge.client.http import ServerAddress
from kedge.errors import Unavailable


@asynchronous
async def test_it_is_the_address_on_the_way_to_the_server_by_name_or_number() -> None:
    for host in ("127.0.0.1", "127.0.0.5", "localhost"):
        assert await facing_address("0.0.0.0", ServerAddress(host, 6443)) == "127.0.0.1"


@asynchronous
async def test_without_a_way_to_the_server_the_error_names_the_option() -> None:
    with pytest.raises(Unavailable, match=r"leads to nowhere\.invalid: .*pass --listen"):
        await facing_address("0.0.0.0", ServerAddress("nowhere.invalid", 6443))
