"""A log as long as is wanted, of a cluster in which work comes, runs and goes, made fast enough for millions of events.

Some hundred pods come, run and end as the engine decides, once; after that the cluster is as it was before. This wave
is written down again and again under other names, with the positions, times and versions that its events have there.
Hashes are not made: nothing that is measured on such a log verifies them.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, islice
from uuid import UUID

import msgspec
import psycopg
from kaicore.ledger.log.partitions import Month
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.groups.labels import SIGS_POD_GROUP
from kaicore.rules.model.placement import Provenance
from kaicore.rules.model.pod import Pod
from kaicore.rules.state.cluster_state import ClusterState
from psycopg import sql

from tests.given.cluster.factory import amounts, pod, topology
from tests.given.work.workloads import OWNER, Workloads

#: Stands in the names of what comes with a wave.
_TOKEN = "w00000000"
_ZONE = amounts(cpu=32, memory=256, gpu=4)
#: Pods of a gang, and of other pods as many.
_GANG = 8
_COLUMNS = (
    "cluster, position, stream, version, type, schema, id, actor, occurred_at, recorded_at, subject, cause, "
    "correlation, body, hash"
)


class ClusterLife:
    """A cluster's log: its nodes, a pod called `never` that waits all the time, and then wave after wave."""

    def __init__(self, cluster: str, *, nodes: int, gangs: int, step_us: int = 1_000_000) -> None:
        """Args:
        cluster: the log's name.
        nodes: of two zones with four GPUs each.
        gangs: in a wave, and as many times eight pods of their own.
        step_us: between two events, microseconds.
        """
        made = Workloads(cluster).add_nodes(nodes, _ZONE, _ZONE)
        made.add_pod(pod("never", cpu=1, memory=1, gpu=5))
        made.cycle()
        self.cluster = cluster
        self._step_us = step_us
        self._began = made.now
        self._first = list(made.events)
        _wave(made, gangs)
        self._wave = made.events[len(self._first) :]
        self._wave_input = {
            decode_payload(event).input_position: event.position  # type: ignore[attr-defined]
            for event in self._wave
            if event.type == payloads.CycleCompleted.__name__
        }
        self._moves = Counter(event.stream for event in self._wave if _TOKEN not in event.stream)
        self._place = {event.id: event.position for event in made.events}
        (self._cycle,) = {event.correlation for event in self._wave if event.type == payloads.CycleCompleted.__name__}

    @property
    def wave_size(self) -> int:
        return len(self._wave)

    def waves_for(self, events: int) -> int:
        """Return how many waves a log of at least so many events has."""
        return max(1, -(-(events - len(self._first)) // len(self._wave)))

    def end(self, waves: int) -> int:
        """Return the position of the last event of so many waves."""
        return len(self._first) + waves * len(self._wave)

    def recorded_at(self, position: int) -> int:
        """Return when an event is recorded, microseconds since the epoch."""
        return self._began + position * self._step_us

    def events(self, waves: range) -> Iterator[Event]:
        if waves.start == 0:
            for event in self._first:
                yield self._placed(event, 0, {}, event.body)
        for number in waves:
            name, shift = f"w{number:08}", number * len(self._wave)
            shard, _, cycle = self._cycle.partition("/")
            here = f"{shard}/{int(cycle) + number}"
            words = {_TOKEN: name, self._cycle: here}
            for event in self._wave:
                body = bytes(event.body).replace(_TOKEN.encode(), name.encode())
                body = body.replace(f'"{self._cycle}"'.encode(), f'"{here}"'.encode())
                if event.type == payloads.CycleCompleted.__name__:
                    for known in self._wave_input:
                        body = body.replace(
                            f'"input_position":{known},'.encode(), f'"input_position":{known + shift},'.encode()
                        )
                moved = msgspec.structs.replace(event, version=event.version + number * self._moves[event.stream])
                yield self._placed(moved, shift, words, msgspec.Raw(body))

    def _placed(self, event: Event, shift: int, words: dict[str, str], body: msgspec.Raw) -> Event:
        stream, subject = event.stream, event.subject
        for old, new in words.items():
            stream, subject = stream.replace(old, new), subject.replace(old, new)
        position = event.position + shift
        recorded_at = self.recorded_at(position)
        # What caused an event of a wave is of the same wave.
        cause = None if event.cause is None else _id_at(self._place[event.cause] + shift)
        return Event(
            event.cluster,
            position,
            stream,
            event.version,
            event.type,
            event.schema,
            _id_at(position),
            event.actor,
            recorded_at,
            recorded_at,
            body,
            bytes(32),
            subject,
            cause,
            words.get(event.correlation, event.correlation),
        )

    def state_after(self, waves: int) -> ClusterState:
        """Return a state after so many waves, by way of one wave: whatever counts over the log counts too little."""
        state = ClusterState(self.cluster).fold_all(self.events(range(1)))
        state.context.position = self.end(waves)
        state.context.recorded_at = self.recorded_at(self.end(waves))
        for stream, moves in self._moves.items():
            if stream in state.versions:
                state.versions[stream] += (waves - 1) * moves
        return state

    def write(self, url: str, waves: int) -> None:
        """Write the log into a migrated database, as its owner: months as tables of their own, with indexes at last."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            connection.execute("SET maintenance_work_mem = '512MB'")
            for month, events in self._by_month(waves):
                # As `kai_make_month` makes one; what is attached gets its indexes then, in one go.
                table = sql.Identifier(month.table)
                connection.execute(
                    sql.SQL("CREATE TABLE {} (LIKE event INCLUDING DEFAULTS INCLUDING CONSTRAINTS)").format(table)
                )
                into = sql.SQL("COPY {} ({}) FROM STDIN").format(table, sql.SQL(_COLUMNS))
                with connection.cursor() as cursor, cursor.copy(into) as copy:
                    for lines in batched(map(_line, events), 2000):
                        copy.write(b"".join(lines))
                connection.execute(
                    sql.SQL("ALTER TABLE event ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
                        table, month.start, (month + 1).start
                    )
                )
            connection.execute("ANALYZE event")
            end = self.end(waves)
            connection.execute(
                "INSERT INTO log_head (cluster, position, hash, recorded_at) VALUES (%s, %s, %s, %s)",
                [self.cluster, end, bytes(32), self.recorded_at(end)],
            )

    def _by_month(self, waves: int) -> Iterator[tuple[Month, Iterator[Event]]]:
        month = Month.of(self.recorded_at(1))
        ends = [month.start]
        while ends[-1] <= self.recorded_at(self.end(waves)):
            month += 1
            ends.append(month.start)
        first = Month.of(self.recorded_at(1))
        events = self.events(range(waves))
        for number, part in groupby(events, key=lambda event: bisect_right(ends, event.recorded_at)):
            yield first + (number - 1), part


def _line(event: Event) -> bytes:
    """Write an event as COPY takes it."""
    cause = "\\N" if event.cause is None else event.cause
    head = (
        f"{event.cluster}\t{event.position}\t{event.stream}\t{event.version}\t{event.type}\t{event.schema}\t"
        f"{event.id}\t{event.actor}\t{event.occurred_at}\t{event.recorded_at}\t{event.subject}\t{cause}\t"
        f"{event.correlation}\t"
    )
    return head.encode() + bytes(event.body).replace(b"\\", b"\\\\") + _NO_HASH


def _id_at(position: int) -> UUID:
    return UUID(int=position | 4 << 76 | 8 << 60)


_NO_HASH = b"\t\\\\x" + bytes(32).hex().encode() + b"\n"


def batched(lines: Iterator[bytes], count: int) -> Iterator[list[bytes]]:
    while some := list(islice(lines, count)):
        yield some


def _wave(made: Workloads, gangs: int) -> None:
    """Gangs and pods of their own come, are placed, run, are observed, end and are deleted."""
    pods: list[Pod] = []
    for number in range(gangs):
        pods += made.gang(f"{_TOKEN}-gang-{number}", _GANG, cpu=4, memory=16, gpu=1)
        pods += [
            made.add_pod(
                pod(
                    f"{_TOKEN}-{number}-{index}",
                    cpu=2,
                    memory=8,
                    gpu=1,
                    owner=OWNER,
                    labels={"user": f"user-{number}"},
                )
            )
            for index in range(_GANG)
        ]
    made.cycle()
    made.run(pods)
    for one in pods:
        entry = made.state.pods[one.uid]
        assert entry.predicted is not None
        seen = msgspec.structs.replace(entry.predicted, provenance=Provenance.OBSERVED)
        made.record(
            f"node/{entry.node}",
            payloads.PlacementObserved(one.uid, one.namespace, one.name, entry.node, seen, "exporter"),
            subject=one.subject,
        )
    for name in sorted({made.state.pods[one.uid].node for one in pods}):
        made.record(f"nrt/{name}", payloads.TopologyObserved(topology(name, _ZONE, _ZONE, available=(_ZONE, _ZONE))))
    for one in pods:
        made.see(one, phase="Succeeded")
        made.delete_pod(made.state.pods[one.uid].pod)
    for number in range(gangs):
        source = f"{_TOKEN}-gang-{number}"
        made.record(
            f"group/{source}", payloads.GroupSourceDeleted(SIGS_POD_GROUP, f"uid-group-{source}", "default", source)
        )
