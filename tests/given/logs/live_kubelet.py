"""The run on three real kubelets that was recorded (`data/live-kubelet` of the shared folder), for tests to go over."""

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from kaicore.rules.events.codec import decode_event
from kaicore.rules.events.envelope import Event

from tests.given.shared_data import require_shared

CLUSTER = "kai"
ZONES = ("node-0", "node-1")

#: CPUs of one zone by thread: 0-7 and 16-23 are the first zone's.
_THREADS, _CORES = 16, 8


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a kubelet's log; `at` is microseconds since the epoch."""

    node: str
    at: int
    what: str
    uid: str
    container: str
    cpus: frozenset[int]


def recorded_events() -> list[Event]:
    """Return kai-ledger's own log of the run, position by position."""
    with gzip.open(require_shared("data/live-kubelet/events.jsonl.gz"), "rt") as file:
        return [_event(json.loads(line)) for line in file]


def second_run() -> list[Event]:
    """Return kai-ledger's own log of the second run (`run-2`), position by position."""
    with gzip.open(require_shared("data/live-kubelet/run-2/log.gz")) as file:
        return [decode_event(line) for line in file if line.startswith(b'{"cluster"')]


def kubelet_lines() -> list[Line]:
    """Return what the kubelets' logs said, oldest first."""
    with require_shared("data/live-kubelet/kubelets.jsonl").open() as file:
        lines = [_line(json.loads(text)) for text in file]
    return sorted(lines, key=lambda line: line.at)


def cpus_by_zone(cpus: frozenset[int]) -> dict[str, int]:
    held = dict.fromkeys(ZONES, 0)
    for cpu in cpus:
        held[ZONES[cpu % _THREADS // _CORES]] += 1000
    return held


class Checkpoints:
    """`cpu_manager_state` of the kubelets, as it was at one time after another."""

    def __init__(self) -> None:
        self._lines = iter(kubelet_lines())
        self._next: Line | None = next(self._lines)
        #: By node, uid and container.
        self.entries: dict[str, dict[str, dict[str, frozenset[int]]]] = {}

    def advance(self, to: int) -> Iterator[Line]:
        """Go on to a time; yields the events meanwhile, each after it was taken in."""
        while self._next is not None and self._next.at <= to:
            line, self._next = self._next, next(self._lines, None)
            pods = self.entries.setdefault(line.node, {})
            if line.what == "cpus":
                pods.setdefault(line.uid, {})[line.container] = line.cpus
            elif line.what == "freed" and line.uid in pods:
                pods[line.uid].pop(line.container, None)
                if not pods[line.uid]:
                    del pods[line.uid]
            yield line

    def held(self, node: str) -> dict[str, int]:
        """Return the millicores that are taken of each zone."""
        containers = [cpus for pod in self.entries.get(node, {}).values() for cpus in pod.values()]
        return cpus_by_zone(frozenset().union(*containers))


def _event(document: dict[str, Any]) -> Event:
    document["id"] = UUID(document["id"])
    document["cause"] = UUID(document["cause"]) if document.get("cause") else None
    document["hash"] = base64.b64decode(document["hash"])
    document["body"] = msgspec.Raw(msgspec.json.encode(document["body"]))
    return Event(**document)


def _line(document: dict[str, Any]) -> Line:
    cpus: set[int] = set()
    for part in filter(None, document.get("cpus", "").split(",")):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    at = datetime.fromisoformat(document["at"].replace("Z", "+00:00"))
    micros = round(at.timestamp() * 1_000_000)
    return Line(
        document["node"],
        micros,
        document["what"],
        document.get("uid", ""),
        document.get("container", ""),
        frozenset(cpus),
    )
