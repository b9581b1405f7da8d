"""The base of all controllers: a queue of keys, and one key at a time.

A controller's `reconcile` is synchronous: it looks at the state and changes it, within one turn of the event loop.
Between two keys requests are served. Listeners of the store only put keys into the queue: all watchers must have a
change before another change answers it.
"""

import asyncio
from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from kaicore.backoff import backoff
from kaicore.runtime.service import get_logger

from kai_apiserver.errors import StatusError
from kai_apiserver.rest.backend import Backend

KeyT = TypeVar("KeyT")

_RETRY_S = 0.05
_RETRY_MOST_S = 5.0


class Controller(ABC, Generic[KeyT]):
    """One controller; keys are what it reconciles, such as an object's key."""

    name: ClassVar[str]

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._waiting: dict[KeyT, None] = {}
        self._timers: dict[KeyT, tuple[float, asyncio.TimerHandle]] = {}
        self._failures: dict[KeyT, int] = {}
        self._wakeup = asyncio.Event()
        self._log = get_logger(controller=self.name)

    @abstractmethod
    def reconcile(self, key: KeyT) -> float | None:
        """Bring one thing into the state it should be in.

        Returns:
            seconds after which to look again whatever happens until then, or None.
        """

    @abstractmethod
    def begin(self) -> None:
        """Subscribe to the store, and queue what is there already."""

    def queue(self, key: KeyT) -> None:
        """Reconcile a key soon."""
        self._waiting[key] = None
        self._wakeup.set()

    def queue_after(self, key: KeyT, seconds: float) -> None:
        """Reconcile a key in so many seconds, unless an earlier such time is set already."""
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        present = self._timers.get(key)
        if present is not None:
            if present[0] <= when:
                return
            present[1].cancel()
        self._timers[key] = (when, loop.call_at(when, self._due, key))

    def _due(self, key: KeyT) -> None:
        self._timers.pop(key, None)
        self.queue(key)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        self.begin()
        try:
            while True:
                await self._wakeup.wait()
                while self._waiting:
                    key = next(iter(self._waiting))
                    del self._waiting[key]
                    self._attempt(key)
                    await asyncio.sleep(0)
                self._wakeup.clear()
        finally:
            for _, timer in self._timers.values():
                timer.cancel()

    def _attempt(self, key: KeyT) -> None:
        try:
            again = self.reconcile(key)
        except StatusError as error:
            self._retry(key, str(error))
            return
        except Exception:
            self._log.exception("reconciling failed", key=str(key))
            self._retry(key, "")
            return
        self._failures.pop(key, None)
        if again is not None:
            self.queue_after(key, again)

    def _retry(self, key: KeyT, why: str) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        if why:
            self._log.info("reconciling will be tried again", key=str(key), why=why)
        self.queue_after(key, backoff(failures, first=_RETRY_S, most=_RETRY_MOST_S))
