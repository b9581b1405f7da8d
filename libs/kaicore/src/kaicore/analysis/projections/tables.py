"""The tables of the read models, in the schema `views`. `migrations/versions/0006_views.py` creates them."""

import msgspec
from sqlalchemy import BigInteger, Boolean, Column, Integer, MetaData, Numeric, Table, Text

from kaicore.analysis.projections.rows import DecisionsHour, Occupancy, PodHistory, QueueHour

METADATA = MetaData(schema="views")

#: Amounts times seconds, which 64 bits do not hold.
_LARGE = frozenset({"allocated", "requested", "fair_share"})


def _table(name: str, row: type[msgspec.Struct], *keys: str) -> Table:
    fields = [
        Column(
            field.name,
            Text if field.type is str else Numeric(asdecimal=False) if field.name in _LARGE else BigInteger,
            primary_key=field.name in keys,
            nullable=False,
        )
        for field in msgspec.structs.fields(row)
    ]
    cluster = Column("cluster", Text, primary_key=True)
    generation = Column("generation", Integer, primary_key=True, autoincrement=False)
    return Table(name, METADATA, cluster, generation, *fields)


PROGRESS = Table(
    "progress",
    METADATA,
    Column("cluster", Text, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("schema", Integer, nullable=False),
    Column("live", Boolean, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("recorded_at", BigInteger, nullable=False),
)
POD_HISTORY = _table("pod_history", PodHistory, "uid")
OCCUPANCY = _table("occupancy", Occupancy, "at")
QUEUE_HOUR = _table("queue_hour", QueueHour, "at", "queue", "resource")
DECISIONS_HOUR = _table("decisions_hour", DecisionsHour, "at")

#: All that have rows of a generation.
OF_GENERATIONS = (POD_HISTORY, OCCUPANCY, QUEUE_HOUR, DECISIONS_HOUR)
