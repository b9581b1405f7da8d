"""A cycle as events: run it on a state, and write down what it was decided on, what it decided, and why not more.

The events of one cycle are one append. What only holds together, such as a gang's start or a preemptor's room and its
victims, is one unit, conditional on the versions that all its pods and nodes had in the state: one that comes too late
is dropped as a whole, the others stand. The append as a whole is conditional on
the shard's cycle stream, so that of two schedulers that both believe to lead a shard only one appends anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from kaicore.rules.engine.config import ENGINE_VERSION, EngineConfig
from kaicore.rules.engine.cycle import run_cycle
from kaicore.rules.engine.decisions import CycleResult, Decision, DecisionUnit, Healing
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import (
    ClassPending,
    ConfigRecorded,
    CycleCompleted,
    EvictionDecided,
    GroupPending,
    HealRequested,
    NodeCharged,
    NominationCleared,
    Payload,
    PodNominated,
    PodPlaced,
)
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.cycle_input import cycle_input
from kaicore.rules.state.queue_report import queue_report
from kaicore.rules.state.waiting_report import waiting_reports


@dataclass(frozen=True, slots=True)
class Proposal:
    """A cycle's result and the append that records it.

    Attributes:
        cycle: the cycle's id.
        result: what was decided.
        units: the cycle itself first, then one each for `result.units`, then one each for `result.healings`.
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

    def about_the_shard(event_id: UUID, stream: str, payload: Payload) -> NewEvent:
        return NewEvent(
            id=event_id,
            stream=stream,
            payload=payload,
            actor=actor,
            occurred_at=now,
            subject=shard,
            correlation=cycle,
        )

    summary = CycleCompleted(
        cycle=cycle,
        shard=shard,
        input_position=state.position,
        config_digest=digest,
        engine_version=ENGINE_VERSION,
        now=now,
        decisions_digest=result.digest(),
        pods=given.waiting,
        placed=len(result.decisions),
        pending=_news(state, shard, result.pending),
        groups=_group_news(state, shard, result.groups),
        evicted=len(result.evictions),
        nominated=len(result.nominations),
    )
    events = [about_the_shard(completed, stream, summary)]
    if digest not in state.configs:
        recorded = ConfigRecorded(digest=digest, shard=shard, config=config.document())
        events.append(about_the_shard(derived_id(str(completed), "ConfigRecorded"), f"config/{shard}", recorded))
    report = queue_report(state, config, shard=shard, now=now)
    if report is not None:
        events.append(about_the_shard(derived_id(str(completed), "QueuesReported"), f"queues/{shard}", report))
    placed = {decision.uid for decision in result.decisions}
    for number, left in enumerate(waiting_reports(state, config, shard=shard, placed=placed)):
        left_id = derived_id(str(completed), "PodsLeftWaiting", str(number))
        events.append(about_the_shard(left_id, f"waiting/{shard}", left))
    record = _Record(state, cycle, completed, now, actor)
    units = [Unit(tuple(events)), *(record.unit(decided) for decided in result.units)]
    units += [record.healing(healing) for healing in result.healings]
    return Proposal(cycle, result, tuple(units), {stream: version})


