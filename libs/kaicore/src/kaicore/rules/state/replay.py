"""Replay: fold the log again, run every recorded cycle again, and compare what it decides with what was recorded.

A recorded cycle names the position, the configuration and the clock it was decided on, so the same decisions must come
out. A decision that the cycle took but that the log does not hold must have come too late: one of the streams that it
was conditional on has moved on between the cycle's input and its record. Anything else is a difference.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from kaicore.errors import KaiError
from kaicore.rules.engine.config import ENGINE_VERSION, EngineConfig
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event, Unit
from kaicore.rules.events.payloads import (
    ConfigRecorded,
    CycleCompleted,
    EvictionDecided,
    HealRequested,
    NominationCleared,
    PodNominated,
    PodPlaced,
)
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.decide import Proposal, decide

#: What cycles decide about pods.
Decided = PodPlaced | PodNominated | NominationCleared | EvictionDecided | HealRequested

_VERBS: dict[type[Decided], tuple[str, str]] = {
    PodPlaced: ("placed on", "not placed"),
    PodNominated: ("nominated for", "not nominated"),
    NominationCleared: ("no longer nominated for", "still nominated"),
    EvictionDecided: ("to be evicted from", "not to be evicted"),
    HealRequested: ("to be placed anew, not on", "not to be placed anew"),
}

#: Types of the events that a replay must know before it begins.
KNOWN_BEFOREHAND = ("ConfigRecorded", "CycleCompleted")


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
        late: decisions that were taken but, having come too late, not recorded.
        other_engine: cycles that another engine version decided.
        differences: in order of position.
    """

    cluster: str
    position: int = 0
    cycles: int = 0
    decisions: int = 0
    late: int = 0
    other_engine: int = 0
    differences: list[Difference] = field(default_factory=list)


@dataclass(slots=True)
class _Cycle:
    """A cycle that was run again and whose record is still to come."""

    proposal: Proposal
    decided: dict[tuple[str, str], Decided]


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
        for event in known_beforehand:
            payload = decode_payload(event)
            if isinstance(payload, ConfigRecorded):
                self._configs[payload.digest] = payload.config
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
        if isinstance(payload, Decided):
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
            decided = {_key(payload): payload for unit in proposal.units for payload in _decided(unit)}
            self._open[recorded.cycle] = _Cycle(proposal, decided)

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
            if mine != theirs and name != "engine_version":
                self._differ(event.position, recorded.cycle, name, _text(mine), _text(theirs))
        # What had moved on by the time of the record came too late, all of its unit, and is not in the log.
        for unit in cycle.proposal.units[1:]:
            if any(self.state.versions.get(stream, 0) != version for stream, version in unit.expect.items()):
                for payload in _decided(unit):
                    self.report.late += 1
                    del cycle.decided[_key(payload)]
        if not cycle.decided:
            del self._open[recorded.cycle]

    def _compare_decision(self, event: Event, recorded: Decided) -> None:
        if recorded.cycle in self._before:
            return
        self.report.decisions += 1
        cycle = self._open.get(recorded.cycle)
        decided = None if cycle is None else cycle.decided.pop(_key(recorded), None)
        who = f"{recorded.namespace}/{recorded.name}"
        if cycle is None or decided is None:
            did, did_not = _VERBS[type(recorded)]
            self._differ(event.position, recorded.cycle, who, f"{did} {recorded.node}", did_not)
            return
        if decided.node != recorded.node:
            self._differ(event.position, recorded.cycle, who, recorded.node, decided.node)
        elif decided != recorded:
            for name in recorded.__struct_fields__:
                mine, theirs = getattr(recorded, name), getattr(decided, name)
                if mine != theirs:
                    what = "zones" if name == "placement" else name
                    about = f"{who} on {recorded.node}: {what}"
                    self._differ(event.position, recorded.cycle, about, _text(mine), _text(theirs))
        if not cycle.decided:
            self._open.pop(recorded.cycle, None)

    def _close(self, name: str) -> None:
        cycle = self._open.pop(name)
        for decided in cycle.decided.values():
            did, did_not = _VERBS[type(decided)]
            who = f"{decided.namespace}/{decided.name}"
            self._differ(self.state.position, name, who, did_not, f"{did} {decided.node}")

    def _differ(self, position: int, cycle: str, what: str, recorded: str, replayed: str) -> None:
        self.report.differences.append(Difference(position, cycle, what, recorded, replayed))


def _decided(unit: Unit) -> list[Decided]:
    return [event.payload for event in unit.events if isinstance(event.payload, Decided)]


def _key(payload: Decided) -> tuple[str, str]:
    return type(payload).__name__, payload.uid


def _text(value: object) -> str:
    if isinstance(value, str | int):
        return str(value)
    return msgspec.json.encode(value).decode()
