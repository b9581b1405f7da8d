"""Statuses of KAI's Queues, as schedulers last reported them.

The queues of Kueue have statuses of their own controllers, which are left to them.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import Payload, QueueFigures
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import canonical_quantity
from kaicore.rules.model.queue import queue_kind_of
from kaicore.rules.queues.resources import GPU

#: The events that matter here.
EVENT_TYPES = ("QueueDeleted", "QueuesReported")

_KAI_QUEUE = "Queue.scheduling.run.ai"

#: What KAI's statuses call all kinds of GPUs together.
_GPU_IN_STATUS = "nvidia.com/gpu"


class QueueStatuses:
    """The statuses that may not be written yet, by the queue's uid."""

    def __init__(self, due: Iterable[QueueFigures] = ()) -> None:
        """Args: due: as `record` returned it; all of them are news."""
        self._due = {figures.uid: figures for figures in due}
        self._news = set(self._due)

    def fold(self, payload: Payload) -> None:
        """Take in what an event says."""
        match payload:
            case payloads.QueuesReported(queues=queues):
                for figures in queues:
                    if queue_kind_of(figures.queue) == _KAI_QUEUE and figures.uid:
                        self._due[figures.uid] = figures
                        self._news.add(figures.uid)
            case payloads.QueueDeleted(uid):
                self._due.pop(uid, None)
                self._news.discard(uid)
            case _:
                pass

    def again(self) -> None:
        """Have yielded again what is not written yet."""
        self._news = set(self._due)

    def news(self) -> Iterator[QueueFigures]:
        """Yield what is to be written since the last time."""
        news, self._news = self._news, set()
        for uid in sorted(news):
            yield self._due[uid]

    def mark_written(self, figures: QueueFigures) -> None:
        """Take note that a status was written, or never will be."""
        if self._due.get(figures.uid) is figures:
            del self._due[figures.uid]

    def record(self) -> list[QueueFigures]:
        """Return what may not be written yet, for a snapshot."""
        return list(self._due.values())


def status_document(figures: QueueFigures) -> dict[str, Any]:
    """Return the status of a `scheduling.run.ai/v2` Queue."""
    return {
        "childQueues": list(figures.children),
        "requested": _resource_list(figures.requested),
        "allocated": _resource_list(figures.allocated),
        "allocatedNonPreemptible": _resource_list(figures.non_preemptible),
    }


def _resource_list(amounts: Amounts) -> dict[str, str]:
    # In a merge patch, what is left out stays as it is: what came down to nothing is said.
    named = {"cpu": 0, "memory": 0, GPU: 0} | amounts
    return {
        _GPU_IN_STATUS if resource == GPU else resource: canonical_quantity(resource, amount)
        for resource, amount in sorted(named.items())
        if resource != _GPU_IN_STATUS
    }
