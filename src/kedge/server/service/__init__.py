"""The API without a transport: verbs, admission, quotas, claims, the bind."""

from kedge.server.service.admission import AdmissionChain, AdmissionRequest, FunctionPolicy, mutations_of
from kedge.server.service.service import Service

__all__ = ["AdmissionChain", "AdmissionRequest", "FunctionPolicy", "Service", "mutations_of"]
