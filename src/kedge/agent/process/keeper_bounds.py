"""The bounds of the keeper. Standard library only.

They are fixed: a keeper outlives agents and their configuration, and one that took limits from its first agent would
keep them after they were changed. `docs/configuration.md` lists them, made from this file.
"""

from __future__ import annotations

CLIENTS_MAX = 64
"""connections to one keeper, of which an agent needs one; one more is closed at once"""
LINE_BYTES_MAX = 4 * 1024 * 1024
"""one request: above the 3 MiB that the API takes for the pod that it comes from"""
UNSENT_BYTES_MAX = 16 * 1024 * 1024
"""replies that a client has not read; above this it is disconnected, so that it cannot fill memory"""
UNSENT_BYTES_PAUSE = 256 * 1024
"""with so many unread bytes no more requests of the client are taken"""
UNSENT_S_MAX = 10.0
"""a client that reads nothing for so long is disconnected: a paused agent connects again"""
COMMANDS_MAX = 512
"""probes and exec commands that run at once, several for each of the 110 pods of a node; one more is refused"""
RESULTS_MAX = 1024
"""exit codes of commands that no client has read; the oldest is dropped, because an agent that was killed reads none"""
MARKS_MAX = 4096
"""times kept of one log file; when there are more, every second one is dropped"""