class _Record:
    """Writes down what a cycle decided."""

    def __init__(self, state: ClusterState, cycle: str, completed: UUID, now: int, actor: str) -> None:
        self._state = state
        self._cycle = cycle
        self._completed = completed
        self._completed_text = str(completed)
        self._now = now
        self._actor = actor
        self._expected: list[Mapping[str, int]] = []
        #: Volumes that this cycle has given to claims, by `namespace/name`.
        self._volumes: dict[str, str] = {}

    def unit(self, decided: DecisionUnit) -> Unit:
        """Return all of a unit's events, conditional on every pod and node that it, or what it stands on, is about.

        To be asked for all units of a cycle, in order: the kubelets shall see the pods in the order in which the cycle
        charged them, since what one gets depends on those before it.
        """
        about: list[tuple[str, str, Payload]] = []
        charged: dict[str, list[str]] = {}
        for cleared in decided.cleared:
            gone = NominationCleared(
                uid=cleared.uid,
                namespace=cleared.namespace,
                name=cleared.name,
                node=cleared.node,
                cycle=self._cycle,
                reason=cleared.reason,
            )
            about.append((cleared.uid, f"{cleared.namespace}/{cleared.name}", gone))
        for decision in decided.placed:
            claims, volumes = self._claims(decision)
            placed = PodPlaced(
                uid=decision.uid,
                namespace=decision.namespace,
                name=decision.name,
                node=decision.node,
                cycle=self._cycle,
                pod_class=decision.pod_class,
                placement=decision.placement,
                rejected_here_before=self._state.rejected_before(decision.node, decision.pod_class),
                claims=claims,
                volumes=volumes,
            )
            about.append((decision.uid, f"{decision.namespace}/{decision.name}", placed))
            charged.setdefault(decision.node, []).append(decision.uid)
        for eviction in decided.evicted:
            evicted = EvictionDecided(
                uid=eviction.uid,
                namespace=eviction.namespace,
                name=eviction.name,
                node=eviction.node,
                cycle=self._cycle,
                group=eviction.group,
                reason=eviction.reason,
                preemptor=eviction.preemptor,
                shrinks=eviction.shrinks,
                fits_on=eviction.fits_on,
                failures_left=eviction.failures_left,
            )
            about.append((eviction.uid, f"{eviction.namespace}/{eviction.name}", evicted))
        for nominated in decided.nominated:
            kept = PodNominated(
                uid=nominated.uid,
                namespace=nominated.namespace,
                name=nominated.name,
                node=nominated.node,
                cycle=self._cycle,
                pod_class=nominated.pod_class,
                group=nominated.group,
                placement=nominated.placement,
            )
            about.append((nominated.uid, f"{nominated.namespace}/{nominated.name}", kept))
            charged.setdefault(nominated.node, []).append(nominated.uid)
        events = [self._event(f"pod/{uid}", subject, payload, uid) for uid, subject, payload in about]
        for node in sorted(charged):
            uids = tuple(charged[node])
            payload = NodeCharged(node=node, cycle=self._cycle, pods=uids)
            events.append(self._event(f"node/{node}", node, payload, uids[0]))
        streams = {event.stream for event in events}
        if decided.stands_on >= 0:
            streams.update(self._expected[decided.stands_on])
        expected = {stream: self._state.versions.get(stream, 0) for stream in sorted(streams)}
        self._expected.append(expected)
        return Unit(tuple(events), expect=expected)

    def _claims(self, decision: Decision) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the claims that are to be provisioned for a pod, and what others of it are to be bound to."""
        pod = self._state.pods[decision.uid].pod
        if not pod.claims:
            return (), {}
        claims, volumes = self._state.surroundings.unbound_claims(pod, decision.volumes, also=self._volumes)
        self._volumes.update((f"{pod.namespace}/{claim}", volume) for claim, volume in volumes.items())
        return claims, volumes

    def healing(self, healing: Healing) -> Unit:
        """Return the unit that has a pod evicted, unless something has become of the pod meanwhile."""
        stream = f"pod/{healing.uid}"
        requested = HealRequested(
            uid=healing.uid,
            namespace=healing.namespace,
            name=healing.name,
            node=healing.node,
            cycle=self._cycle,
            pod_class=healing.pod_class,
            owner=healing.owner,
            missed=healing.missed,
        )
        event = self._event(stream, f"{healing.namespace}/{healing.name}", requested, healing.uid)
        return Unit((event,), expect={stream: self._state.versions.get(stream, 0)})

    def _event(self, stream: str, subject: str, payload: Payload, of: str) -> NewEvent:
        return NewEvent(
            id=derived_id(self._completed_text, type(payload).__name__, of),
            stream=stream,
            payload=payload,
            actor=self._actor,
            occurred_at=self._now,
            subject=subject,
            cause=self._completed,
            correlation=self._cycle,
        )


def _news(state: ClusterState, shard: str, pending: tuple[ClassPending, ...]) -> tuple[ClassPending, ...]:
    """Leave out what was recorded just so the last time."""
    return tuple(item for item in pending if state.reasons.get(item.pod_class, {}).get(shard) != item)


def _group_news(state: ClusterState, shard: str, groups: tuple[GroupPending, ...]) -> tuple[GroupPending, ...]:
    """Do so for groups, and take back what was recorded of those that have nothing of their own to say any more."""
    news = [item for item in groups if state.group_reasons.get(item.group, {}).get(shard) != item]
    still = {item.group for item in groups}
    told = (key for key, by_shard in state.group_reasons.items() if shard in by_shard and key not in still)
    return (*news, *(GroupPending(group=key, pods=0) for key in sorted(told)))
