"""The report of a replay: the differences between the log and a second run of its cycles."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from kaicore.rules.events.payloads import Payload

#: Differences that are kept in full; of further ones only the kind is counted.
MOST_DIFFERENCES = 100


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay and the log part.

    Attributes:
        position: of the event that recorded the cycle or the decision.
        cycle: the cycle's id.
        what: which of the cycle's properties, or which pod.
        recorded: what the log says.
        replayed: what came out this time.
        kind: what differs, in words that differences of one kind share.
        engine_version: by which the cycle was recorded.
        recorded_event: the payload that is recorded; None where there is none.
        replayed_event: the payload that came out instead; None where none did.
    """

    position: int
    cycle: str
    what: str
    recorded: str
    replayed: str
    kind: str = ""
    engine_version: str = ""
    recorded_event: Payload | None = None
    replayed_event: Payload | None = None

    def __str__(self) -> str:
        return (
            f"position {self.position}, cycle {self.cycle}: {self.what}: "
            f"recorded {self.recorded}, replayed {self.replayed}"
        )


@dataclass(slots=True)
class ReplayReport:
    """What a replay found.

    Attributes:
        first: position of the first event of the range whose cycles were run again.
        position: of the last one.
        cycles: how many cycles were run again.
        decisions: how many recorded decisions were compared.
        late: decisions that were not recorded since their batch was stale.
        unreachable: cycles of the range that were not run again: what they were decided on is retired.
        other_engine: cycles that another engine version decided.
        erased: cycles whose digest is over names that were erased since: their decisions were compared one by one.
        engine_versions: how many cycles each engine version decided.
        differences: of cycles that this engine version decided, in order of position; the first `MOST_DIFFERENCES`.
        kinds: how many differences of each kind there are, of such cycles.
        otherwise: what this engine decides otherwise than another version did, likewise.
        otherwise_kinds: how often, by kind.
    """

    cluster: str
    first: int = 1
    position: int = 0
    cycles: int = 0
    decisions: int = 0
    late: int = 0
    unreachable: int = 0
    other_engine: int = 0
    erased: int = 0
    engine_versions: dict[str, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    otherwise: list[Difference] = field(default_factory=list)
    otherwise_kinds: dict[str, int] = field(default_factory=dict)

    def differ(self, difference: Difference, *, other_engine: bool) -> None:
        """Take note of a difference; of a cycle that another engine decided it is none that there should not be."""
        kinds, kept = (self.otherwise_kinds, self.otherwise) if other_engine else (self.kinds, self.differences)
        kinds[difference.kind] = kinds.get(difference.kind, 0) + 1
        if len(kept) < MOST_DIFFERENCES:
            kept.append(difference)


def merged(reports: Iterable[ReplayReport]) -> ReplayReport:
    """Return the reports of ranges that follow each other as one."""
    first, *others = reports
    for other in others:
        first.position = other.position
        first.cycles += other.cycles
        first.decisions += other.decisions
        first.late += other.late
        first.unreachable += other.unreachable
        first.other_engine += other.other_engine
        first.erased += other.erased
        first.engine_versions = dict(Counter(first.engine_versions) + Counter(other.engine_versions))
        first.kinds = dict(Counter(first.kinds) + Counter(other.kinds))
        first.otherwise_kinds = dict(Counter(first.otherwise_kinds) + Counter(other.otherwise_kinds))
        first.differences = [*first.differences, *other.differences][:MOST_DIFFERENCES]
        first.otherwise = [*first.otherwise, *other.otherwise][:MOST_DIFFERENCES]
    return first
