"""Subscribers of a cache's changes. A handler that raises is reported and does not affect the others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from kedge.errors import check
from kedge.runtime.cache.received import CacheChange

Handler = Callable[[CacheChange], None]
"""Called in the step that changes the cache, so it must be quick and must not wait: add a key to a queue, no more."""
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

    def __init__(self, report: Report) -> None:
        self._report = report
        self._subscriptions: dict[Subscription, None] = {}

    def __len__(self) -> int:
        return len(self._subscriptions)

    def add(self, handler: Handler, name: str, first: Sequence[CacheChange]) -> Subscription:
        """Notify a new handler of `first`, and from then on of every change."""
        check(not inspect.iscoroutinefunction(handler), f"handler {name!r} must not be async: let it wake a queue")
        subscription = Subscription(self._subscriptions, handler, name)
        self._subscriptions[subscription] = None
        self.notify(first, (subscription,))
        return subscription

    def notify(self, changes: Sequence[CacheChange], only: Sequence[Subscription] = ()) -> None:
        """Call all handlers, or `only` some."""
        for subscription in only or tuple(self._subscriptions):
            handler = subscription.handler
            for change in changes:
                try:
                    handler(change)
                except Exception as error:  # noqa: BLE001  the handler is the caller's
                    self._report(error, f"handler {subscription.name}")
