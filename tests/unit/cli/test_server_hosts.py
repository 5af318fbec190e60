"""The names in the API server's certificate: those by which clients on this and on other machines reach it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from cryptography import x509

from kedge.cli.server import advertised_hosts, ensure_identity, machine_hosts
from kedge.env import system_env

LOCAL = {"127.0.0.1", "::1", "localhost"}


def names_in(folder: Path) -> set[str]:
    found = x509.load_pem_x509_certificate((folder / "serving.pem").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {str(each) for each in names.get_values_for_type(x509.IPAddress)}
    return addresses | set(names.get_values_for_type(x509.DNSName))


def test_a_server_on_every_address_is_known_by_the_machines_name(tmp_path: Path) -> None:
    ensure_identity(tmp_path, "0.0.0.0", system_env())
    assert names_in(tmp_path) == LOCAL | set(machine_hosts())
    assert socket.gethostname() in names_in(tmp_path)


def test_advertised_hosts_are_in_the_certificate_which_is_made_again_for_others(tmp_path: Path) -> None:
    ensure_identity(tmp_path, "127.0.0.1", system_env())
    assert names_in(tmp_path) == LOCAL
    ensure_identity(tmp_path, "0.0.0.0", system_env(), ("kedge.example", "192.0.2.7"))
    assert names_in(tmp_path) == LOCAL | {"kedge.example", "192.0.2.7"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", ()), ("a", ("a",)), (" a , [::2],a,", ("a", "::2"))],
)
def test_hosts_are_separated_by_commas(text: str, expected: tuple[str, ...]) -> None:
    assert advertised_hosts(text) == expected
