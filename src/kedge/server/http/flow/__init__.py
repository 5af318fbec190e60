"""Priority and fairness: which requests the server begins now, which wait, and which get 429."""

from kedge.server.http.flow.control import GET_UNITS, TOKEN_UNITS, FlowControl, Seat
from kedge.server.http.flow.watch_counts import WatchCounts

__all__ = ["GET_UNITS", "TOKEN_UNITS", "FlowControl", "Seat", "WatchCounts"]
