"""The file of `kai export --format perfetto`: scheduling history for https://ui.perfetto.dev and chrome://tracing.

It is JSON in the Trace Event Format of Chromium. A node is a process, and each of its threads is a GPU that a pod holds
from its placement to its end: first `starting`, then running. A queue is a process with its waiting pods. The log does
not know which whole GPU a kubelet gave, so a pod takes the first free ones of its node's. Parts of GPUs, and pods
without any, have threads of their own. Evictions, rejections, failed binds and cycles are instants.
"""

import gzip
from collections import Counter
from collections.abc import AsyncIterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from kaicore.analysis.ask.listing import QueueNames
from kaicore.errors import ConfigurationError
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.queues.tree import gpus_of
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import PodEntry, gpus_asked

_INSTANTS = (payloads.EvictionDecided, payloads.RepairRequested, payloads.PodRejected, payloads.BindFailed)
_CYCLES = "scheduler"


class _Where(NamedTuple):
    """A pod's whereabouts: the lanes' process, kind and number, and its stage there: waiting, starting or running."""

    process: str
    kind: str
    width: int
    stage: str


@dataclass(slots=True)
class _Stay:
    """A pod's stay in lanes, by their numbers, since a time."""

    where: _Where
    lanes: list[int]
    since: int


class Trace:
    """Takes in a cluster's events in order, and gives the trace's; times are recorded times in microseconds."""

    def __init__(self, state: ClusterState) -> None:
        """Args:
        state: before the first event; it is folded on.
        """
        self._state = state
        self._stays: dict[str, _Stay] = {}
        self._free: dict[tuple[str, str], list[int]] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._named: list[dict[str, Any]] = []
        for uid, entry in state.pods.items():
            self._move(uid, entry, state.recorded_at)

    def take(self, event: Event) -> Iterator[dict[str, Any]]:
        """Take in the next event, and yield what it ends or is, after the names of what that is in.

        Raises:
            CorruptLog: it is not the next one.
            UnknownEvent: this program is too old for it.
        """
        payload, uid = decode_payload(event), event.stream.removeprefix("pod/")
        made: list[dict[str, Any]] = []
        if isinstance(payload, _INSTANTS):
            place = self._place(f"node {payload.node}", "evictions and failures")
            made.append(_instant(event, f"{event.type} {event.subject}", place, _about(payload)))
        elif isinstance(payload, payloads.CycleCompleted):
            about = {name: getattr(payload, name) for name in ("pods", "placed", "evicted", "nominated")}
            made.append(_instant(event, payload.cycle, self._place(_CYCLES, payload.shard), about))
        before = self._state.pods.get(uid)
        self._state.fold(event)
        if (entry := self._state.pods.get(uid, before)) is not None:
            made += self._move(uid, entry, event.recorded_at, gone=uid not in self._state.pods)
        named, self._named = self._named, []
        yield from chain(named, made)

    def rest(self) -> Iterator[dict[str, Any]]:
        """Yield what the log's end leaves open, up to there."""
        made = [
            span
            for uid in list(self._stays)
            for span in self._move(uid, self._state.pods[uid], self._state.recorded_at, gone=True)
        ]
        yield from chain(self._named, made)

    def _move(self, uid: str, entry: PodEntry, now: int, *, gone: bool = False) -> list[dict[str, Any]]:
        """Have a pod be where it is now; return what that ends. While it holds the same, it keeps its lanes."""
        stay, where = self._stays.get(uid), None if gone else self._where(entry)
        if (None if stay is None else stay.where) == where:
            return []
        made: list[dict[str, Any]] = []
        lanes: list[int] = []
        if stay is not None:
            made += self._spans(uid, entry, self._stays.pop(uid), now)
            if where is not None and where[:3] == stay.where[:3]:
                lanes = stay.lanes
            else:
                for lane in stay.lanes:
                    heappush(self._free[stay.where[:2]], lane)
        if where is not None:
            self._stays[uid] = _Stay(where, lanes or self._lanes(where), now)
        return made

    def _where(self, entry: PodEntry) -> _Where | None:
        """Return what a pod holds or waits in; None for nothing."""
        if entry.waiting:
            return _Where(f"queue {QueueNames(self._state).of(entry)}", "waiting", 1, "waiting")
        if not entry.charged:
            return None
        whole = gpus_of(entry.requests)
        kind = "GPU" if whole else "part of a GPU" if gpus_asked(entry) else "no GPU"
        return _Where(f"node {entry.node}", kind, max(whole, 1), "running" if entry.started_at else "starting")

    def _lanes(self, where: _Where) -> list[int]:
        # The last one that is free is the next one that nobody has had.
        free = self._free.setdefault(where[:2], [0])
        lanes = []
        for _ in range(where.width):
            lanes.append(heappop(free))
            if not free:
                heappush(free, lanes[-1] + 1)
        return lanes

    def _spans(self, uid: str, entry: PodEntry, stay: _Stay, now: int) -> Iterator[dict[str, Any]]:
        stage, subject = stay.where.stage, entry.pod.subject
        about = {"uid": uid, "queue": QueueNames(self._state).of(entry), "group": entry.group, "cycle": entry.cycle}
        for lane in stay.lanes:
            yield {
                "name": subject if stage == "running" else f"{subject} ({stage})",
                "cat": stage,
                "ph": "X",
                "ts": stay.since,
                "dur": now - stay.since,
                **self._place(stay.where.process, stay.where.kind, lane),
                "args": about | {"gpus": gpus_asked(entry) / 1000},
            }

    def _place(self, process: str, kind: str, lane: int | None = None) -> dict[str, int]:
        """Return the ids of a process and of a thread of it; no two are equal, and each is named once."""
        pid = self._id(process, "", {"name": "process_name", "args": {"name": process}})
        name = kind if lane is None else f"{kind} {lane}"
        return {"pid": pid, "tid": self._id(process, name, {"name": "thread_name", "pid": pid, "args": {"name": name}})}

    def _id(self, process: str, thread: str, metadata: dict[str, Any]) -> int:
        key = process, thread
        if key not in self._ids:
            number = self._ids[key] = len(self._ids) + 1
            self._named.append({"ph": "M", "pid": number, "tid": number, **metadata})
        return self._ids[key]


