"""Replay of a shadow's cycle: it is run on the state that it was decided on, and compared with the record."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from kaicore.rules.engine.config import ENGINE_VERSION, EngineConfig
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import EvictionDecided, PodNominated, PodPlaced, ShadowDecided
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.replay_report import Difference, ReplayReport
from kaicore.rules.state.shadow import decide_in_shadow

_Decided = PodPlaced | PodNominated | EvictionDecided


class ShadowReplay:
    """Runs the cycles of shadows again as a replay passes the positions that they were decided on."""

    def __init__(self) -> None:
        self._due: dict[int, list[tuple[int, ShadowDecided]]] = {}
        #: By position of the record: what came out this time.
        self._replayed: dict[int, ShadowDecided | None] = {}

    def enter(self, position: int, recorded: ShadowDecided) -> None:
        """Have a recorded cycle run again.

        Args:
            position: of the record.
            recorded: what it says.
        """
        self._due.setdefault(recorded.input_position, []).append((position, recorded))

    def run_due(self, state: ClusterState, settings: Callable[[int, str, str], EngineConfig]) -> None:
        """Run the cycles that were decided on a state.

        Args:
            state: as the replay has it.
            settings: returns the configuration of a cycle, by the position of its record, its id and the digest.
        """
        for position, recorded in self._due.pop(state.position, ()):
            config = settings(position, recorded.cycle, recorded.config_digest)
            self._replayed[position] = decide_in_shadow(state, config, now=recorded.now)

    def compare(self, event: Event, report: ReplayReport) -> None:
        """Compare a record with what came out this time, if its cycle was run again.

        Args:
            event: the record.
            report: told of the cycle and its differences.
        """
        recorded = decode_payload(event)
        if not isinstance(recorded, ShadowDecided) or event.position not in self._replayed:
            return
        version = recorded.engine_version
        report.cycles += 1
        report.other_engine += version != ENGINE_VERSION
        report.engine_versions[version] = report.engine_versions.get(version, 0) + 1
        report.decisions += len(recorded.placed) + len(recorded.nominated) + len(recorded.evicted)
        for difference in _differences(event.position, recorded, self._replayed.pop(event.position)):
            report.differ(difference, other_engine=version != ENGINE_VERSION)


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
