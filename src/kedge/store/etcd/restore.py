"""Writes a backup to an empty prefix of etcd. Until the last step the meta key marks the prefix as unfinished.

No store opens an unfinished prefix; a repeated restore clears it and begins again. etcd numbers the revisions, so
objects get new ones, all above `backup revision + RESTORE_BUMP`, in the order in which they were created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from kedge.env import Env
from kedge.errors import KedgeError, Terminal, Unavailable, check
from kedge.keys import Revision
from kedge.limits import Limits
from kedge.store.backup import BackupTotal, Digest
from kedge.store.contract import RESTORE_BUMP, Entry, Put
from kedge.store.etcd import messages as m
from kedge.store.etcd.access import EtcdLogin, EtcdTls
from kedge.store.etcd.diagnosis import diagnosed
from kedge.store.etcd.layout import Era, Layout, Meta, cluster_of
from kedge.store.etcd.transactions import MetaEntry, meta_entry_in, plan_clear, plan_commit, plan_meta
from kedge.store.etcd.transport import RANGE, TXN, EtcdTransport

_VERIFY_PAGE = 1_000


async def restore_to_etcd(
    endpoints: Sequence[str],
    env: Env,
    entries: Iterable[Entry],
    revision: Revision,
    *,
    prefix: str,
    tls: EtcdTls | None = None,
    login: EtcdLogin | None = None,
    progress: Callable[[int], None],
) -> BackupTotal:
    """Write every object, read all of it back, then let stores open it.

    Raises:
        Terminal: the prefix has a store or other keys, or another restore runs.
        Unavailable: etcd failed in between. Run it again: it starts over.
    """
    transport = EtcdTransport(endpoints, env, tls=tls, login=login)
    restoring = _Restoring(transport, Layout(prefix), env)
    try:
        await restoring.claim(revision)
        total = await restoring.write(sorted(entries, key=lambda each: (each.created, each.origin, each.key)), progress)
        found = await restoring.read_back()
        if found != total:
            raise Terminal(f"etcd has {found} where {total} was written: is another program writing below {prefix}?")
        await restoring.finish()
    except Unavailable as error:
        cause = await diagnosed(error, transport.addresses, tls, within_s=env.limits.store_connect_s)
        raise type(cause)(f"{cause}: the restore is not finished: run it again") from error
    finally:
        await transport.close()
    return total


class _Restoring:
    def __init__(self, transport: EtcdTransport, layout: Layout, env: Env) -> None:
        self._transport = transport
        self._layout = layout
        self._env = env

    async def claim(self, revision: Revision) -> None:
        """Mark the prefix as unfinished, if it is empty or an earlier restore left it so; clear it."""
        prefix = self._layout.start.decode()
        response = await self._transport.send_until_answered(RANGE, m.RangeRequest(key=self._layout.meta))
        known = meta_entry_in(response)
        if known is not None and not known.meta.restoring:
            raise Terminal(
                f"{prefix} in etcd has a store already: restore to another --etcd-prefix, or delete it first"
            )
        if known is None:
            found = await self._range(self._layout.start, limit=1)
            if found.kvs:
                raise Terminal(f"{prefix} in etcd has keys of another program: restore to another --etcd-prefix")
        eras = (Era(0, revision + RESTORE_BUMP),)
        meta = Meta(self._env.new_uid(), cluster_of(response.header), eras, restoring=True)
        self._meta_entry = await self._write_meta(known, meta)
        await self._send(plan_clear(self._layout, self._meta_entry))

    async def write(self, entries: Sequence[Entry], progress: Callable[[int], None]) -> BackupTotal:
        digest = Digest()
        for commit in _commits(entries, self._env.limits):
            writes = [Put(entry.key, entry.value) for entry in commit]
            await self._send(plan_commit(self._layout, self._meta_entry, (), writes, None, commit[0].origin))
            digest.add(commit)
            progress(digest.objects)
        return digest.total

    async def read_back(self) -> BackupTotal:
        digest, start = Digest(), self._layout.objects
        while True:
            found = await self._range(start, end=self._layout.objects_end, limit=_VERIFY_PAGE)
            digest.add(self._layout.entry(kv, self._meta_entry.meta) for kv in found.kvs)
            if not found.more:
                return digest.total
            start = found.kvs[-1].key + b"\0"

    async def finish(self) -> None:
        meta = msgspec.structs.replace(self._meta_entry.meta, restoring=False)
        await self._write_meta(self._meta_entry, meta)

    async def _write_meta(self, known: MetaEntry | None, meta: Meta) -> MetaEntry:
        response = await self._send(plan_meta(self._layout, known, meta))
        return MetaEntry(meta, response.header.revision)

    async def _send(self, request: Any) -> Any:
        try:
            response = await self._transport.send_once(TXN, request)
        except KedgeError as error:
            raise Unavailable(f"etcd did not confirm a write ({error})") from error
        if not response.succeeded:
            raise Terminal("another restore to the same prefix is running: let it finish")
        return response

    async def _range(self, start: bytes, *, end: bytes = b"", limit: int) -> Any:
        request = m.RangeRequest(key=start, range_end=end or self._layout.end, limit=limit)
        return await self._transport.send_until_answered(RANGE, request)


def _commits(entries: Sequence[Entry], limits: Limits) -> Iterator[list[Entry]]:
    """Objects of one creation and one origin share a commit, as far as the limits allow."""
    ops_max, bytes_max = limits.commit_ops_max // 2, limits.commit_bytes_max // 2
    for _, group in groupby(entries, key=lambda each: (each.created, each.origin)):
        commit: list[Entry] = []
        size = 0
        for entry in group:
            if commit and (len(commit) >= ops_max or size + len(entry.value) > bytes_max):
                yield commit
                commit, size = [], 0
            commit.append(entry)
            size += len(entry.value)
        check(commit, "a group has an entry")
        yield commit
