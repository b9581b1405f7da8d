"""Shapes of bodies: most of a body's bytes are the same in each event of its kind, so they are stored once.

A shape is a body's JSON with its values cut out, numbered in the table `body_shape`. A row of the shape has the values
alone as its body, a JSON array, and the shape's number beside the version of its schema. `kai_fill` makes the body's
exact bytes again, and `kai_append` takes no row unless the hash is over these. So the chain does not know of shapes.

What the columns say already is not among the values: the stream's and the subject's names, the correlation, and a
value that was there before. A shape has words of `_WORD_LIST`, keys and small numbers, but no other text: nothing in it
has to be erased. The first two bodies of a shape are stored as they are, and so are small, large and unusual ones.
"""

import asyncio
import re
from hashlib import sha256
from typing import Any

from psycopg import AsyncConnection

from kaicore.rules.events.envelope import Event, NewEvent

#: A row's `schema` is the version of the payload's schema and this times the number of its shape.
SHAPES = 1024

#: The columns of `event` that are not as they lie in the row: the schema's version, and the body's exact text.
SCHEMA = f"mod(schema, {SHAPES})"
BODY = f"""
    CASE WHEN schema < {SHAPES} THEN body::text ELSE kai_fill(
        coalesce((SELECT template FROM body_shape WHERE number = schema / {SHAPES}), ''), body::text, stream, subject,
        correlation
    ) END
"""  # noqa: S608  # of constants

#: Bytes of the bodies that are worth it.
_LEAST, _MOST = 48, 4096

#: With the four names the 99 places that `kai_fill` has.
_MOST_VALUES = 95

#: Shapes seen once that a process remembers.
_REMEMBERED = 2000

#: Seconds until a log that takes no new shapes is asked again.
_RETRY_S = 600.0

#: A value, and what is before it: text that is no key, and numbers of four digits. Nothing is tried twice (`++`).
_VALUE = re.compile(rb'(:|\[|,(?!"[^"]*+":))("[^"\\]*+(?:\\.[^"\\]*+)*+"|-?\d{4,}+)')

#: Words of Kubernetes and of ours that values are, often.
_WORD_LIST = """
    Pending Running Succeeded Failed Unknown Guaranteed Burstable BestEffort kai-ledger kai-scheduler
    PreemptLowerPriority Never Exists Equal DoesNotExist In NotIn NoExecute NoSchedule PreferNoSchedule init sidecar
    main cpu memory nvidia.com/gpu node.kubernetes.io/not-ready node.kubernetes.io/unreachable kubernetes.io/hostname
    Job ReplicaSet StatefulSet DaemonSet PodGroup Pod batch/v1 apps/v1 single-numa-node restricted best-effort none
    predicted observed exporter watcher scheduler ingest
"""
_WORDS = {word: word for word in (b'"%s"' % word.encode() for word in ["", *_WORD_LIST.split()])}
_PLACES = tuple(b"%%%d$s" % number for number in range(1, 100))


def cut(event: Event | NewEvent, body: bytes) -> tuple[bytes, bytes] | None:
    """Return a body's shape and its values, as a row has them; None where it is stored as it is."""
    if not _LEAST <= len(body) <= _MOST or b"%" in body or b"\n" in body:
        return None
    # As in `kai_fill`.
    names = (_behind(event.stream), _behind(event.subject), event.subject.partition("/")[0], event.correlation)
    places = {b'"%s"' % name.encode(): b'"%s"' % place for name, place in zip(names, _PLACES, strict=False)}
    values = list[bytes]()
    bits = _VALUE.split(body)
    if len(bits) > 3 * _MOST_VALUES:
        return None
    for index in range(2, len(bits), 3):
        value = bits[index]
        place = places.get(value) or _WORDS.get(value)
        if place is None:
            place = places[value] = _PLACES[len(names) + len(values)]
            values.append(value)
        bits[index] = place
    return b"".join(bits), b"[" + b",\n".join(values) + b"]"


def _behind(name: str) -> str:
    return name[name.find("/") + 1 :]


class Shapes:
    """The shapes that a log's rows may have, as far as a process knows them."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] | None = None
        self._once: dict[bytes, None] = {}
        self._wanted: dict[bytes, bytes] = {}
        self._not_before_s = 0.0

    def row(self, event: Event | NewEvent, body: bytes) -> tuple[int, bytes]:
        """Return the number of a body's shape and its values; 0 and the body where it is stored as it is."""
        made = cut(event, body) if self._numbers is not None else None
        if made is None or self._numbers is None:
            return 0, body
        shape, values = made
        digest = sha256(shape).digest()
        if number := self._numbers.get(digest, 0):
            return number, values
        if digest in self._once:
            self._wanted[digest] = shape
        else:
            if len(self._once) >= _REMEMBERED:
                del self._once[next(iter(self._once))]
            self._once[digest] = None
        return 0, body

    async def learn(self, connection: AsyncConnection[Any]) -> None:
        """Ask for the shapes that are there, once, and have those that were seen twice numbered.

        It locks nothing, and belongs before a transaction.
        """
        if self._numbers is None:
            rows = await connection.execute("SELECT digest, number FROM body_shape")
            self._numbers = {bytes(digest): number for digest, number in await rows.fetchall()}
        wanted, self._wanted = self._wanted, {}
        if asyncio.get_running_loop().time() < self._not_before_s:
            return
        for digest, shape in wanted.items():
            ((number,),) = await (await connection.execute("SELECT kai_shape(%s)", [shape.decode()])).fetchall()
            if number is None:
                self._not_before_s = asyncio.get_running_loop().time() + _RETRY_S
                return
            self._numbers[digest] = number
