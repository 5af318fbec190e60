"""The page of a running cluster: its history since the page was first opened, for each user by the user's own rights.

`live_records` has the decisions and caches of the components, which are in this process or in others. Nothing is
recorded before the first user opens the page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kedge.api.access import Attributes, Caller
from kedge.api.kinds import KINDS
from kedge.cli.debug_pages import CACHES_PATH, QUEUES_PATH
from kedge.cli.declared_components import declared_fields
from kedge.cli.live_history import HistoryRecorder
from kedge.cli.live_records import DECISIONS_MAX, NOT_RECORDED, LiveRecords
from kedge.cli.page_actions import page_actions
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import NotFound
from kedge.keys import Revision
from kedge.observe.readers.recording import Recording
from kedge.observe.records import StoreState
from kedge.server.service import Service
from kedge.ui.documents import Documents
from kedge.ui.visible_part import folded_state, visible_part

COMMITS_MAX: Final = 20_000
"""Commits that the page of a running cluster goes back; the oldest half is dropped when there are more."""
USERS_MAX: Final = 20
"""Users whose documents are kept between two requests."""
FRESH_S: Final = 1.0
"""Documents are made again after so long at the earliest: a page asks several times a second."""
IDLE_S: Final = 900.0
"""Recording ends when no page has asked for a document for so long."""
RECORDED: Final = tuple(kind for kind in KINDS if kind.key_kind not in NOT_RECORDED)


@dataclass(slots=True)
class _Made:
    at_s: float
    documents: Documents


@dataclass(slots=True)
class LivePage:
    """Implements `ui.page_handler.PageSource` for the users of a cluster."""

    client: Client
    records: LiveRecords
    service: Service
    env: Env
    title: str
    _recorder: HistoryRecorder | None = None
    _state: StoreState | None = None
    _asked_s: float = 0.0
    _begins: asyncio.Lock = field(default_factory=asyncio.Lock)
    _made: dict[Caller, _Made] = field(default_factory=dict)

    async def document(self, user: Caller, name: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        if name == "queues":
            self.service.access.check_path(user, "get", QUEUES_PATH)
            return self.records.queues()
        if name == "caches":
            self.service.access.check_path(user, "get", CACHES_PATH)
            return self.records.caches(self._newest())
        return (await self._documents(user)).document(name, parameters)

    async def act(self, user: Caller, name: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        recording = (await self._documents(user)).history.recording
        action = page_actions(recording).get(name)
        if action is None:
            raise NotFound(f"there is no action {name}")
        return await action(parameters)

    def _newest(self) -> Revision:
        commits = [] if self._recorder is None else self._recorder.so_far()
        return commits[-1].revision if commits else 0 if self._state is None else self._state.revision

    async def run(self) -> None:
        """End the recording when no page asks for it, for ever."""
        while True:
            await asyncio.sleep(IDLE_S / 10)
            if self._recorder is not None and self.env.monotonic() - self._asked_s > IDLE_S:
                recorder, self._recorder = self._recorder, None
                self._made.clear()
                await recorder.abandon()
                await self.records.end()

    async def _documents(self, user: Caller) -> Documents:
        now_s = self._asked_s = self.env.monotonic()
        await self._ensure_recording()
        known = self._made.get(user)
        if known is not None and now_s - known.at_s < FRESH_S:
            return known.documents
        recording = visible_part(self._recording(), self._rights_of(user))
        while len(self._made) >= USERS_MAX:
            del self._made[next(iter(self._made))]
        made = Documents(
            recording,
            self.title,
            declared_fields=declared_fields(recording),
            live=True,
            whole_logs=self.records.whole_logs,
        )
        self._made[user] = _Made(now_s, made)
        return made

    async def _ensure_recording(self) -> None:
        async with self._begins:
            if self._recorder is not None and self._recorder.failed():
                await self._recorder.abandon()
                self._recorder = None
            if self._recorder is None:
                recorder = HistoryRecorder(self.client, self.env, RECORDED)
                self._state = await recorder.start()
                self._recorder = recorder
            await self.records.follow()

    def _recording(self) -> Recording:
        recorder, state = self._recorder, self._state
        assert recorder is not None
        assert state is not None
        if len(recorder.commits) > COMMITS_MAX:
            old = recorder.commits[: COMMITS_MAX // 2]
            del recorder.commits[: COMMITS_MAX // 2]
            self._state = state = folded_state(state, old)
        found = self.records.recording()
        return replace(
            found,
            states=[state],
            commits=recorder.so_far(),
            decisions=found.decisions[-DECISIONS_MAX:],
            received=[each for each in found.received if each.cache.partition("[")[0] not in NOT_RECORDED],
            undecoded=[
                f"objects before {state.at:%H:%M:%S}, when the page was first opened; Secrets and Events",
                *found.undecoded,
            ],
        )

    def _rights_of(self, user: Caller) -> Any:
        answers: dict[tuple[str, str], bool] = {}

        def may_list(kind: str, namespace: str) -> bool:
            known = answers.get((kind, namespace))
            if known is None:
                known = answers[kind, namespace] = self._may_list(user, kind, namespace)
            return known

        return may_list

    def _may_list(self, user: Caller, kind: str, namespace: str) -> bool:
        try:
            found = KINDS.of_key_kind(kind)
        except NotFound:
            return False
        wanted = Attributes("list", found.group, found.plural, "", namespace, "")
        return self.service.access.allows_nowait(user, wanted) is True
