"""Replay: the log is folded again, every recorded cycle is run again, and the results are compared with the record.

A recorded cycle names the position, the configuration and the clock it was decided on, so the same events must result:
the cycle with its reasons, its reports, and every decision. A batch that the cycle decided and that the log does not
hold must have been stale. Either one of its conditional streams has moved on between the cycle's input and its record,
or it follows a stale batch. Anything else is a difference. Another version of the engine may have decided otherwise:
such differences are listed separately.

The cycles of shadows are run again as well, on the state that they were decided on.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec

from kaicore.errors import KaiError
from kaicore.rules.deciding.decide import Proposal, decide
from kaicore.rules.deciding.shadow import decide_in_shadow
from kaicore.rules.engine.config import ENGINE_VERSION, EngineConfig
from kaicore.rules.engine.decisions import CycleResult, Decision, DecisionBatch, GroupDecision
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.events.codec import decode_payload, names_in_logs
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import (
    ConfigRecorded,
    CycleCompleted,
    DifferenceFound,
    EvictionDecided,
    GpuOpened,
    NominationCleared,
    Payload,
    PodNominated,
    PodPlaced,
    ProvisioningRequested,
    ProvisioningWithdrawn,
    RepairRequested,
    ShadowDecided,
)
from kaicore.rules.state.cluster_state import ClusterState

#: Differences that are kept in full; of further ones only the kind is counted.
MOST_DIFFERENCES = 100


@dataclass(frozen=True, slots=True)
class Difference:
    """The place where a replay and the log part.

    Attributes:
        position: of the event that recorded the cycle or the decision.
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
    """The result of a replay.

    Attributes:
        first: position of the first event of the range with the cycles that were run again.
        position: of the last one.
        cycles: how many cycles were run again.
        decisions: how many recorded decisions were compared.
        late: decisions that were not recorded since their batch was stale.
        unreachable: cycles of the range that were not run again: what they were decided on is retired.
        other_engine: cycles that another engine version decided.
        erased: cycles with a digest over names that were erased since: their decisions were compared one by one.
        engine_versions: how many cycles each engine version decided.
        differences: of cycles that this engine version decided, in order of position; the first `MOST_DIFFERENCES`.
        kinds: how many differences of each kind there are, of such cycles.
        otherwise: what this engine decides otherwise than another version did, likewise.
        otherwise_kinds: how often, by kind.
        found: differences of services' memory from the log that their checks recorded in the range.
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
    found: list[DifferenceFound] = field(default_factory=list)

    def count(self, engine_version: str) -> None:
        """Count a cycle that was run again."""
        self.cycles += 1
        self.other_engine += engine_version != ENGINE_VERSION
        self.engine_versions[engine_version] = self.engine_versions.get(engine_version, 0) + 1

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
        first.found += other.found
    return first


_Decided = PodPlaced | PodNominated | EvictionDecided


def _differences(position: int, recorded: ShadowDecided, replayed: ShadowDecided | None) -> Iterator[Difference]:
    def differ(what: str, mine: str, theirs: str, kind: str) -> Difference:
        return Difference(
            position, recorded.cycle, what, mine, theirs, f"ShadowDecided: {kind}", recorded.engine_version
        )

    if replayed is None:
        yield differ("the cycle", "something new", "nothing new", "not replayed")
        return
    for kind in ("placed", "nominated", "evicted"):
        mine, theirs = _by_uid(getattr(recorded, kind)), _by_uid(getattr(replayed, kind))
        for uid in sorted(mine.keys() | theirs.keys()):
            if mine.get(uid) != theirs.get(uid):
                one = mine.get(uid) or theirs[uid]
                yield differ(f"{one.namespace}/{one.name}", _text(mine, uid), _text(theirs, uid), kind)
    for name in ("pods", "left", "pending", "groups", "more", "config_digest"):
        if name == "config_digest" and recorded.engine_version != ENGINE_VERSION:
            continue
        before, after = getattr(recorded, name), getattr(replayed, name)
        if before != after:
            yield differ(name, _json(before), _json(after), name)


def _by_uid(decisions: tuple[_Decided, ...]) -> Mapping[str, _Decided]:
    return {decision.uid: decision for decision in decisions}


def _text(decisions: Mapping[str, _Decided], uid: str) -> str:
    decision = decisions.get(uid)
    return "no such decision" if decision is None else f"{decision.node} {_json(decision)}"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


_VERBS: dict[type[Decision], tuple[str, str]] = {
    PodPlaced: ("placed on", "not placed"),
    PodNominated: ("nominated for", "not nominated"),
    NominationCleared: ("no longer nominated for", "still nominated"),
    EvictionDecided: ("to be evicted from", "not to be evicted"),
    GpuOpened: ("to hold a GPU of", "not to hold a GPU"),
    RepairRequested: ("to be placed anew, not on", "not to be placed anew"),
    ProvisioningRequested: ("requested for", "not requested"),
    ProvisioningWithdrawn: ("withdrawn for", "not withdrawn"),
}
_DECISIONS = frozenset(names_in_logs(kind.__name__ for kind in get_args(Decision)))

#: Types of the events that a replay must know before it begins.
KNOWN_BEFOREHAND = ("ConfigRecorded", "CycleCompleted", "ShadowDecided")

#: From this schema version of `CycleCompleted` on its `decisions_digest` is over the payloads that are recorded, and
#: evictions are recorded with why they were chosen.
_DECISIONS_ARE_PAYLOADS = 2

#: From this schema version of `CycleCompleted` on evictions are recorded with the work that they lose and win.
_EVICTIONS_SAY_WORK_LOST = 7

#: Fields of a cycle's record that say how it was run: another version of the engine has others.
_OF_THE_ENGINE = ("engine_version", "config_digest", "decisions_digest")

#: The mark in the name of a pod after its own name was erased (`kaicore.rules.events.erasure`); no other name has it.
_PSEUDONYMS = (b"~erased-", b"!erased-")


class UnreplayableCycle(KaiError):
    """A cycle was recorded without what it takes to run it again."""


@dataclass(slots=True)
class _Recording:
    """A cycle that was run again, as its append goes by.

    Attributes:
        actor: who appended it.
        schema: version of the schema of `summary`, its record.
        expected: the events that are to follow: reports, and all decisions but the stale ones; None where the cycle was
            not run.
        replayed: the record that came out.
        result: and the decisions.
        recorded: what follows, with positions.
    """

    position: int
    actor: str
    summary: CycleCompleted
    schema: int
    expected: list[Payload] | None = None
    replayed: CycleCompleted | None = None
    result: CycleResult | None = None
    recorded: list[tuple[int, Payload]] = field(default_factory=list)

    @property
    def other_engine(self) -> bool:
        return self.summary.engine_version != ENGINE_VERSION


class Replay:
    """Takes a cluster's events in order."""

    def __init__(
        self,
        state: ClusterState,
        known_beforehand: Iterable[Event],
        *,
        first: int = 1,
        policies: PolicyBook = NO_POLICIES,
    ) -> None:
        """Begin at a state. Raises PolicyMismatch: see `take`.

        Args:
            state: at the position to begin at: 0, or that of the input of the first cycle to run again, or before it;
                folded on as events are taken.
            known_beforehand: events of the types in `KNOWN_BEFOREHAND`: a cycle is recorded after its input,
                and so is the configuration of the first cycle that used it.
            first: position of the first record of a cycle that is to be run again.
            policies: the code of policies; other code than decided is refused (`PolicyMismatch`).
        """
        self.state, self._policies = state, policies
        self.report = ReplayReport(state.cluster, first=first)
        self._due: dict[int, list[tuple[Event, CycleCompleted]]] = {}
        self._proposals: dict[str, Proposal] = {}
        self._recording: _Recording | None = None
        #: Cycles that are recorded, or have recorded decisions, and are not run again.
        self._skipped = {cycle for cycle, _ in state.last_cycles.values()}
        self._configs = dict(state.configs)
        #: Recorded cycles of shadows, with their positions, by that of their input; and by position what came out.
        self._shadows_due: dict[int, list[tuple[int, ShadowDecided]]] = {}
        self._shadows: dict[int, ShadowDecided | None] = {}
        for event in known_beforehand:
            payload = decode_payload(event)
            if isinstance(payload, ConfigRecorded):
                self._configs[payload.digest] = payload.config
            elif isinstance(payload, ShadowDecided):
                self._configs |= {} if payload.config is None else {payload.config_digest: payload.config}
                due = payload.input_position >= state.position
                self.report.unreachable += event.position >= first and not due
                if event.position >= first and due:
                    self._shadows_due.setdefault(payload.input_position, []).append((event.position, payload))
            elif isinstance(payload, CycleCompleted):
                if event.position >= first and payload.input_position >= state.position:
                    self._due.setdefault(payload.input_position, []).append((event, payload))
                else:
                    self._skipped.add(payload.cycle)
                    self.report.unreachable += event.position >= first
        self._run_due()

    def goes_on(self, event: Event) -> bool:
        """True if the next event belongs to the append of the cycle that was taken last."""
        recording = self._recording
        return recording is not None and (event.correlation, event.actor) == (recording.summary.cycle, recording.actor)

    def take(self, event: Event) -> None:
        """Take the next event: compare it with what was replayed, fold it, and run the cycles that it is the input of.

        Raises:
            UnreplayableCycle: a cycle's configuration is not in the log.
            PolicyMismatch: a cycle was decided with policies of which the book has no code.
        """
        if not self.goes_on(event):
            self._compare()
        if event.type == "CycleCompleted":
            self._begin(event)
        elif event.type == "ShadowDecided":
            self._compare_shadow(event)
        elif event.type == "DifferenceFound":
            self._found(event)
        elif self._recording is not None:
            payload = decode_payload(event)
            if _compared(payload):
                self._recording.recorded.append((event.position, payload))
        elif event.type in _DECISIONS:
            self._stray(event)
        self.state.fold(event)
        self._run_due()

    def _found(self, event: Event) -> None:
        found = decode_payload(event)
        if isinstance(found, DifferenceFound) and event.position >= self.report.first:
            self.report.found.append(found)

    def finish(self) -> ReplayReport:
        """Compare what is left, and report."""
        self._compare()
        self.report.position = self.state.position
        return self.report

    def _settings(self, position: int, cycle: str, digest: str) -> EngineConfig:
        document = self._configs.get(digest)
        problem = "is not in the log"
        try:
            if document is not None:
                return EngineConfig.recorded(document)
        except msgspec.ValidationError as error:
            problem = f"is of another version: {error}"
        about = f"cluster {self.state.cluster}: position {position}: cycle {cycle}: configuration {digest}"
        raise UnreplayableCycle(f"{about} {problem}")

    def _run_due(self) -> None:
        for position, shadow in self._shadows_due.pop(self.state.position, ()):
            config = self._settings(position, shadow.cycle, shadow.config_digest)
            self._shadows[position] = decide_in_shadow(self.state, config, now=shadow.now, policies=self._policies)
        for event, recorded in self._due.pop(self.state.position, ()):
            config = self._settings(event.position, recorded.cycle, recorded.config_digest)
            self._proposals[recorded.cycle] = decide(
                self.state,
                config,
                shard=recorded.shard,
                now=recorded.now,
                actor=event.actor,
                policies=self._policies,
                policies_left_out=recorded.policies_left_out,
            )

    def _begin(self, event: Event) -> None:
        """Take a cycle's record; what follows it with its correlation is compared when all of it is there."""
        self._compare()
        summary = decode_payload(event)
        if not isinstance(summary, CycleCompleted) or summary.cycle in self._skipped:
            return
        recording = _Recording(event.position, event.actor, summary, event.schema)
        self.report.count(summary.engine_version)
        proposal = self._proposals.pop(summary.cycle, None)
        if proposal is not None:
            replayed, *reports = (new.payload for new in proposal.units[0].events if _compared(new.payload))
            assert isinstance(replayed, CycleCompleted)
            recording.replayed, recording.result = replayed, proposal.result
            recording.expected = [*reports, *self._fresh(proposal, event.schema)]
        self._recording = recording

    def _compare_shadow(self, event: Event) -> None:
        """Compare a shadow's record with what came out this time, if its cycle was run again."""
        recorded = decode_payload(event)
        if not isinstance(recorded, ShadowDecided) or event.position not in self._shadows:
            return
        self.report.count(recorded.engine_version)
        self.report.decisions += len(recorded.placed) + len(recorded.nominated) + len(recorded.evicted)
        for difference in _differences(event.position, recorded, self._shadows.pop(event.position)):
            self.report.differ(difference, other_engine=recorded.engine_version != ENGINE_VERSION)

    def _fresh(self, proposal: Proposal, schema: int) -> list[Payload]:
        """Return what is to be recorded of a cycle's batches: not those of which a stream has moved on by now."""
        versions, fresh, stale = self.state.versions, list[Payload](), set[int]()
        for number, (unit, batch) in enumerate(zip(proposal.units[1:], proposal.result.batches, strict=True), start=1):
            moved = any(versions.get(stream, 0) != version for stream, version in unit.expect.items())
            if moved or not stale.isdisjoint(unit.follows):
                stale.add(number)
                self.report.late += len(batch.decisions)
            else:
                others = [new.payload for new in unit.events[len(batch.decisions) :]]
                fresh += [*_as_recorded(batch, schema), *others]
        return fresh

    def _stray(self, event: Event) -> None:
        """A decision that is in no cycle's append."""
        decision = decode_payload(event)
        if isinstance(decision, Decision) and decision.cycle not in self._skipped:
            self.report.decisions += 1
            self._differ_wholly(event.position, decision.cycle, decision, ENGINE_VERSION)

    def _compare(self) -> None:
        """Compare all that a cycle recorded with what came out."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        self.report.decisions += sum(isinstance(payload, Decision) for _, payload in recording.recorded)
        if recording.replayed is None or recording.expected is None:
            self._differ(recording, recording.position, "the cycle", "present", "absent", kind="cycle not replayed")
            return
        before = sum(self.report.kinds.values()) + sum(self.report.otherwise_kinds.values())
        self._compare_summary(recording, recording.summary, recording.replayed)
        if [payload for _, payload in recording.recorded] != recording.expected:
            self._explain(recording, recording.expected)
        if before == sum(self.report.kinds.values()) + sum(self.report.otherwise_kinds.values()):
            self._compare_digest(recording, recording.replayed)

    def _compare_summary(self, recording: _Recording, recorded: CycleCompleted, replayed: CycleCompleted) -> None:
        position = recording.position
        for name in recorded.__struct_fields__:
            mine, theirs = getattr(recorded, name), getattr(replayed, name)
            if mine == theirs or name in ("pending", "groups") or (name in _OF_THE_ENGINE and recording.other_engine):
                continue
            if name != "decisions_digest":
                self._differ(
                    recording, position, name, _json_text(mine), _json_text(theirs), kind=f"CycleCompleted: {name}"
                )
        classes = [{item.pod_class: item for item in one.pending} for one in (recorded, replayed)]
        groups = [{item.group: item for item in one.groups} for one in (recorded, replayed)]
        for what, (mine, theirs) in (("class", classes), ("group", groups)):
            for key in sorted(mine.keys() | theirs.keys()):
                if mine.get(key) != theirs.get(key):
                    texts = [_json_text(one[key]) if key in one else "nothing new" for one in (mine, theirs)]
                    kind = f"CycleCompleted: why a {what} waits"
                    self._differ(recording, position, f"why {what} {key} waits", *texts, kind=kind)

    def _compare_digest(self, recording: _Recording, replayed: CycleCompleted) -> None:
        """Only where nothing else differs: what is not recorded, such as stale decisions, does."""
        mine, theirs = recording.summary.decisions_digest, replayed.decisions_digest
        if mine != theirs and recording.schema >= _DECISIONS_ARE_PAYLOADS and not recording.other_engine:
            if _names_erased(recording):
                self.report.erased += 1
                return
            kind = "CycleCompleted: decisions_digest"
            self._differ(recording, recording.position, "decisions_digest", mine, theirs, kind=kind)

    def _explain(self, recording: _Recording, expected: Sequence[Payload]) -> None:
        """Say event by event in what two appends differ."""
        left = dict(_keyed(expected))
        recorded_keys = _keyed(payload for _, payload in recording.recorded)
        alike = True
        for (position, _), (key, recorded) in zip(recording.recorded, recorded_keys, strict=True):
            replayed = left.pop(key, None)
            if replayed is None:
                self._differ_wholly(position, recording.summary.cycle, recorded, recording.summary.engine_version)
            elif replayed != recorded:
                self._compare_fields(recording, position, recorded, replayed)
            alike = alike and replayed == recorded
        for replayed in left.values():
            alike, (did, did_not) = False, _said_of(replayed)
            kind = f"{type(replayed).__name__} not recorded"
            at = self.state.position
            self._differ(recording, at, _name(replayed), did_not, did, kind=kind, events=(None, replayed))
        if alike:
            where = f"positions {recording.recorded[0][0]} to {recording.recorded[-1][0]}"
            order = ", ".join(_name(payload) for payload in expected if isinstance(payload, Decision))
            self._differ(recording, recording.position, "the order of its decisions", where, order, kind="order")

    def _compare_fields(self, recording: _Recording, position: int, recorded: Payload, replayed: Payload) -> None:
        who, where, event = _name(recorded), _object(recorded), type(recorded).__name__
        events, of_group = (recorded, replayed), isinstance(recorded, GroupDecision)
        if _object(replayed) != where:
            kind = f"{event}: {'group' if of_group else 'node'}"
            self._differ(recording, position, who, where, _object(replayed), kind=kind, events=events)
            return
        on = f" {'for' if of_group else 'on'} {where}" if where else ""
        for name in recorded.__struct_fields__:
            mine, theirs = getattr(recorded, name), getattr(replayed, name)
            if mine != theirs:
                what = f"{who}{on}: {'zones' if name == 'placement' else name}"
                kind = f"{event}: {name}"
                self._differ(recording, position, what, _json_text(mine), _json_text(theirs), kind=kind, events=events)

    def _differ_wholly(self, position: int, cycle: str, recorded: Payload, engine: str) -> None:
        did, did_not = _said_of(recorded)
        kind = f"{type(recorded).__name__} not replayed"
        difference = Difference(position, cycle, _name(recorded), did, did_not, kind, engine, recorded, None)
        self.report.differ(difference, other_engine=engine != ENGINE_VERSION)

    def _differ(
        self,
        recording: _Recording,
        position: int,
        what: str,
        recorded: str,
        replayed: str,
        *,
        kind: str,
        events: tuple[Payload | None, Payload | None] = (None, None),
    ) -> None:
        cycle, engine = recording.summary.cycle, recording.summary.engine_version
        difference = Difference(position, cycle, what, recorded, replayed, kind, engine, *events)
        self.report.differ(difference, other_engine=recording.other_engine)


def _compared(payload: Payload) -> bool:
    """True if an event of a cycle's append is compared; of a configuration, the cycle's record has the digest."""
    return not isinstance(payload, ConfigRecorded)


def _names_erased(recording: _Recording) -> bool:
    """Tell whether a cycle's decisions or reasons name a pod with a name erased since; its digest is of the name."""
    result = recording.result
    if result is None:
        return False
    text = msgspec.json.encode([list(result.decisions), result.pending, result.groups])
    return any(sign in text for sign in _PSEUDONYMS)


