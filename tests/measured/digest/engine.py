"""All that the digest knows of the engine. A renaming in the product is followed here, and only here.

What is digested are the events of a cycle as the log would hold them: type, stream, subject, expected versions and the
payload's JSON. Neither event ids nor the names of Python classes and modules are part of it.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec
from kai_binder.writes.claims import allocation_document
from kaicore.rules.deciding.decide import decide
from kaicore.rules.deciding.replay import KNOWN_BEFOREHAND, Replay
from kaicore.rules.engine.config import ENGINE_VERSION, EngineConfig, PlacementStrategy
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_event, encode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.device import Allocation, PodClaim
from kaicore.rules.model.node import Taint
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount
from kaicore.rules.model.pod import (
    ClaimUse,
    Container,
    ContainerKind,
    HostPort,
    Owner,
    Pod,
    PodDisruptionBudget,
    PodRules,
    PodTerm,
    PreferredPods,
    QosClass,
    SpreadConstraint,
    Toleration,
)
from kaicore.rules.model.selector import PodSelector, Requirement
from kaicore.rules.numa.scoring import NumaScoring, ScoringStrategy
from kaicore.rules.queues.division import FairShareConfig
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import Cluster, topology
from tests.given.work.workloads import Workloads

__all__ = [
    "ENGINE_VERSION",
    "Allocation",
    "ClaimUse",
    "Container",
    "ContainerKind",
    "ContainerPlacement",
    "Decided",
    "EngineConfig",
    "Event",
    "FairShareConfig",
    "HostPort",
    "NumaScoring",
    "Owner",
    "Placement",
    "PlacementStrategy",
    "Pod",
    "PodClaim",
    "PodDisruptionBudget",
    "PodRules",
    "PodSelector",
    "PodTerm",
    "PreferredPods",
    "Provenance",
    "QosClass",
    "Recorder",
    "Requirement",
    "ScoringStrategy",
    "SpreadConstraint",
    "Taint",
    "Toleration",
    "ZoneAmount",
    "allocation_document",
    "decode_event",
    "payloads",
    "replayed",
    "topology",
]

Json = dict[str, Any]
Decided = tuple[str, Json]

#: What of a payload is no decision: the version that is compared, a digest, and why a decision was taken.
_NOT_DECIDED = {
    "CycleCompleted": ("engine_version", "decisions_digest"),
    "EvictionDecided": ("cost", "chosen_for", "runner_up", "runner_up_cost"),
}

#: Settings that came since the digests were renewed, and their defaults: a configuration is digested without these.
_NEW_SETTINGS = {"suspect_after": 3}


class Recorder(Workloads):
    """A cluster in memory that digests what each cycle decides."""

    def __init__(self, write: Callable[[bytes], None] | None = None) -> None:
        """Args: write: gets each decided event's line, before it is digested."""
        super().__init__()
        self.cycles = self.decisions = 0
        self._digest = sha256()
        self._write = write

    def take_over(self, other: Cluster) -> None:
        """Go on with another cluster's log."""
        self.state, self.now = other.state, other.now
        self.events, self._versions = other.events, other._versions

    def decide(
        self, config: EngineConfig | None = None, *, meanwhile: Callable[[], None] | None = None
    ) -> list[Decided]:
        """Run a cycle and append what it decides, after `meanwhile` has been recorded; return what was appended."""
        used = config or EngineConfig()
        proposal = decide(self.state, used, shard="default", now=self.now, actor="scheduler")
        for unit in proposal.units:
            self._line(["unit", dict(sorted(unit.expect.items()))])
            for event in unit.events:
                name, payload = type(event.payload).__name__, encode_payload(event.payload)
                body = _decided(name, payload, used)
                self._line([name, event.stream, event.subject, event.occurred_at, body])
                self.decisions += 1
        self.cycles += 1
        if meanwhile is not None:
            meanwhile()
        before = len(self.events)
        self.append(proposal.units)
        return [(event.type, msgspec.json.decode(event.body)) for event in self.events[before:]]

    def change(self, one: Pod, **changed: Any) -> Pod:
        """The watcher sees a pod changed."""
        return self.add_pod(msgspec.structs.replace(one, **changed))

    def restart(self) -> None:
        """Save the state and go on with what is restored of it."""
        self.state = decode_state(encode_state(self.state))

    def digest(self) -> str:
        """The SHA-256 of all that was decided."""
        return self._digest.hexdigest()

    def _line(self, value: list[Any]) -> None:
        line = msgspec.json.encode(value, order="sorted") + b"\n"
        self._digest.update(line)
        if self._write is not None:
            self._write(line)


def _decided(name: str, payload: bytes, config: EngineConfig) -> Json:
    body: Json = msgspec.json.decode(payload)
    said = {key: value for key, value in config.document().items() if (key, value) not in _NEW_SETTINGS.items()}
    digest = sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()[:16]
    body |= {
        "CycleCompleted": {"config_digest": digest},
        "ConfigRecorded": {"config": said, "digest": digest},
    }.get(name, {})
    for left_out in _NOT_DECIDED.get(name, ()):
        body.pop(left_out, None)
    return body


def replayed(events: list[Event]) -> tuple[int, int, int, list[str]]:
    """Replay a log; return how many cycles and decisions were compared, how many were stale, and the differences."""
    replay = Replay(ClusterState(events[0].cluster), [event for event in events if event.type in KNOWN_BEFOREHAND])
    for event in events:
        replay.take(event)
    report = replay.finish()
    differences = [str(difference) for difference in (*report.differences, *report.otherwise)]
    return report.cycles, report.decisions, report.late, differences
