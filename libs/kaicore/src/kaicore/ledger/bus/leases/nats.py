"""Members and leases in a bucket of JetStream's key-value store, which is a stream. `nats kv ls kai-leases` lists it.

Writes are conditional on the last sequence of their subject, and the sequence is the revision. A bucket that has to be
made, also after the server lost it, begins at the time of day in microseconds, so that revisions go on growing.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Self

from kaicore.errors import BusUnavailable
from kaicore.ledger.bus.connection import Connection, Outgoing
from kaicore.ledger.bus.jetstream_api import (
    MESSAGE_NOT_FOUND,
    NAME_IN_USE,
    NANOSECONDS,
    STREAM_NOT_FOUND,
    WRONG_LAST_SEQUENCE,
    JetStreamApi,
    read_answer,
    unavailable,
)
from kaicore.ledger.bus.leases.port import Entry, check_name
from kaicore.ledger.bus.wire import check_cluster

_BUCKET = "KV_kai-leases"
_SUBJECTS = "$KV.kai-leases."

#: Seconds after which an entry that is not written again is forgotten.
_FORGET_S = 3600


class NatsLeaseStore:
    """Members and leases on NATS; see `kaicore.ledger.bus.leases.port.LeaseStore`."""

    def __init__(
        self, connection: Connection, *, replicas: int = 1, clock: Callable[[], int] = lambda: time.time_ns() // 1000
    ) -> None:
        """Prefer `open`."""
        self._connection = connection
        self._api = JetStreamApi(connection)
        self._replicas = replicas
        self._clock = clock

    @classmethod
    async def open(cls, url: str, *, name: str, replicas: int = 1) -> Self:
        """Begin to connect, and return without waiting for it.

        Args:
            url: of the servers, with commas between them.
            name: the client's, for the server's logs.
            replicas: servers that hold the bucket, where it has to be made.

        Raises:
            ConfigurationError: a url cannot be one.
        """
        connection = Connection(url, name=name)
        connection.dial()
        return cls(connection, replicas=replicas)

    async def wait_connected(self, *, timeout_s: float) -> bool:
        """Wait for a connection, at most `timeout_s`; return whether there is one."""
        return await self._connection.wait_up(timeout_s=timeout_s)

    async def read(self, cluster: str, prefix: str) -> list[Entry]:
        """See `LeaseStore.read`."""
        check_name(prefix.rstrip("/."))
        subjects = f"{_SUBJECTS}{check_cluster(cluster)}."
        request = {"subjects_filter": f"{subjects}>"}
        answer = await self._api.ask(f"STREAM.INFO.{_BUCKET}", request, absent=(STREAM_NOT_FOUND,))
        if answer is None or answer.state is None:
            return []
        names = sorted(subject.removeprefix(subjects) for subject in answer.state.subjects)
        entries = await asyncio.gather(*(self._last(cluster, name) for name in names if name.startswith(prefix)))
        return [entry for entry in entries if entry is not None]

    async def write(self, cluster: str, name: str, value: bytes, *, expect: int) -> int | None:
        """See `LeaseStore.write`."""
        assert value
        revision = await self._put(cluster, name, value, expect)
        if revision is None and not expect:
            # What was deleted has a revision too.
            entry = await self._last(cluster, name)
            if entry is not None and not entry.value:
                return await self._put(cluster, name, value, entry.revision)
        return revision

    async def delete(self, cluster: str, name: str, *, expect: int) -> bool:
        """See `LeaseStore.delete`."""
        return await self._put(cluster, name, b"", expect) is not None

    async def close(self) -> None:
        """See `LeaseStore.close`."""
        await self._connection.close()

    async def _last(self, cluster: str, name: str) -> Entry | None:
        request = {"last_by_subj": _subject(cluster, name)}
        absent = (STREAM_NOT_FOUND, MESSAGE_NOT_FOUND)
        answer = await self._api.ask(f"STREAM.MSG.GET.{_BUCKET}", request, absent=absent)
        if answer is None or answer.message is None:
            return None
        return Entry(name, answer.message.data, answer.message.seq)

    async def _put(self, cluster: str, name: str, value: bytes, expect: int) -> int | None:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(expect), "Nats-Expected-Stream": _BUCKET}
        if not value:
            headers["KV-Operation"] = "DEL"
        message = Outgoing(_subject(cluster, name), value, headers)
        try:
            answer = read_answer(await self._connection.ask([message]))
        except BusUnavailable:
            # There may be no bucket yet, or no longer; making it needs an answer too.
            if not await self._made():
                raise
            answer = read_answer(await self._connection.ask([message]))
        if answer.error is None:
            return answer.seq
        if answer.error.err_code == WRONG_LAST_SEQUENCE:
            return None
        raise unavailable(f"writing {name}", answer.error)

    async def _made(self) -> bool:
        """Make the bucket unless there is one; return whether it was made."""
        config = {
            "name": _BUCKET,
            "description": "members and leases of kai-ledger",
            "subjects": [f"{_SUBJECTS}>"],
            "storage": "file",
            "retention": "limits",
            "discard": "new",
            "first_seq": self._clock(),
            "max_msgs_per_subject": 1,
            "max_age": _FORGET_S * NANOSECONDS,
            "duplicate_window": NANOSECONDS,
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "deny_delete": True,
            "num_replicas": self._replicas,
        }
        if await self._api.ask(f"STREAM.INFO.{_BUCKET}", absent=(STREAM_NOT_FOUND,)) is not None:
            return False
        await self._api.ask(f"STREAM.CREATE.{_BUCKET}", config, absent=(NAME_IN_USE,))
        return True


def _subject(cluster: str, name: str) -> str:
    return f"{_SUBJECTS}{check_cluster(cluster)}.{check_name(name)}"
