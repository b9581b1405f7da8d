"""The evidence from a log that explains a pod: the cycles since it waits, and the state seen by the cycle that placed
it.

All reads use an index of the log: the pod's name, the type of an event, a position. So they take as long on a long log
as on a short one.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kaicore.analysis.life.attempts import CycleRecords, cycle_records
from kaicore.analysis.life.cycle_observers import placement_scores
from kaicore.analysis.life.placements import DecidedPlacement
from kaicore.analysis.life.pod_history import waits_since
from kaicore.analysis.replay.moments import appended_together
from kaicore.errors import EventsRetired
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.engine.config import ENGINE_VERSION, EngineConfig
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import ConfigRecorded, CycleCompleted, PodPlaced
from kaicore.rules.state.cluster_state import ClusterState

#: Events before a decision among which its cycle's record is: they are appended together.
_BEFORE = 20_000

#: Returns a state at a position if that takes little; None if not.
StateNear = Callable[[int], Awaitable[ClusterState | None]]


@dataclass(frozen=True, slots=True)
class PodEvidence:
    """The evidence that was read.

    Attributes:
        story: the events of all pods of the name, in order.
        uid: of the pod that is meant: the last one.
        cycles: since it has waited; None where it does not wait.
        placed: the decision that placed it last; None where none did.
    """

    story: Sequence[Event]
    uid: str
    cycles: CycleRecords | None = None
    placed: DecidedPlacement | None = None

    @property
    def own(self) -> list[Event]:
        """The events of the pod that is meant."""
        return [event for event in self.story if event.stream == f"pod/{self.uid}"]


async def pod_evidence(
    log: EventLog, cluster: str, story: Sequence[Event], *, upto: int, state_near: StateNear
) -> PodEvidence:
    """Read what it takes to explain a pod.

    Args:
        log: the cluster's.
        cluster: its name.
        story: the events of the pod's name, in order.
        upto: the last position that counts.
        state_near: see there.
    """
    events = [event for event in story if event.stream.startswith("pod/")]
    if not events:
        return PodEvidence((), "")
    uid = events[-1].stream.removeprefix("pod/")
    own = [event for event in events if event.stream == f"pod/{uid}"]
    since = waits_since(own)
    if since is not None:
        return PodEvidence(events, uid, cycles=await cycle_records(log, cluster, own, since=since, upto=upto))
    placed = next((event for event in reversed(own) if isinstance(decode_payload(event), PodPlaced)), None)
    if placed is None:
        return PodEvidence(events, uid)
    return PodEvidence(events, uid, placed=await _decided(log, cluster, placed, state_near))


async def _decided(log: EventLog, cluster: str, placed: Event, state_near: StateNear) -> DecidedPlacement:
    """Run the cycle again that placed a pod."""
    decision = decode_payload(placed)
    assert isinstance(decision, PodPlaced)
    cycle = await _cycle_of(log, cluster, placed, decision.cycle)
    if cycle is None:
        retired = await log.retired(cluster)
        if retired and placed.position - retired <= _BEFORE:
            gone = f"the record of cycle {decision.cycle} is not in the log any more"
            return DecidedPlacement(placed, decision, not_ranked=gone)
        none = f"no cycle decided it: event {placed.position} was not appended with a record of cycle {decision.cycle}"
        return DecidedPlacement(placed, decision, not_ranked=none, by_cycle=False)
    if cycle.engine_version != ENGINE_VERSION:
        old = f"cycle {cycle.cycle} was decided by engine {cycle.engine_version}, and this is {ENGINE_VERSION}"
        return DecidedPlacement(placed, decision, not_ranked=old)
    config = await recorded_config(log, cluster, cycle.config_digest)
    try:
        state = await state_near(cycle.input_position)
    except EventsRetired as error:
        return DecidedPlacement(placed, decision, not_ranked=str(error))
    if state is None or config is None:
        again = f"`kai replay --cycle {cycle.cycle}` runs it again"
        far = f"position {cycle.input_position} is too far from any snapshot; {again}"
        return DecidedPlacement(placed, decision, not_ranked=far)
    scores = placement_scores(state, config, cycle=cycle.cycle, now=cycle.now, uid=decision.uid, node=decision.node)
    why = "" if scores is not None else f"cycle {cycle.cycle} does not place it so when it is run again"
    return DecidedPlacement(placed, decision, scores, why)


async def _cycle_of(log: EventLog, cluster: str, placed: Event, decided_by: str) -> CycleCompleted | None:
    """Return the record of the cycle that a decision is of: its cause, with which it was appended."""
    where = Filter(streams=(f"cycle/{placed.correlation.rpartition('/')[0]}",))
    window = 500
    while window <= _BEFORE:
        after = max(placed.position - window, 0)
        for event in await log.read(cluster, after=after, upto=placed.position, limit=_BEFORE, where=where):
            if event.id != placed.cause or not isinstance(cycle := decode_payload(event), CycleCompleted):
                continue
            return cycle if appended_together(event, placed) and cycle.cycle == decided_by else None
        window *= 8
    return None


async def recorded_config(log: EventLog, cluster: str, digest: str) -> EngineConfig | None:
    """Return a configuration by its digest; there are few."""
    for event in await log.read(cluster, where=Filter(types=(ConfigRecorded.__name__,))):
        recorded = decode_payload(event)
        if isinstance(recorded, ConfigRecorded) and recorded.digest == digest:
            return EngineConfig.recorded(recorded.config)
    return None
