"""Numbers beyond 64 bits decode for nobody, and no mutated event of a recorded log makes a reader raise."""

import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec
from kai_binder.projection.open_work import BinderProjection
from kai_ingest.projection import IngestProjection
from kai_watcher.watcher import snapshot_of
from kaicore.kube.kinds.facts import Facts
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.examples import FEW
from tests.given.recorded import DEMO, read_log

NUMBERS = (2**63, 2**70, -(2**63), 2**63 - 1, -1, 0)
VALUES = ((2**63 - 1, True), (1 - 2**63, True), (2**63, False), (-(2**63), False), (10**40, False))
TEXTS = ("", "a/b/c", "x" * 300, "9" * 30, "-1")

Path = tuple[str | int, ...]


def places(document: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    yield path, document
    parts = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, part in parts:
        yield from places(part, (*path, key))


def changed(document: Any, path: Path, value: Any) -> Any:
    copied = json.loads(json.dumps(document))
    at = copied
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return copied


def mutants(event: Event, chance: random.Random, count: int) -> Iterator[Event]:
    """Yield the event with one part of its body changed to something odd of the same kind."""
    document = msgspec.json.decode(event.body)
    odd: list[tuple[Path, Any]] = []
    for path, part in places(document):
        if not path or isinstance(part, bool):
            continue
        if isinstance(part, int):
            odd += ((path, number) for number in NUMBERS)
        elif isinstance(part, str):
            odd += ((path, text) for text in TEXTS)
        elif isinstance(part, list):
            odd += ((path, []), (path, part + part))
        elif isinstance(part, dict) and part:
            odd += ((path, {}), (path, {**part, "": next(iter(part.values()))}))
    for path, value in chance.sample(odd, min(count, len(odd))):
        body = msgspec.json.encode(changed(document, path, value))
        yield msgspec.structs.replace(event, body=msgspec.Raw(body), hash=chance.randbytes(32))


def test_number_of_more_than_64_bits_is_undecodable_and_named() -> None:
    (event,) = (event for event in read_log(DEMO / "demo.jsonl.xz")[:200] if event.position == 100)
    document = msgspec.json.decode(event.body)
    path = next(path for path, part in places(document) if isinstance(part, int) and not isinstance(part, bool))
    for value, fits in VALUES:
        body = msgspec.Raw(msgspec.json.encode(changed(document, path, value)))
        decoded = decode_payload(msgspec.structs.replace(event, body=body))
        assert isinstance(decoded, payloads.Undecodable) != fits
        if not fits:
            assert isinstance(decoded, payloads.Undecodable)
            assert decoded.error.endswith(f": does not fit into 64 bits: {value}")


def test_long_digits_in_a_text_are_no_number() -> None:
    aside = payloads.EventSetAside(1, "node/n1", "9" * 64, "1" * 30)
    event = read_log(DEMO / "demo.jsonl.xz")[0]
    body = msgspec.Raw(msgspec.json.encode(aside))
    assert decode_payload(msgspec.structs.replace(event, type="EventSetAside", schema=1, body=body)) == aside


def test_mutated_event_makes_no_reader_raise_nor_its_snapshot() -> None:
    log, chance = read_log(DEMO / "demo.jsonl.xz"), random.Random(0)
    state, binder, ingest, tried = ClusterState(log[0].cluster), BinderProjection(), IngestProjection(), set[str]()
    for event in log:
        if event.type not in tried:
            tried.add(event.type)
            kept = encode_state(state), binder.snapshot(), ingest.dump()
            for mutant in mutants(event, chance, 3 if FEW else 8):
                fold_each(mutant, *kept)
        state.fold(event)
        binder.fold(event)
        ingest.apply(event)
    assert len(tried) > 15


def fold_each(event: Event, state: bytes, binder: Any, ingest: bytes) -> None:
    """Fold an event into each reader as it was before it, and have each keep what it has then."""
    cluster = decode_state(state)
    cluster.fold(event)
    decode_state(encode_state(cluster))
    bound = BinderProjection.restored(binder)
    bound.fold(event)
    BinderProjection.restored(bound.snapshot())
    known = IngestProjection.load(ingest, position=event.position - 1)
    known.apply(event)
    IngestProjection.load(known.dump(), position=event.position)
    facts = Facts(event.cluster)
    facts.recall(decode_payload(event))
    snapshot_of(facts)
