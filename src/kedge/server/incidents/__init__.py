"""Incidents: records that the processes of a cluster send to a server, for `kedge incident` to make one file of."""

from kedge.server.incidents.folder import IncidentFolder, IncidentListing, PartListing, ProcessListing

__all__ = ["IncidentFolder", "IncidentListing", "PartListing", "ProcessListing"]
