"""The invariants of the hub's log and of dispatches, worked out from events and objects alone."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
from kaicore.rules.events.envelope import Event, Unit, UnitOutcome

_MARK = "kai.scheduler/dispatch"

#: What ends a dispatch.
_ENDINGS = ("DispatchFinished", "DispatchWithdrawn")


class HubChecker:
    """Looks at one run.

    Attributes:
        waiting: dispatches that have not ended.
    """

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.now = 0.0
        self.counts: dict[str, int] = defaultdict(int)
        self.waiting: dict[str, None] = {}
        self._submitted: dict[str, None] = {}
        self._events: list[Event] = []
        self._versions: dict[str, int] = {}
        #: By dispatch, the cluster in which a pod of it was bound.
        self._ran_in: dict[str, str] = {}
        #: By dispatch, the cluster and the term that it is with.
        self._with: dict[str, tuple[str, int]] = {}

    def wrong(self, what: str) -> None:
        """Hold something against the code."""
        self.violations.append(f"{self.now:.3f} s: {what}")

    def appended(self, events: Sequence[Event]) -> None:
        """Look at events that the hub's log has taken in one append."""
        for event in events:
            if event.position != len(self._events) + 1:
                self.wrong(f"hub: event {event.position} follows event {len(self._events)}")
            if event.version != self._versions.get(event.stream, 0) + 1:
                self.wrong(f"hub: event {event.position}: version {event.version} of {event.stream} is not the next")
            self._versions[event.stream] = event.version
            self._events.append(event)
            self.counts[event.type] += 1
            self._look(event, msgspec.json.decode(event.body))

    def _look(self, event: Event, body: dict[str, Any]) -> None:
        name = body.get("dispatch", "")
        if event.type == "DispatchSubmitted":
            if name in self._submitted:
                self.wrong(f"hub: event {event.position}: {name} is submitted twice")
            self._submitted[name] = self.waiting[name] = None
        elif event.type == "DispatchGiven":
            if name in self._with:
                self.wrong(f"hub: event {event.position}: {name} is given away, and {self._with[name]} has it")
            self._with[name] = body["cluster"], body["term"]
        elif event.type in ("DispatchReleased", "DispatchReturned"):
            # What was released is returned later, when the cluster is back and has cleared what it had.
            if self._with.get(name) == (body["cluster"], body["term"]):
                del self._with[name]
                if name in self._ran_in:
                    self.wrong(f"hub: event {event.position}: {name} is taken from {body['cluster']}, where it runs")
        elif event.type == "DispatchStarted" and self._with.get(name) != (body["cluster"], body["term"]):
            self.wrong(
                f"hub: event {event.position}: {name} starts in {body['cluster']}, and is {self._with.get(name)}'s"
            )
        elif event.type in _ENDINGS:
            self.waiting.pop(name, None)

    def acknowledged(self, process: str, units: Sequence[Unit], outcomes: Sequence[UnitOutcome]) -> None:
        """Look at the answer to a process's append."""
        for unit, outcome in zip(units, outcomes, strict=True):
            for new, position in zip(unit.events, outcome.positions, strict=outcome.stale is None):
                if position > len(self._events) or self._events[position - 1].id != new.id:
                    self.wrong(
                        f"{process} got the answer that {new.id} is event {position} of the hub, which it is not"
                    )

    def pod_written(self, cluster: str, body: dict[str, Any]) -> None:
        """Look at a pod of any cluster: no dispatch is ever bound in two."""
        mark = body["metadata"].get("annotations", {}).get(_MARK, "")
        if not mark or not body["spec"].get("nodeName"):
            return
        dispatch = mark.rpartition("/")[0]
        first = self._ran_in.setdefault(dispatch, cluster)
        if first != cluster:
            self.wrong(f"dispatch {dispatch} runs in {cluster}, and has run in {first}")

    def check_end(self) -> None:
        """Everything that was submitted has ended."""
        for name in self.waiting:
            self.wrong(f"dispatch {name} has not ended; it is {self._with.get(name, 'nobody')}'s")
