"""A cycle as events: run it on a state, and write down what it was decided on, what it decided, and why not more.

The events of one cycle are one append. Each decision is a unit of its own, conditional on the versions that its pod and
its node had in the state: one that comes too late is dropped, the others stand. The append as a whole is conditional on
the shard's cycle stream, so that of two schedulers that both believe to lead a shard only one appends anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from kaicore.engine.config import ENGINE_VERSION, EngineConfig
from kaicore.engine.cycle import CycleResult, Healing, run_cycle
from kaicore.events.envelope import NewEvent, Unit, derived_id
from kaicore.events.payloads import (
    ClassPending,
    ConfigRecorded,
    CycleCompleted,
    HealRequested,
    NodeCharged,
    PodPlaced,
)
from kaicore.state.cluster_state import ClusterState
from kaicore.state.cycle_input import cycle_input
from kaicore.state.queue_report import queue_report


@dataclass(frozen=True, slots=True)
class Proposal:
    """A cycle's result and the append that records it.

    Attributes:
        cycle: the cycle's id.
        result: what was decided.
        units: the cycle itself first, then one unit per decision, in the order of `result.decisions`, then one per
            healing, in the order of `result.healings`.
        expect: what the whole append is conditional on.
    """

    cycle: str
    result: CycleResult
    units: tuple[Unit, ...]
    expect: Mapping[str, int]


def cycle_stream(shard: str) -> str:
    """Return the stream of a shard's cycles."""
    return f"cycle/{shard}"


def decide(state: ClusterState, config: EngineConfig, *, shard: str, now: int, actor: str) -> Proposal:
    """Run a cycle on a state.

    Args:
        state: folded up to the position that the cycle is then recorded to be decided on; not changed.
        config: the shard's settings.
        shard: the shard's name.
        now: the cycle's clock, microseconds since the epoch.
        actor: who appends.
    """
    given = cycle_input(state, config, now=now)
    result = run_cycle(given, config)
    stream = cycle_stream(shard)
    version = state.versions.get(stream, 0)
    cycle = f"{shard}/{version + 1}"
    digest = config.digest()
    # Another scheduler's cycle of the same number is another cycle, also if it began at the same position.
    completed = derived_id(state.cluster, "CycleCompleted", cycle, str(state.position), actor, str(now))
    events = [
        NewEvent(
            id=completed,
            stream=stream,
            payload=CycleCompleted(
                cycle=cycle,
                shard=shard,
                input_position=state.position,
                config_digest=digest,
                engine_version=ENGINE_VERSION,
                now=now,
                decisions_digest=result.digest(),
                pods=len(given.waiting),
                placed=len(result.decisions),
                pending=_news(state, shard, result.pending),
            ),
            actor=actor,
            occurred_at=now,
            subject=shard,
            correlation=cycle,
        )
    ]
    if digest not in state.configs:
        recorded = ConfigRecorded(digest=digest, shard=shard, config=config.document())
        events.append(
            NewEvent(
                id=derived_id(str(completed), "ConfigRecorded"),
                stream=f"config/{shard}",
                payload=recorded,
                actor=actor,
                occurred_at=now,
                subject=shard,
                correlation=cycle,
            )
        )
    report = queue_report(state, config, shard=shard, now=now)
    if report is not None:
        events.append(
            NewEvent(
                id=derived_id(str(completed), "QueuesReported"),
                stream=f"queues/{shard}",
                payload=report,
                actor=actor,
                occurred_at=now,
                subject=shard,
                correlation=cycle,
            )
        )
    units = [Unit(tuple(events))]
    for decision in result.decisions:
        pod_stream, node_stream = f"pod/{decision.uid}", f"node/{decision.node}"
        placed = PodPlaced(
            uid=decision.uid,
            namespace=decision.namespace,
            name=decision.name,
            node=decision.node,
            cycle=cycle,
            pod_class=decision.pod_class,
            placement=decision.placement,
            rejected_here_before=state.rejected_before(decision.node, decision.pod_class),
            claims=state.surroundings.volumes.to_provision(state.pods[decision.uid].pod),
        )
        charged = NodeCharged(node=decision.node, cycle=cycle, pods=(decision.uid,))
        units.append(
            Unit(
                tuple(
                    NewEvent(
                        id=derived_id(str(completed), type(payload).__name__, decision.uid),
                        stream=about,
                        payload=payload,
                        actor=actor,
                        occurred_at=now,
                        subject=subject,
                        cause=completed,
                        correlation=cycle,
                    )
                    for about, payload, subject in (
                        (pod_stream, placed, f"{decision.namespace}/{decision.name}"),
                        (node_stream, charged, decision.node),
                    )
                ),
                expect={
                    pod_stream: state.versions.get(pod_stream, 0),
                    node_stream: state.versions.get(node_stream, 0),
                },
            )
        )
    units += [
        _healing_unit(state, healing, cycle=cycle, completed=completed, now=now, actor=actor)
        for healing in result.healings
    ]
    return Proposal(cycle, result, tuple(units), {stream: version})


def _healing_unit(state: ClusterState, healing: Healing, *, cycle: str, completed: UUID, now: int, actor: str) -> Unit:
    """Return the unit that has a pod evicted, unless something has become of the pod meanwhile."""
    stream = f"pod/{healing.uid}"
    requested = HealRequested(
        uid=healing.uid,
        namespace=healing.namespace,
        name=healing.name,
        node=healing.node,
        cycle=cycle,
        pod_class=healing.pod_class,
        owner=healing.owner,
        missed=healing.missed,
    )
    event = NewEvent(
        id=derived_id(str(completed), "HealRequested", healing.uid),
        stream=stream,
        payload=requested,
        actor=actor,
        occurred_at=now,
        subject=f"{healing.namespace}/{healing.name}",
        cause=completed,
        correlation=cycle,
    )
    return Unit((event,), expect={stream: state.versions.get(stream, 0)})


def _news(state: ClusterState, shard: str, pending: tuple[ClassPending, ...]) -> tuple[ClassPending, ...]:
    """Leave out what was recorded just so the last time."""
    return tuple(item for item in pending if state.reasons.get(item.pod_class, {}).get(shard) != item)
