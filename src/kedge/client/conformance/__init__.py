"""The suite that every transport passes unchanged: `check_client(make_subject)`. Ships with kedge, needs no pytest."""

from kedge.client.conformance.subject import ClientSubject, MakeSubject
from kedge.client.conformance.suite import CLIENT_CHECKS, check_client, client_check_names

__all__ = ["CLIENT_CHECKS", "ClientSubject", "MakeSubject", "check_client", "client_check_names"]
