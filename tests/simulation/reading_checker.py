"""The invariants of readers, worked out from the log's events as plain JSON.

Answers are looked at as they are given, with what the log had when the question came and has now; what is read on from
answer to answer is looked at where it arrives.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from kaicore.analysis.ask.projections.store import Generation
from kaicore.rules.events.envelope import Event

from tests.given.logs.projected import Tables, projected
from tests.simulation.checker import Checker
from tests.simulation.http import Response

Json = dict[str, Any]

#: Columns of decisions by the hour, and the events that each counts.
_COUNTED = {
    "cycles": ("CycleCompleted",),
    "placed": ("PodPlaced",),
    "bound": ("PodBound",),
    "bind_failures": ("BindFailed",),
    "rejected": ("PodRejected",),
    "evictions": ("EvictionDecided", "RepairRequested"),
}

_MISSING = "there is no Topology {name};"


class ReadingChecker:
    """Looks at the readers of one cluster."""

    def __init__(self, checker: Checker) -> None:
        """Args: checker: of the cluster; it has the events, and takes what is wrong."""
        self._checker = checker
        #: By type, the positions of its events.
        self._positions: dict[str, list[int]] = defaultdict(list)
        #: Where the topologies changed, and which there were from there on.
        self._topologies: list[tuple[int, frozenset[str]]] = [(0, frozenset())]
        #: By webhook process, the position that its answers show it to have reached.
        self._judged_from: dict[str, int] = defaultdict(int)
        self._generations: dict[int, int] = {}

    @property
    def head(self) -> int:
        return len(self._checker.events)

    def _wrong(self, what: str) -> None:
        self._checker.wrong(what)

    def _count(self, what: str) -> None:
        self._checker.counts[what] += 1

    def appended(self, events: Sequence[Event]) -> None:
        for event in events:
            self._positions[event.type].append(event.position)
            if event.type.startswith("TopologyDefinition"):
                body = msgspec.json.decode(event.body)
                _, there = self._topologies[-1]
                if event.type == "TopologyDefinitionObserved":
                    there |= {body["definition"]["name"]}
                else:
                    there -= {body["name"]}
                self._topologies.append((event.position, there))

    # --- read models --------------------------------------------------------------------------------------------------

    def saved(self, generation: Generation, tables: Tables) -> None:
        """Look at read models that have moved on: they count each event once."""
        before = self._generations.get(generation.number, 0)
        self._generations[generation.number] = generation.position
        if not before < generation.position <= self.head:
            self._wrong(f"read models go from {before} to {generation.position}; the log ends at {self.head}")
        for column, types in _COUNTED.items():
            counted = sum(getattr(hour, column) for hour in tables.decisions.values())
            there = sum(bisect_right(self._positions[one], generation.position) for one in types)
            if counted != there:
                self._wrong(f"read models count {counted} {column} up to {generation.position}, of {there}")

    def check_read_models(self, live: tuple[Generation, Tables] | None, shown: int) -> None:
        """In the end they are those that are made in one go, whatever has happened to their projector.

        Args:
            live: what is read.
            shown: the position that they have had the time to reach.
        """
        if live is None or live[0].position < shown:
            self._wrong(f"read models are at {0 if live is None else live[0].position} in the end, of {shown}")
            return
        generation, kept = live
        anew = projected(self._checker.events[: generation.position])
        for name in ("pods", "occupancy", "queues", "decisions"):
            rows, wanted = getattr(kept, name), getattr(anew, name)
            for key in sorted(rows.keys() | wanted.keys(), key=str):
                if rows.get(key) != wanted.get(key):
                    self._wrong(f"read model {name}: row {key} is {rows.get(key)}, made anew {wanted.get(key)}")
                    break

    # --- the API ------------------------------------------------------------------------------------------------------

    def asked(self, path: str, query: str) -> Callable[[Response], None]:
        """Take note of a question to the API; return what looks at its answer, as it is given."""
        head = self.head

        def look(response: Response) -> None:
            if response.status != 200:
                return
            answer = msgspec.json.decode(response.body)
            self._count("answers of the API")
            if not head <= answer["position"] <= self.head:
                self._wrong(f"GET {path}: position {answer['position']}; the log went from {head} to {self.head}")
            if path.endswith("/events"):
                self._check_page(answer, query)
            elif answer["position"] == self.head:
                self._check_pods(answer["items"])

        return look

    def _check_page(self, answer: Json, query: str) -> None:
        after = int(query.partition("after=")[2].partition("&")[0] or 0)
        wanted = [event.position for event in self._checker.events[after : answer["next"]]]
        if [item["position"] for item in answer["items"]] != wanted:
            self._wrong(f"GET events?{query}: {[item['position'] for item in answer['items']]}, not {wanted}")

    def _check_pods(self, rows: list[Json]) -> None:
        there = {row["uid"]: row["node"] for row in rows}
        for uid, pod in self._checker.pods.items():
            # A reservation pod that is only planned is in no list.
            if pod.name and not pod.over and not uid.startswith("gpu-group/") and there.get(uid) != pod.node:
                self._wrong(f"GET pods: {pod.name} is on {there.get(uid)!r}, in the log on {pod.node!r}")

    def read(self, how: str, item: Json, *, after: int) -> int:
        """Look at an event that a client got after the one at a position; return its position."""
        position = item["position"]
        if position != after + 1:
            self._wrong(f"{how}: event {position} follows event {after}")
        if position > self.head or item["hash"] != self._checker.events[position - 1].hash.hex():
            self._wrong(f"{how}: event {position} is none of the log's")
        return int(position)

    # --- the webhook --------------------------------------------------------------------------------------------------

    def reviewed(self, process: str, data: bytes, *, up_to_date: bool) -> Callable[[Response, bool], None]:
        """Take note of a review; return the check of the answer, called with True once the webhook knows topologies.

        Args:
            process: that judges.
            data: the review.
            up_to_date: whether it must know all that the log says.
        """
        request = msgspec.json.decode(data)["request"]
        reached = self.head if up_to_date else self._judged_from[process]

        def look(response: Response, knows: bool) -> None:
            self._count("reviews")
            answer = msgspec.json.decode(response.body)
            if response.status != 200 or answer["response"]["uid"] != request["uid"]:
                self._wrong(f"webhook: {response.status} {answer}")
                return
            if not answer["response"]["allowed"]:
                self._wrong(f"webhook: {request['object']} is denied: {answer['response']['status']['message']}")
            name = request["object"]["spec"].get("topologyConstraint", {}).get("topology", "")
            missing = any(_MISSING.format(name=name) in text for text in answer["response"].get("warnings", ()))
            if not name or not (knows or missing or up_to_date):
                return
            starts = [position for position, _ in self._topologies]
            for start, end, (_, there) in zip(starts, [*starts[1:], self.head + 1], self._topologies, strict=True):
                if end > reached and (name in there) != missing:
                    self._judged_from[process] = max(self._judged_from[process], start)
                    return
            self._wrong(
                f"webhook {process}: topology {name} {'is missing' if missing else 'is there'}: at no position from"
                f" {reached} to {self.head} was it so"
            )

        return look
