"""Seals of a log that are kept outside: what a user who may rewrite the whole database cannot hide from them."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from kaicore.ledger.log.chain import event_hash
from kaicore.ledger.log.partitions import Month
from kaicore.ledger.log.port import Snapshot
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA, encode_state

from tests.given.processes.called_kai import Run, caller
from tests.integration.scheduling import Facts

C = "cluster-a"


async def fill(url: str, count: int = 4) -> None:
    """Two events for each of so many nodes."""
    async with await PostgresLog.open(url) as log:
        facts = Facts(log, C)
        facts._count = (await log.head(C)).position
        await facts.add_nodes(count)


@pytest.fixture(scope="module")
def filled(module_database_url: str) -> str:
    asyncio.run(fill(module_database_url))
    return module_database_url


@pytest.fixture
def url(filled: str, copy_of: Callable[[str], AbstractContextManager[str]]) -> Iterator[str]:
    with copy_of(filled) as copied:
        yield copied


@pytest.fixture
def kai(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, url: str) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAI_DATABASE_URL", url)
    monkeypatch.delenv("KAI_DATA_DIR", raising=False)

    return caller(monkeypatch, capsys)


def keys(directory: Path) -> tuple[str, str]:
    """Write an Ed25519 key pair; return the files' names."""
    private = Ed25519PrivateKey.generate()
    (directory / "private.pem").write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (directory / "public.pem").write_bytes(
        private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return "private.pem", "public.pem"


class Superuser:
    """The owner of the server, who rewrites the log, and makes everything in the database agree."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url)
        self._connection.execute("SET session_replication_role = replica")

    def __enter__(self) -> "Superuser":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.commit()
        self._connection.close()

    def run(self, statement: str, *parameters: object) -> None:
        assert self._connection.execute(statement.encode(), parameters).rowcount > 0

    def cut(self, position: int) -> None:
        """Cut off the tail and move the head back."""
        for table in ("event", "event_id"):
            self.run(f"DELETE FROM {table} WHERE position > %s", position)
        self._agree()

    def rewrite(self, url: str, position: int, body: str, *, before: bytes | None = None) -> None:
        """Change an event, and compute the chain anew from there on."""
        self.run("UPDATE event SET body = %s::json WHERE position = %s", body, position)
        self._connection.commit()
        events = asyncio.run(_raw(url))
        previous = before
        for event in events:
            if event.position >= position:
                assert previous is not None
                digest = event_hash(previous, event)
                self.run("UPDATE event SET hash = %s WHERE position = %s", digest, event.position)
                previous = digest
            else:
                previous = event.hash
        self._agree()

    def _agree(self) -> None:
        self.run(
            "UPDATE log_head SET (position, hash, recorded_at) = "
            "(SELECT position, hash, recorded_at FROM event ORDER BY position DESC LIMIT 1)"
        )
        self.run("DELETE FROM stream WHERE true")
        self.run("INSERT INTO stream SELECT cluster, stream, max(version) FROM event GROUP BY cluster, stream")


async def _raw(url: str) -> list:  # type: ignore[type-arg]
    async with await PostgresLog.open(url) as log, log.audit_view(C) as view:
        return [event async for page in view.pages() for event in page]


def test_an_unchanged_log_fits_its_seals_and_grows_on(kai: Run, url: str, tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    for _ in range(2):
        code, output = kai("audit", "seal", "seals", "--key", private)
        assert code == 0, output
        assert "cluster cluster-a: sealed at " in output
        asyncio.run(fill(url))
    code, output = kai("audit", "verify", "--against", "seals", "--key", public)
    assert code == 0, output
    assert "24 events verified, 2 anchors compared" in output
    assert "0 decisions: nothing promised twice" in output
    code, output = kai("audit", "verify", "--against", "seals", "-o", "json")
    assert code == 0, output
    answer = json.loads(output)
    assert answer["head"]["recordedAt"].endswith("Z")
    assert (answer["ok"], answer["anchored"], answer["promises"]["twice"]) == (True, 2, [])


def test_a_tail_that_was_cut_off_with_the_head_moved_back_is_found(kai: Run, url: str) -> None:
    assert kai("audit", "seal", "seals")[0] == 0
    with Superuser(url) as superuser:
        superuser.cut(5)
    assert kai("audit", "verify", "--chain-only")[0] == 0, "the chain itself shows nothing"
    code, output = kai("audit", "verify", "--against", "seals")
    assert (code, "event 8: is missing; there is an anchor for it" in output) == (1, True), output
    code, output = kai("audit", "seal", "seals")
    assert (code, "nothing was written" in output) == (1, True)
    # Also when the log has grown beyond the anchor since.
    asyncio.run(fill(url))
    code, output = kai("audit", "verify", "--against", "seals")
    assert (code, "event 8: its hash is not that of the anchor" in output) == (1, True), output


def test_a_chain_that_was_computed_anew_is_found(kai: Run, url: str) -> None:
    assert kai("audit", "seal", "seals")[0] == 0
    with Superuser(url) as superuser:
        superuser.rewrite(url, 3, '{"uid":"uid-n1","name":"another"}')
    assert kai("audit", "verify", "--chain-only")[0] == 0, "the chain itself shows nothing"
    code, output = kai("audit", "verify", "--chain-only", "--against", "seals")
    assert (code, "event 8: its hash is not that of the anchor" in output) == (1, True), output


def test_a_log_of_which_nothing_is_left_is_found(kai: Run, url: str) -> None:
    assert kai("audit", "seal", "seals")[0] == 0
    with Superuser(url) as superuser:
        for table in ("event", "event_id", "stream", "log_head"):
            superuser.run(f"DELETE FROM {table}")
    code, output = kai("audit", "verify", "--against", "seals")
    assert (code, "event 8: is missing; there is an anchor for it" in output) == (1, True), output


@pytest.mark.parametrize("keyed", ["ed25519", "hmac"])
def test_a_forged_seal_is_found(kai: Run, url: str, tmp_path: Path, keyed: str) -> None:
    """An attacker who rewrites the log rewrites the seals that he finds, too; without the key he cannot."""
    private, public = keys(tmp_path)
    if keyed == "hmac":
        private = public = "secret"
        (tmp_path / "secret").write_text("a secret of some length\n")
    assert kai("audit", "seal", "seals", "--key", private)[0] == 0
    with Superuser(url) as superuser:
        superuser.cut(5)
    (event,) = [event for event in asyncio.run(_raw(url)) if event.position == 5]
    line = json.loads((tmp_path / "seals").read_text())
    line |= {"position": 5, "hash": event.hash.hex(), "recordedAt": event.recorded_at}
    (tmp_path / "seals").write_text(json.dumps(line) + "\n")
    code, output = kai("audit", "verify", "--against", "seals", "--key", public)
    assert (code, "seals: line 1: signature" in output) == (1, True), output
    assert "it is forged" in output
    unsigned = {**line, "algorithm": "", "signature": ""}
    (tmp_path / "seals").write_text(json.dumps(unsigned) + "\n")
    code, output = kai("audit", "verify", "--against", "seals", "--key", public)
    assert (code, "seals: line 1: algorithm" in output) == (1, True), output


def test_a_line_that_was_taken_out_of_the_seals_is_found(kai: Run, url: str, tmp_path: Path) -> None:
    for _ in range(3):
        assert kai("audit", "seal", "seals")[0] == 0
        asyncio.run(fill(url, 1))
    lines = (tmp_path / "seals").read_text().splitlines(keepends=True)
    (tmp_path / "seals").write_text(lines[0] + lines[2])
    code, output = kai("audit", "verify", "--against", "seals")
    assert (code, "seals: line 2: previous" in output) == (1, True), output


def test_a_forged_seal_of_a_retired_month_is_found(kai: Run, url: str) -> None:
    """The first event that is left is chained to the seal: both can be rewritten together."""
    asyncio.run(_retire(url))
    assert kai("audit", "seal", "seals")[0] == 0
    code, output = kai("audit", "verify", "--against", "seals")
    assert (code, "2 anchors compared" in output) == (0, True), output
    forged = b"\1" * 32
    (first, *_) = asyncio.run(_raw(url))
    with Superuser(url) as superuser:
        superuser.run("UPDATE seal SET hash = %s", forged)
        superuser.rewrite(url, first.position, bytes(first.body).decode(), before=forged)
    assert kai("audit", "verify", "--chain-only")[0] == 0, "the chain itself shows nothing"
    code, output = kai("audit", "verify", "--chain-only", "--against", "seals")
    assert code == 1
    assert "the hash in the seal of event_2026_11 is not that of the anchor" in output


async def _retire(url: str) -> None:
    november, day = Month.of(_recorded(url)), 24 * 3600 * 1_000_000
    now = (november + 1).start + 2 * day
    async with await PostgresLog.open(url, clock=lambda: now) as log:
        await log.make_months()
        facts = Facts(log, C)
        facts._count = 100
        state = ClusterState(C).fold_all(await log.read(C))
        await log.save_snapshot(C, Snapshot("state", state.position, SNAPSHOT_SCHEMA, encode_state(state)))
        await facts.add_nodes(2)
        await log.detach_month(november)


def _recorded(url: str) -> int:
    with psycopg.connect(url) as connection:
        ((at,),) = connection.execute("SELECT max(recorded_at) FROM event").fetchall()
        return int(at)


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        (b"nonsense\n", "seals: line 1: anchor: is none"),
        (b'{"cluster":"c","position":1,"hash":"zz","recordedAt":1,"sealedAt":1}\n', "seals: line 1: anchor"),
        (b'{"cluster":"c","position":1,"hash":"aa","recordedAt":1,"sealedAt":1}\n', "seals: line 1: hash"),
        (b"\xff\xfe\n", "seals: contents"),
    ],
)
def test_a_file_that_holds_no_seals_is_refused_with_line_and_field(
    kai: Run, tmp_path: Path, contents: bytes, problem: str
) -> None:
    (tmp_path / "seals").write_bytes(contents)
    code, output = kai("audit", "verify", "--against", "seals")
    assert (code, problem in output) == (1, True), output


def test_keys_and_files_that_are_none_are_refused(kai: Run, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("short")
    (tmp_path / "broken.pem").write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    _, public = keys(tmp_path)
    for arguments, problem in (
        (("seal", "seals", "--key", "short"), "short: a secret of 5 bytes is too short"),
        (("seal", "seals", "--key", "broken.pem"), "broken.pem: not an Ed25519 key in PEM"),
        (("seal", "seals", "--key", public), "a public key cannot sign"),
        (("seal", "nowhere/seals"), "nowhere/seals: cannot be written: No such file or directory"),
        (("verify", "--against", "nowhere"), "nowhere: holds no seals, or is not there"),
    ):
        code, output = kai("audit", *arguments)
        assert (code, problem in output) == (2, True), output


def test_what_was_promised_twice_is_named(kai: Run, url: str) -> None:
    asyncio.run(_place_two(url, "node-0", "node-0"))
    code, output = kai("audit", "verify")
    assert code == 1
    assert "2 decisions: 1 promised twice" in output
    assert "pod default/b: node n0: zone node-0: nvidia.com/gpu: 6 of 4 held (promised)" in output


def test_what_no_decision_could_know_is_no_fault_and_an_example_says_what_it_means(kai: Run, url: str) -> None:
    asyncio.run(_place_two(url, "node-0", "node-1", observed="node-0"))
    code, output = kai("audit", "verify")
    assert code == 0, output
    assert "2 decisions: nothing promised twice" in output
    assert "over-use that the scheduler did not cause: 1 observed; such as" in output
    example = "pod default/b: node n0: zone node-0: nvidia.com/gpu: 6 of 4 held (observed): its kubelet gave the pod"
    assert example in output


async def _place_two(url: str, *zones: str, observed: str = "") -> None:
    """Record decisions on two pods of 3 GPUs, each on its zone, and on which zone the second one is observed."""
    from kaicore.rules.events import payloads
    from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
    from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount

    async with await PostgresLog.open(url) as log:
        facts = Facts(log, C)
        facts._count = 1000
        await facts.add_pods("a", "b", cpu=2, gpu=3)

        def on(zone: str, provenance: Provenance) -> Placement:
            held = (ZoneAmount(zone, {"nvidia.com/gpu": 3}),)
            return Placement(provenance, (ContainerPlacement("main", (zone,), held),))

        shown: list[tuple[str, payloads.Payload]] = []
        for name, zone in zip("ab", zones, strict=True):
            at = on(zone, Provenance.PREDICTED)
            shown.append((name, payloads.PodPlaced(f"uid-{name}", "default", name, "n0", "x/1", "class", at)))
        if observed:
            at = on(observed, Provenance.OBSERVED)
            shown.append(("b", payloads.PlacementObserved("uid-b", "default", "b", "n0", at)))
        for number, (name, payload) in enumerate(shown):
            event = NewEvent(derived_id(str(number)), f"pod/uid-{name}", payload, "test", 0, f"default/{name}")
            await log.append(C, [Unit((event,))])


def test_seals_can_be_read_by_another_program(kai: Run, tmp_path: Path) -> None:
    """As docs/explanation/log.md has it: one JSON object a line, the digest of the line before it in `previous`."""
    assert kai("audit", "seal", "seals")[0] == 0
    (line,) = (tmp_path / "seals").read_text().splitlines()
    sealed = msgspec.json.decode(line)
    assert sealed["cluster"] == C
    assert sealed["position"] == 8
    assert len(bytes.fromhex(sealed["hash"])) == 32
