"""Subscribers of a cache's changes. A handler that raises is reported and does not affect the others.

The handlers of a long list are called in several steps of the event loop: until they end, state that they derive lags
behind the cache, and `notifying` is set.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from kedge.api.objects import Object
from kedge.env import Env
from kedge.errors import check
from kedge.runtime.cache.received import CacheChange, ChangeType
from kedge.runtime.steps import StepBudget

Handler = Callable[[CacheChange], None]
"""Called in the step that changes the cache, so it must be quick and must not wait: add a key to a queue, no more."""
_CALLS = 32
"""Calls of a handler between two looks at the clock."""
Report = Callable[[Exception, str], None]


class Subscription:
    """One handler of a cache."""

    __slots__ = ("_subscribers", "handler", "name")

    def __init__(self, subscribers: dict[Subscription, None], handler: Handler, name: str) -> None:
        self._subscribers = subscribers
        self.handler = handler
        self.name = name

    def close(self) -> None:
        self._subscribers.pop(self, None)


class Subscribers:
    """Handlers, called one after another in the order of subscription."""

    def __init__(self, report: Report, env: Env, cache: str) -> None:
        self._report = report
        self._env = env
        self._cache = cache
        self._subscriptions: dict[Subscription, None] = {}
        self._owed: deque[tuple[Subscription, Iterator[CacheChange]]] = deque()
        """Calls that did not fit into the step of their list. The watcher applies nothing before they end."""
        self._notified = asyncio.Event()

    def __len__(self) -> int:
        return len(self._subscriptions)

    def add(self, handler: Handler, name: str, first: Sequence[Object]) -> Subscription:
        """Notify a new handler of the objects that are there, as added, and from then on of every change."""
        check(not inspect.iscoroutinefunction(handler), f"handler {name!r} must not be async: let it wake a queue")
        subscription = Subscription(self._subscriptions, handler, name)
        self._subscriptions[subscription] = None
        added = (CacheChange(ChangeType.ADDED, each.key, None, each, each.revision) for each in first)
        self._notify_later([(subscription, added)])
        return subscription

    def notify(self, changes: Sequence[CacheChange]) -> None:
        """Call all handlers. A long list takes several steps."""
        subscriptions = tuple(self._subscriptions)
        if not self._owed and len(changes) <= _CALLS:
            for subscription in subscriptions:
                self._call(subscription, changes)
            return
        self._notify_later([(subscription, iter(changes)) for subscription in subscriptions])

    def _notify_later(self, calls: Sequence[tuple[Subscription, Iterator[CacheChange]]]) -> None:
        going_on = bool(self._owed)
        self._owed.extend(calls)
        if not going_on:
            self._notified.clear()
            self._notify_owed(StepBudget(self._env, f"handlers of {self._cache}"))

    def _notify_owed(self, step: StepBudget) -> None:
        """One step of the calls that are owed."""
        step.begin()
        while self._owed:
            subscription, changes = self._owed[0]
            part = list(islice(changes, _CALLS)) if subscription in self._subscriptions else []
            if not part:
                self._owed.popleft()
                continue
            self._call(subscription, part)
            if step.used_up():
                asyncio.get_running_loop().call_soon(self._notify_owed, step)
                return
        self._notified.set()

    def _call(self, subscription: Subscription, changes: Sequence[CacheChange]) -> None:
        handler = subscription.handler
        for change in changes:
            try:
                handler(change)
            except Exception as error:  # noqa: BLE001  the handler is the caller's
                self._report(error, f"handler {subscription.name}")

    @property
    def notifying(self) -> bool:
        """Whether calls are owed."""
        return bool(self._owed)

    async def wait_notified(self) -> None:
        """Wait until no call is owed."""
        while self._owed:
            await self._notified.wait()