def _as_recorded(batch: DecisionBatch, schema: int) -> Sequence[Decision]:
    """Return decisions with what a schema version of `CycleCompleted` records of them."""
    if schema >= _EVICTIONS_SAY_WORK_LOST:
        return batch.decisions
    unknown: dict[str, object] = {"lost_gpu_seconds": 0, "won_gpu_seconds": 0}
    if schema < _DECISIONS_ARE_PAYLOADS:
        unknown |= {"cost": None, "chosen_for": "", "runner_up": "", "runner_up_cost": None}
    return [
        msgspec.structs.replace(decision, **unknown) if isinstance(decision, EvictionDecided) else decision
        for decision in batch.decisions
    ]


def _keyed(payloads: Iterable[Payload]) -> list[tuple[tuple[str, str, int], Payload]]:
    """Return the events of a cycle's append with what tells each from the others."""
    times: Counter[tuple[str, str]] = Counter()
    keyed = []
    for payload in payloads:
        key = about(payload)
        keyed.append(((*key, times[key]), payload))
        times[key] += 1
    return keyed


def about(payload: Payload) -> tuple[str, str]:
    """Return an event's type and what it is about."""
    names = (getattr(payload, name, "") for name in ("uid", "node", "name"))
    return type(payload).__name__, next(filter(None, names), "")


def _object(payload: Payload) -> str:
    """Return the node that a decision is about, or the group; empty for what is no decision."""
    if isinstance(payload, GroupDecision):
        return payload.group
    return str(getattr(payload, "node", ""))


def _name(payload: Payload) -> str:
    if isinstance(payload, Decision):
        return f"{payload.namespace}/{payload.name}"
    event, key = about(payload)
    return f"{event} {key}" if key else event


def _said_of(payload: Payload) -> tuple[str, str]:
    if isinstance(payload, Decision):
        did, did_not = _VERBS[type(payload)]
        return f"{did} {_object(payload)}", did_not
    return _json_text(payload), "absent"


def _json_text(value: object) -> str:
    if isinstance(value, str | int):
        return str(value)
    return msgspec.json.encode(value).decode()
