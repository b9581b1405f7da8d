"""Seals that a running relay makes and hands in outside, and what they show of a log that was rewritten."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from kai_relay import sealing as sealing_module
from kai_relay.sealing import Sealer, SealMetrics
from kaicore.ledger.log.chain import event_hash
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.anchors import Key, hashes_of, read_anchors
from kaicore.ledger.log.seals.audit import AuditReport, verify
from kaicore.ledger.log.seals.deposits import DepositTaken, DepositUnavailable, closing, open_deposit
from kaicore.runtime.service import get_logger
from prometheus_client import CollectorRegistry

from tests.given.logs.new_events import new_event, unit
from tests.given.processes.relay_process import PATIENCE_S, RelayProcess
from tests.given.servers.deposit_server import ObjectStore, object_store


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


@pytest.fixture
def dead(store: ObjectStore) -> ObjectStore:
    """A store that does not answer until it is started."""
    store.stop()
    return store


@pytest.fixture
def key() -> Key:
    return Key.read(pem(), name="key")


@pytest.fixture
def short_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seals wait in memory for a deposit at most."""
    monkeypatch.setattr(sealing_module, "_MOST_WAITING", 2)


def pem() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


async def append(log: PostgresLog, cluster: str, count: int = 3) -> int:
    await log.append(cluster, [unit(new_event(f"node/{number}")) for number in range(count)])
    return (await log.head(cluster)).position


class Sealing:
    """A sealer that runs, and what it counts."""

    def __init__(self, log: PostgresLog, addresses: tuple[str, ...], key: Key, cluster: str) -> None:
        self.registry = CollectorRegistry()
        self._cluster = cluster
        self.sealer = Sealer(
            log,
            [open_deposit(address) for address in addresses],
            key,
            clusters=lambda: (cluster,),
            every_s=0.02,
            metrics=SealMetrics(registry=self.registry),
            logger=get_logger(),
        )

    def of_cluster(self, name: str) -> float:
        return self.registry.get_sample_value(f"kai_relay_{name}", {"cluster": self._cluster}) or 0.0

    async def sealed(self, position: int) -> None:
        await until(lambda: self.of_cluster("sealed_position") == position)

    async def sealed_thrice(self, log: PostgresLog, address: str) -> None:
        """Append events three times, and wait until a deposit has all of their seals."""
        for _ in range(3):
            await self.sealed(await append(log, self._cluster))
        await self.handed_in(address)

    async def handed_in(self, address: str) -> None:
        """Wait until a deposit has taken all seals that were made."""
        await until(lambda: self.of_deposit("deposit_waiting", address) == 0)

    def of_deposit(self, name: str, address: str) -> float:
        return self.registry.get_sample_value(f"kai_relay_{name}", {"deposit": address}) or 0.0


