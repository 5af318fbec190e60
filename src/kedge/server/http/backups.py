"""`GET /kedge/backup`: the whole store as a backup file, from a running server. Only cluster-admin allows it."""

from __future__ import annotations

from kedge.api.access import Caller
from kedge.api.timestamps import format_time
from kedge.env import Env
from kedge.server.http.exchange import Exchange
from kedge.server.service import Service
from kedge.store.backup import encode_backup

BACKUP_PATH = b"/kedge/backup"
BACKUP_TYPE = b"application/vnd.kedge.backup"


async def serve_backup(service: Service, env: Env, caller: Caller, exchange: Exchange) -> None:
    """Stream it. A client that reads slowly costs one slice of memory, and a snapshot of references."""
    service.access.check_path(caller, "get", BACKUP_PATH.decode())  # it has every Secret
    export = await service.export()
    exchange.start(200, content_type=BACKUP_TYPE)
    async for part in encode_backup(export, format_time(env.now())):
        exchange.write(part)
        await exchange.drained()
        if exchange.closed:
            return
    exchange.end()
