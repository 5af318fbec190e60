"""Who is told of a cache's changes. A handler's mistake is reported, and is no business of the others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from kedge.errors import check
from kedge.runtime.cache.received import CacheChange

Handler = Callable[[CacheChange], None]
"""Called in the step that changes the cache, so it must be quick and must not wait: put a key in a queue, no more."""
Report = Callable[[Exception, str], None]


class Subscription:
    """One handler's place among a cache's subscribers."""

    __slots__ = ("_subscribers", "handler", "name")

    def __init__(self, subscribers: dict[Subscription, None], handler: Handler, name: str) -> None:
        self._subscribers = subscribers
        self.handler = handler
        self.name = name

    def close(self) -> None:
        self._subscribers.pop(self, None)


class Subscribers:
    """Told one after another, in the order they came."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._subscriptions: dict[Subscription, None] = {}

    def __len__(self) -> int:
        return len(self._subscriptions)

    def add(self, handler: Handler, name: str, first: Sequence[CacheChange]) -> Subscription:
        """Tell `first` to a new subscriber, and from then on all that comes."""
        check(not inspect.iscoroutinefunction(handler), f"handler {name!r} must not be async: let it wake a queue")
        subscription = Subscription(self._subscriptions, handler, name)
        self._subscriptions[subscription] = None
        self.tell(first, (subscription,))
        return subscription

    def tell(self, changes: Sequence[CacheChange], only: Sequence[Subscription] = ()) -> None:
        """Tell all of them, or `only` some."""
        for subscription in only or tuple(self._subscriptions):
            handler = subscription.handler
            for change in changes:
                try:
                    handler(change)
                except Exception as error:  # noqa: BLE001  it is somebody else's function
                    self._report(error, f"handler {subscription.name}")
