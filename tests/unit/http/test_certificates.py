"""Files with certificates: they are kept while clients accept them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from kedge.server.http.certificates import Authority, Certificate, write_private

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_client_certificate_is_kept_until_it_is_about_to_expire(tmp_path: Path) -> None:
    authority, path = Authority.ensure(tmp_path, NOW), tmp_path / "agent.pem"
    authority.ensure_client(path, "agent", (), NOW)
    first = path.read_bytes()
    authority.ensure_client(path, "agent", (), NOW + timedelta(days=334))
    assert path.read_bytes() == first
    authority.ensure_client(path, "agent", (), NOW + timedelta(days=336))
    assert path.read_bytes() != first


def test_a_certificate_that_does_not_name_the_key_of_its_issuer_is_made_again(tmp_path: Path) -> None:
    """Files of earlier versions: clients that check strictly, as Python does from 3.13 on, refuse them."""
    authority, path = Authority.ensure(tmp_path, NOW), tmp_path / "agent.pem"
    made = authority.issue_client("agent", ("nodes",), NOW)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder(
        issuer_name=made.certificate.issuer,
        subject_name=made.certificate.subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=NOW,
        not_valid_after=NOW + timedelta(days=300),
    )
    old = Certificate(builder.sign(authority.own.key, hashes.SHA256()), key)
    write_private(path, old.pem)
    authority.ensure_client(path, "agent", ("nodes",), NOW)
    found = Certificate.read(path)
    assert found is not None
    named = found.certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert named == authority.key_identifier
