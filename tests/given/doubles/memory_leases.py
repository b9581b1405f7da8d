"""Members and leases in memory: the port's second implementation, for tests in one process."""

from kaicore.errors import BusUnavailable
from kaicore.ledger.bus.leases import Entry, check_name
from kaicore.ledger.bus.wire import check_cluster


class MemoryLeaseStore:
    """Members and leases in memory, for tests; see `kaicore.ledger.bus.leases.LeaseStore`.

    `disconnect`, `reconnect` and `wipe` are what a server does to its clients.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        self._revision = 0
        self._connected = True

    def disconnect(self) -> None:
        """Answer nobody until `reconnect`."""
        self._connected = False

    def reconnect(self) -> None:
        """Answer again; the entries are as they were."""
        self._connected = True

    def wipe(self) -> None:
        """Lose all entries, as a server does after its store was deleted."""
        self._entries.clear()

    async def read(self, cluster: str, prefix: str) -> list[Entry]:
        self._check(cluster, prefix.rstrip("/."))
        mine = (entry for (owner, name), entry in self._entries.items() if owner == cluster and name.startswith(prefix))
        return sorted(mine)

    async def write(self, cluster: str, name: str, value: bytes, *, expect: int) -> int | None:
        self._check(cluster, name)
        assert value
        return self._put(cluster, name, value, expect)

    async def delete(self, cluster: str, name: str, *, expect: int) -> bool:
        self._check(cluster, name)
        return self._put(cluster, name, b"", expect) is not None

    async def close(self) -> None:
        self.disconnect()

    def _put(self, cluster: str, name: str, value: bytes, expect: int) -> int | None:
        entry = self._entries.get((cluster, name))
        if (entry.revision if entry is not None and (expect or entry.value) else 0) != expect:
            return None
        self._revision += 1
        self._entries[cluster, name] = Entry(name, value, self._revision)
        return self._revision

    def _check(self, cluster: str, name: str) -> None:
        check_cluster(cluster)
        check_name(name)
        if not self._connected:
            raise BusUnavailable("not connected")
