"""The configuration file: its fields, reading it, `--config`, and its page in the docs.

Fields are not listed here: they are the options of the verbs that run components, and the limits.
"""

from __future__ import annotations
