"""Replay: fold the log again, run every recorded cycle again, and compare what it decides with what was recorded.

A recorded cycle names the position, the configuration and the clock it was decided on, so the same list of decisions
must come out. A batch that the cycle decided and that the log does not hold must have been stale: one of the streams
that it was conditional on has moved on between the cycle's input and its record. Anything else is a difference.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from kaicore.errors import KaiError
from kaicore.rules.engine.config import ENGINE_VERSION, EngineConfig
from kaicore.rules.engine.decisions import Decision, DecisionBatch, GroupDecision
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import (
    ConfigRecorded,
    CycleCompleted,
    EvictionDecided,
    FieldsErased,
    HealRequested,
    NominationCleared,
    PodNominated,
    PodPlaced,
    ProvisioningRequested,
    ProvisioningWithdrawn,
)
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.decide import Proposal, decide

_VERBS: dict[type[Decision], tuple[str, str]] = {
    PodPlaced: ("placed on", "not placed"),
    PodNominated: ("nominated for", "not nominated"),
    NominationCleared: ("no longer nominated for", "still nominated"),
    EvictionDecided: ("to be evicted from", "not to be evicted"),
    HealRequested: ("to be placed anew, not on", "not to be placed anew"),
    ProvisioningRequested: ("requested for", "not requested"),
    ProvisioningWithdrawn: ("withdrawn for", "not withdrawn"),
}

#: Types of the events that a replay must know before it begins.
KNOWN_BEFOREHAND = ("ConfigRecorded", "CycleCompleted", "FieldsErased")

#: From this schema version of `CycleCompleted` on its `decisions_digest` is over the payloads that are recorded, and
#: evictions are recorded with why they were chosen.
_DECISIONS_ARE_PAYLOADS = 2


class UnreplayableCycle(KaiError):
    """A cycle was recorded without what it takes to run it again."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay and the log part.

    Attributes:
        position: of the event that recorded the cycle or the decision.
        cycle: the cycle's id.
        what: which of the cycle's properties, or which pod.
        recorded: what the log says.
        replayed: what came out this time.
    """

    position: int
    cycle: str
    what: str
    recorded: str
    replayed: str

    def __str__(self) -> str:
        return (
            f"position {self.position}, cycle {self.cycle}: {self.what}: "
            f"recorded {self.recorded}, replayed {self.replayed}"
        )


@dataclass(slots=True)
class ReplayReport:
    """What a replay found.

    Attributes:
        cycles: how many cycles were run again.
        decisions: how many recorded decisions were compared.
        late: decisions that were not recorded since their batch was stale.
        other_engine: cycles that another engine version decided.
        erased: cycles whose digest is over names that were erased since; their decisions are compared one by one.
        differences: in order of position.
    """

    cluster: str
    position: int = 0
    cycles: int = 0
    decisions: int = 0
    late: int = 0
    other_engine: int = 0
    erased: int = 0
    differences: list[Difference] = field(default_factory=list)


@dataclass(slots=True)
class _Cycle:
    """A cycle that was run again and of which not all decisions have been compared yet.

    Attributes:
        expected: what the log has to hold: all decisions but the stale ones.
        schema: version of the schema with which the cycle is recorded.
        recorded: what it holds so far, with positions.
    """

    proposal: Proposal
    expected: list[Decision]
    schema: int
    recorded: list[tuple[int, Decision]] = field(default_factory=list)


class Replay:
    """Takes a cluster's events in order."""

    def __init__(self, state: ClusterState, known_beforehand: Iterable[Event]) -> None:
        """Begin at a state.

        Args:
            state: at the position to begin at, usually 0; folded on as events are taken.
            known_beforehand: events of the types in `KNOWN_BEFOREHAND`: a cycle is recorded after its input,
                and so is the configuration of the first cycle that used it.
        """
        self.state = state
        self.report = ReplayReport(state.cluster)
        self._due: dict[int, list[tuple[Event, CycleCompleted]]] = {}
        self._before: set[str] = set()
        self._open: dict[str, _Cycle] = {}
        self._configs = dict(state.configs)
        #: What pods are called whose names were erased.
        self._pseudonyms: set[bytes] = set()
        for event in known_beforehand:
            payload = decode_payload(event)
            if isinstance(payload, ConfigRecorded):
                self._configs[payload.digest] = payload.config
            elif isinstance(payload, FieldsErased):
                self._pseudonyms.add(payload.pseudonym.encode())
            elif isinstance(payload, CycleCompleted) and payload.input_position >= state.position:
                self._due.setdefault(payload.input_position, []).append((event, payload))
            elif isinstance(payload, CycleCompleted):
                self._before.add(payload.cycle)
        self._run_due()

    def take(self, event: Event) -> None:
        """Take the next event: compare it with what was replayed, fold it, and run the cycles that it is the input of.

        Raises:
            UnreplayableCycle: a cycle's configuration is not in the log.
        """
        payload = decode_payload(event)
        if isinstance(payload, Decision):
            self._compare_decision(event, payload)
        elif isinstance(payload, CycleCompleted):
            self._compare_cycle(event, payload)
        self.state.fold(event)
        self._run_due()

    def finish(self) -> ReplayReport:
        """Compare what is left, and report."""
        for cycle in list(self._open):
            self._close(cycle)
        self.report.position = self.state.position
        self.report.differences.sort(key=lambda difference: difference.position)
        return self.report

    def _run_due(self) -> None:
        for event, recorded in self._due.pop(self.state.position, ()):
            document = self._configs.get(recorded.config_digest)
            if document is None:
                raise UnreplayableCycle(
                    f"cluster {self.state.cluster}: position {event.position}: cycle {recorded.cycle}: "
                    f"configuration {recorded.config_digest} is not in the log"
                )
            config = msgspec.convert(document, EngineConfig)
            proposal = decide(self.state, config, shard=recorded.shard, now=recorded.now, actor=event.actor)
            expected = list(proposal.result.decisions)
            self._open[recorded.cycle] = _Cycle(proposal, expected, event.schema)

    def _compare_cycle(self, event: Event, recorded: CycleCompleted) -> None:
        if recorded.cycle in self._before:
            return
        self.report.cycles += 1
        self.report.other_engine += recorded.engine_version != ENGINE_VERSION
        cycle = self._open.get(recorded.cycle)
        if cycle is None:
            self._differ(event.position, recorded.cycle, "the cycle", "present", "absent")
            return
        replayed = cycle.proposal.units[0].events[0].payload
        assert isinstance(replayed, CycleCompleted)
        for name in recorded.__struct_fields__:
            mine, theirs = getattr(recorded, name), getattr(replayed, name)
            comparable = name != "decisions_digest" or event.schema >= _DECISIONS_ARE_PAYLOADS
            if name == "decisions_digest" and mine != theirs and self._names_erased(cycle):
                self.report.erased += 1
            elif mine != theirs and comparable and name != "engine_version":
                self._differ(event.position, recorded.cycle, name, _text(mine), _text(theirs))
        self._drop_stale(cycle)
        if not cycle.expected:
            del self._open[recorded.cycle]

    def _names_erased(self, cycle: _Cycle) -> bool:
        """Tell whether a cycle's decisions or reasons name a pod whose name was erased since."""
        if not self._pseudonyms:
            return False
        result = cycle.proposal.result
        text = msgspec.json.encode([list(result.decisions), result.pending, result.groups])
        return any(pseudonym in text for pseudonym in self._pseudonyms)

    def _drop_stale(self, cycle: _Cycle) -> None:
        """Expect no decision of a batch of which a stream has moved on by the time of the record."""
        versions = self.state.versions
        batches = zip(cycle.proposal.units[1:], cycle.proposal.result.batches, strict=True)
        cycle.expected = [
            decision
            for unit, batch in batches
            if all(versions.get(stream, 0) == version for stream, version in unit.expect.items())
            for decision in _as_recorded(batch, cycle.schema)
        ]
        self.report.late += sum(1 for _ in cycle.proposal.result.decisions) - len(cycle.expected)

    def _compare_decision(self, event: Event, recorded: Decision) -> None:
        if recorded.cycle in self._before:
            return
        self.report.decisions += 1
        cycle = self._open.get(recorded.cycle)
        if cycle is None:
            self._differ_wholly(event.position, recorded)
            return
        cycle.recorded.append((event.position, recorded))
        if len(cycle.recorded) == len(cycle.expected):
            self._close(recorded.cycle)

    def _close(self, name: str) -> None:
        """Compare all decisions of a cycle with what is recorded."""
        cycle = self._open.pop(name)
        if [recorded for _, recorded in cycle.recorded] != cycle.expected:
            self._explain(name, cycle)

    def _explain(self, name: str, cycle: _Cycle) -> None:
        """Say pod by pod in what two lists of decisions differ."""
        before = len(self.report.differences)
        expected = {_key(decision): decision for decision in cycle.expected}
        for position, recorded in cycle.recorded:
            replayed = expected.pop(_key(recorded), None)
            if replayed is None:
                self._differ_wholly(position, recorded)
            elif replayed != recorded:
                self._compare_fields(position, recorded, replayed)
        for replayed in expected.values():
            did, did_not = _VERBS[type(replayed)]
            self._differ(self.state.position, name, _name(replayed), did_not, f"{did} {_object(replayed)}")
        if len(self.report.differences) == before:
            first, last = cycle.recorded[0][0], cycle.recorded[-1][0]
            replayed_order = ", ".join(map(_name, cycle.expected))
            self._differ(first, name, "the order of its decisions", f"positions {first} to {last}", replayed_order)

    def _compare_fields(self, position: int, recorded: Decision, replayed: Decision) -> None:
        who = _name(recorded)
        where = _object(recorded)
        if _object(replayed) != where:
            self._differ(position, recorded.cycle, who, where, _object(replayed))
            return
        for name in recorded.__struct_fields__:
            mine, theirs = getattr(recorded, name), getattr(replayed, name)
            if mine != theirs:
                what = "zones" if name == "placement" else name
                self._differ(
                    position,
                    recorded.cycle,
                    f"{who} {'for' if isinstance(recorded, GroupDecision) else 'on'} {where}: {what}",
                    _text(mine),
                    _text(theirs),
                )

    def _differ_wholly(self, position: int, recorded: Decision) -> None:
        did, did_not = _VERBS[type(recorded)]
        self._differ(position, recorded.cycle, _name(recorded), f"{did} {_object(recorded)}", did_not)

    def _differ(self, position: int, cycle: str, what: str, recorded: str, replayed: str) -> None:
        self.report.differences.append(Difference(position, cycle, what, recorded, replayed))


def _as_recorded(batch: DecisionBatch, schema: int) -> Sequence[Decision]:
    """Return decisions with what a schema version of `CycleCompleted` records of them."""
    if schema >= _DECISIONS_ARE_PAYLOADS:
        return batch.decisions
    unknown = {"cost": None, "chosen_for": "", "runner_up": "", "runner_up_cost": None}
    return [
        msgspec.structs.replace(decision, **unknown) if isinstance(decision, EvictionDecided) else decision
        for decision in batch.decisions
    ]


def _key(decision: Decision) -> tuple[str, str]:
    return type(decision).__name__, decision.name if isinstance(decision, GroupDecision) else decision.uid


def _object(decision: Decision) -> str:
    """Return the node that a decision is about, or the group."""
    return decision.group if isinstance(decision, GroupDecision) else decision.node


def _name(decision: Decision) -> str:
    return f"{decision.namespace}/{decision.name}"


def _text(value: object) -> str:
    if isinstance(value, str | int):
        return str(value)
    return msgspec.json.encode(value).decode()