def _instant(event: Event, name: str, place: Mapping[str, int], about: Mapping[str, object]) -> dict[str, Any]:
    args = {"position": event.position, **about}
    return {"name": name, "cat": event.type, "ph": "i", "s": "t", "ts": event.recorded_at, **place, "args": args}


def _about(payload: payloads.Payload) -> dict[str, str]:
    return {
        name: value for name in ("reason", "preemptor", "cycle") if (value := str(getattr(payload, name, "") or ""))
    }


async def write_trace(
    file: Path, events: AsyncIterable[Event], state: ClusterState, about: Mapping[str, str]
) -> Counter[str]:
    """Write the trace of a log, an event a line; the arguments are as those of `write_tables` (`parquet`).

    Args:
        file: to write; compressed where its name ends in `.gz`.

    Returns:
        how many events of each category there are: `waiting`, `starting`, `running`, and types of the log's events.
    """
    trace, counts = Trace(state), Counter[str]()
    encode = msgspec.json.Encoder().encode
    try:
        with gzip.open(file, "wb") if file.suffix == ".gz" else file.open("wb") as out:
            out.write(b'{"displayTimeUnit":"ms","otherData":%b,"traceEvents":[' % encode(dict(about)))
            between = b"\n"

            def write(some: Iterator[dict[str, Any]]) -> None:
                nonlocal between
                for one in some:
                    out.write(between + encode(one))
                    between = b",\n"
                    counts[one.get("cat", "")] += 1

            async for event in events:
                write(trace.take(event))
            write(trace.rest())
            out.write(b"\n]}\n")
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror or error}") from error
    del counts[""]
    return counts
