"""The base of all controllers: a queue of keys, and one key at a time.

A controller's `reconcile` is synchronous: it looks at the state and changes it, within one turn of the event loop.
Between two keys requests are served. Listeners of the store only put keys into the queue: all watchers must have a
change before another change answers it.

Objects that controllers make: each carries a reference to the object that it was made for.

Delays before a controller replaces what failed: longer with each failure in a row.
"""

import asyncio
from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from kaicore.backoff import backoff
from kaicore.rules.objects.mappings import controlled_by
from kaicore.runtime.service import get_logger

from kai_apiserver.errors import StatusError
from kai_apiserver.objects import Object
from kai_apiserver.resources.registry import ResourceType
from kai_apiserver.rest.backend import Backend, Operation, Target
from kai_apiserver.rest.deletion import DeleteOptions, delete
from kai_apiserver.rest.writing import commit, create
from kai_apiserver.store import Event, Stored

#: The longest wait, in first waits: ten minutes of ten seconds each in the real Job controller.
_MOST = 60.0


@dataclass(slots=True)
class _Failures:
    """Failures since the last success, and when the last was (seconds since 1970)."""

    count: int = 0
    last_s: float = 0.0


class Backoffs:
    """The waits of a controller's objects, by uid; forgotten on restart."""

    def __init__(self, base_s: float) -> None:
        """`base_s` is the first wait; it doubles with each failure."""
        self._base_s = base_s
        self._failures: dict[str, _Failures] = {}

    def failed(self, uid: str, now_s: float) -> None:
        """Something of the object has failed."""
        failures = self._failures.setdefault(uid, _Failures())
        failures.count += 1
        failures.last_s = now_s

    def forget(self, uid: str) -> None:
        """Something of it has succeeded, or the object is gone."""
        self._failures.pop(uid, None)

    def count(self, uid: str) -> int:
        """The number of failures of the object since the last success."""
        failures = self._failures.get(uid)
        return failures.count if failures is not None else 0

    def remaining(self, uid: str, now_s: float) -> float:
        """Seconds left to wait; not positive if it is time."""
        failures = self._failures.get(uid)
        if failures is None:
            return 0.0
        return failures.last_s + backoff(failures.count, first=self._base_s, most=_MOST * self._base_s) - now_s


#: Pods per second of waiting before their owner is looked at again because of one of them; changes gather meanwhile.
_DEPENDENTS_PER_SECOND = 5000.0
_LONGEST_GATHERING_S = 1.0
_NAME_MOST = 57  # leaves room for a generated suffix within a DNS label


def controlled_pod(owner: Object, *, name: str = "") -> Object:
    """A new pod of `owner`'s template; its name begins with `name`, by default the owner's."""
    template = deepcopy(owner["spec"]["template"])
    given = template.get("metadata") or {}
    base = (name or owner["metadata"]["name"])[:_NAME_MOST]
    metadata: Object = {
        "generateName": f"{base}-",
        "namespace": owner["metadata"]["namespace"],
        "labels": dict(given.get("labels") or {}),
        "annotations": dict(given.get("annotations") or {}),
        "ownerReferences": controlled_by(owner),
    }
    if given.get("finalizers"):
        metadata["finalizers"] = list(given["finalizers"])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


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

    def delete(self, stored: Stored, resource: ResourceType, propagation: str = "Background") -> None:
        """Delete an object, with what depends on it as `propagation` says."""
        options = DeleteOptions(propagation=propagation)
        delete(self.backend, stored, resource=resource, options=options, operation=Operation())

    def create(self, resource: ResourceType, given: Object, *, namespace: str) -> Stored:
        """Create an object."""
        return create(self.backend, Target(resource, namespace), given=given, operation=Operation())

    def commit(self, stored: Stored, resource: ResourceType, new: Object) -> None:
        """Write an object that was changed beside its status."""
        target = Target(resource, stored.namespace, stored.name)
        commit(self.backend, target, stored=stored, new=new, operation=Operation())

    def has_just_failed(self, event: Event) -> bool:
        """True if a pod has failed by this event."""
        labels = [field.label for field in self.backend.store.collection("pods").resource.selectable]
        at = labels.index("status.phase")
        before = "" if event.previous is None else event.previous.fields[at]
        return event.stored.fields[at] == "Failed" != before

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

    def queue_gathered(self, key: KeyT, uid: str) -> None:
        """Reconcile an object because of a dependent: the more it has, the longer changes of theirs gather before."""
        gathering_s = len(self.backend.store.dependents(uid)) / _DEPENDENTS_PER_SECOND
        self.queue_after(key, min(gathering_s, _LONGEST_GATHERING_S))

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