@asynccontextmanager
async def sealing(log: PostgresLog, *addresses: str, key: Key, cluster: str) -> AsyncIterator[Sealing]:
    running = Sealing(log, addresses, key, cluster)
    task = asyncio.create_task(running.sealer.run())
    try:
        yield running
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(satisfied: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not satisfied():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def against(log: PostgresLog, cluster: str, address: str, key: Key) -> AuditReport:
    async with closing(open_deposit(address)) as deposit:
        anchors = read_anchors("\n".join(await deposit.lines()), name=address, key=key)
    return await verify(log, cluster, anchors=hashes_of(anchors)[cluster])


class Owner:
    """An attacker who may rewrite the whole database, and makes everything in it agree."""

    def __init__(self, url: str, cluster: str) -> None:
        self._url, self._cluster = url, cluster

    def run(self, *statements: str) -> None:
        with psycopg.connect(self._url) as connection:
            connection.execute("SET session_replication_role = replica")
            for statement in statements:
                connection.execute(statement.encode(), {"cluster": self._cluster})

    def cut(self, position: int) -> None:
        self.run(
            f"DELETE FROM event WHERE cluster = %(cluster)s AND position > {position}",
            f"DELETE FROM event_id WHERE cluster = %(cluster)s AND position > {position}",
        )
        self.agree()

    async def rewrite(self, log: PostgresLog, position: int) -> None:
        self.run(f"UPDATE event SET actor = 'mallory' WHERE cluster = %(cluster)s AND position = {position}")
        previous = (await log.read(self._cluster, after=position - 2, limit=1))[0].hash
        for event in await log.read(self._cluster, after=position - 1):
            previous = event_hash(previous, event)
            self.run(
                f"UPDATE event SET hash = '\\x{previous.hex()}' "
                f"WHERE cluster = %(cluster)s AND position = {event.position}"
            )
        self.agree()

    def agree(self) -> None:
        self.run(
            "UPDATE log_head SET (position, hash, recorded_at) = (SELECT position, hash, recorded_at FROM event "
            "WHERE cluster = %(cluster)s ORDER BY position DESC LIMIT 1) WHERE cluster = %(cluster)s",
            "DELETE FROM stream WHERE cluster = %(cluster)s",
            "INSERT INTO stream SELECT cluster, stream, max(version) FROM event WHERE cluster = %(cluster)s "
            "GROUP BY cluster, stream",
        )


async def test_seals_go_to_every_deposit_and_a_rewritten_or_cut_log_contradicts_them(
    postgres_log: PostgresLog, superuser_url: str, cluster_name: str, store: ObjectStore, tmp_path: Path
) -> None:
    log, file, key = postgres_log, str(tmp_path / "seals"), Key.read(pem(), name="key")
    async with sealing(log, store.url, file, key=key, cluster=cluster_name) as running:
        for _ in range(2):
            await running.sealed(await append(log, cluster_name))
            for address in (store.url, file):
                await running.handed_in(address)
    for address in (store.url, file):
        report = await against(log, cluster_name, address, key)
        assert report.ok
        assert report.anchored >= 2
    owner = Owner(superuser_url, cluster_name)
    await owner.rewrite(log, 5)
    assert (await verify(log, cluster_name)).ok, "the chain itself shows nothing"
    report = await against(log, cluster_name, store.url, key)
    assert str(report.findings[0]).startswith("event 6: its hash is not that of the anchor: the log was rewritten")
    assert "from event 4 to this one" in str(report.findings[0])
    owner.cut(4)
    assert (await verify(log, cluster_name)).ok, "the chain itself shows nothing"
    report = await against(log, cluster_name, file, key)
    assert str(report.findings[0]).startswith("event 6: is missing; there is an anchor for it, and the log ends at 4")


async def test_a_dead_deposit_holds_nothing_up_and_catches_up(
    postgres_log: PostgresLog, cluster_name: str, dead: ObjectStore, key: Key, tmp_path: Path
) -> None:
    log, file = postgres_log, str(tmp_path / "seals")
    async with sealing(log, dead.url, file, key=key, cluster=cluster_name) as running:
        await running.sealed_thrice(log, file)
        await until(lambda: running.of_deposit("deposit_failing", dead.url) == 1)
        waited = running.of_deposit("deposit_waiting", dead.url)
        assert waited >= 3
        dead.start()
        await running.handed_in(dead.url)
        assert running.of_deposit("deposit_failing", dead.url) == 0
        assert running.of_deposit("seals_deposited_total", dead.url) == waited
    assert (await against(log, cluster_name, dead.url, key)).ok
    assert (await against(log, cluster_name, file, key)).ok


async def test_what_a_dead_deposit_misses_is_handed_in_by_a_sealer_that_starts_anew(
    postgres_log: PostgresLog, cluster_name: str, dead: ObjectStore, key: Key, tmp_path: Path
) -> None:
    log, file = postgres_log, str(tmp_path / "seals")
    async with sealing(log, dead.url, file, key=key, cluster=cluster_name) as running:
        await running.sealed_thrice(log, file)
    dead.start()
    async with sealing(log, dead.url, file, key=key, cluster=cluster_name) as running:
        await until(lambda: running.of_deposit("seals_deposited_total", dead.url) >= 3)
        await running.handed_in(dead.url)
    async with closing(open_deposit(dead.url)) as deposit, closing(open_deposit(file)) as local:
        there, here = [read_anchors("\n".join(await one.lines()), name="x", key=key) for one in (deposit, local)]
    # A seal of an empty log vouches for nothing.
    seals = [(one.position, one.hash, one.sealed_at) for one in here if one.position]
    assert [(one.position, one.hash, one.sealed_at) for one in there] == seals


@pytest.mark.usefixtures("short_queues")
async def test_seals_for_the_only_address_outlive_the_relay_and_a_queue_that_is_full(
    postgres_log: PostgresLog, cluster_name: str, store: ObjectStore, key: Key, tmp_path: Path
) -> None:
    log, kept = postgres_log, str(tmp_path / "kept")
    store.stop()
    for _ in range(2):
        async with sealing(log, store.url, kept, key=key, cluster=cluster_name) as running:
            for _ in range(4):
                await running.sealed(await append(log, cluster_name))
                await running.handed_in(kept)
    async with sealing(log, store.url, kept, key=key, cluster=cluster_name) as running:
        for _ in range(3):
            await running.sealed(await append(log, cluster_name))
            # The file's own queue is short here, too: a seal that overflows both is nowhere.
            await running.handed_in(kept)
        await until(lambda: running.of_deposit("deposit_failing", store.url) == 1)
        store.start()
        await until(lambda: running.of_deposit("seals_deposited_total", store.url) >= 11)
        await running.handed_in(store.url)
    async with closing(open_deposit(store.url)) as deposit, closing(open_deposit(kept)) as local:
        there, here = [read_anchors("\n".join(await one.lines()), name="x", key=key) for one in (deposit, local)]
    positions = [one.position for one in here if one.position]
    assert [one.position for one in there] == positions
    assert len(positions) == 11


async def test_a_sealer_that_starts_anew_refuses_a_log_that_its_last_seal_contradicts(
    postgres_log: PostgresLog, superuser_url: str, cluster_name: str, store: ObjectStore, key: Key
) -> None:
    log = postgres_log
    async with sealing(log, store.url, key=key, cluster=cluster_name) as running:
        await running.sealed(await append(log, cluster_name, 6))
        await running.handed_in(store.url)
    sealed = dict(store.objects)
    await Owner(superuser_url, cluster_name).rewrite(log, 4)
    async with sealing(log, store.url, key=key, cluster=cluster_name) as running:
        await until(lambda: running.of_cluster("seals_refused_total") >= 1)
    assert store.objects == sealed


async def test_two_sealers_at_one_deposit_leave_one_chain_of_lines(
    postgres_log: PostgresLog, cluster_name: str, store: ObjectStore, key: Key
) -> None:
    log = postgres_log
    async with (
        sealing(log, store.url, key=key, cluster=cluster_name) as one,
        sealing(log, store.url, key=key, cluster=cluster_name) as other,
    ):
        for _ in range(2):
            head = await append(log, cluster_name)
            for each in (one, other):
                await each.sealed(head)
        for each in (one, other):
            await each.handed_in(store.url)
    assert (await against(log, cluster_name, store.url, key)).anchored >= 2


async def test_a_relay_with_a_key_seals_what_it_relays(
    database_url: str, nats_url: str, postgres_log: PostgresLog, cluster_name: str, tmp_path: Path
) -> None:
    key_file, token_file = tmp_path / "key.pem", tmp_path / "token"
    key_file.write_bytes(pem())
    token_file.write_text("letmein\n")
    head = await append(postgres_log, cluster_name)
    with object_store(token="letmein") as store:
        options = ("--seal-key-file", str(key_file), "--seal-to", store.url, "--seal-token-file", str(token_file))
        async with RelayProcess(database_url, nats_url, *options) as relay:
            await until(lambda: len(store.objects) == 1)
            assert await relay.stop() == 0
        report = await against(postgres_log, cluster_name, store.url, Key.read(key_file.read_bytes(), name="key"))
        assert (report.ok, report.anchored, report.head.position) == (True, 1, head)


async def test_a_deposit_that_refuses_or_answers_nonsense_is_named(store: ObjectStore, key: Key) -> None:
    async with closing(open_deposit(f"{store.url}?sig=secret")) as deposit:
        assert await deposit.count() == 0
        for number in range(1, 8):
            await deposit.add(f"line {number}", number=number)
            assert await deposit.count() == number
        assert await deposit.lines(after=5) == ["line 6", "line 7"]
        with pytest.raises(DepositTaken, match="line 3 is there already"):
            await deposit.add("another", number=3)
        assert "secret" not in deposit.address
    store.stop()
    async with closing(open_deposit(store.url)) as deposit:
        with pytest.raises(DepositUnavailable, match="bucket/seals"):
            await deposit.count()
