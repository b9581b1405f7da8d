"""A watcher's memory at its start: the last fact of every object, read from the log.

The log is the memory; a snapshot only spares reading it from the beginning, and can be deleted at any time.
"""

import msgspec
from kaicore.kube.facts import Facts, KnownFact
from kaicore.kube.kinds import FACT_TYPES
from kaicore.kube.reflector_core import ObjectKey
from kaicore.ledger.log.port import EventLog, Filter, Snapshot
from kaicore.ledger.log.snapshots import newest
from kaicore.rules.events.codec import decode_payload

SNAPSHOT_NAME = "watcher"

#: Raised with every change of what digests are made over.
SNAPSHOT_SCHEMA = "watcher-3"

_PAGE = 2000

_Record = dict[str, list[tuple[ObjectKey, KnownFact]]]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Record)


async def recall(log: EventLog, cluster: str, *, upto: int) -> Facts:
    """Return what the log says of every object, up to a position.

    Raises:
        LogUnavailable: the log does not answer.
        UnknownEvent: a newer kai-ledger has written to it.
    """
    facts = Facts(cluster)
    position = 0
    remembered = await newest(log, cluster, name=SNAPSHOT_NAME, schema=SNAPSHOT_SCHEMA, read=_read, upto=upto)
    if remembered is not None:
        position, record = remembered
        for kind, facts_by_key in facts.by_kind.items():
            facts_by_key.update(record.get(kind, ()))
    where = Filter(types=FACT_TYPES)
    while page := await log.read(cluster, after=position, upto=upto, limit=_PAGE, where=where):
        for event in page:
            facts.recall(decode_payload(event))
        position = page[-1].position
    return facts


def snapshot_of(facts: Facts, *, position: int) -> Snapshot:
    """Return facts as a snapshot; the log must have all of them, and none after `position`."""
    record = {kind: list(facts_by_key.items()) for kind, facts_by_key in facts.by_kind.items()}
    return Snapshot(SNAPSHOT_NAME, position, SNAPSHOT_SCHEMA, _encoder.encode(record))


def _read(snapshot: Snapshot) -> tuple[int, _Record]:
    return snapshot.position, _decoder.decode(snapshot.body)
