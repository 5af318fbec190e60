"""The page: documents made from records, the files of a browser application, and the server of a recording's page."""

from kedge.ui.documents import Documents
from kedge.ui.page_server import PageServer, RecordingSource

__all__ = ["Documents", "PageServer", "RecordingSource"]
