"""The simulation itself: the facts that a watcher would append, then cycles, binds and kubelets until nothing changes.

Everything goes through an event log and the same fold and the same `decide` as in a running cluster. Nothing ends by
itself here: a running pod continues, a terminating one keeps what it holds. A pod that a cycle has evicted is gone
before the next cycle, and its controller has created another. When nothing changes any more, the clock can be advanced
to the end of a waiting time: a grace, a delay, a minimum runtime.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from kaicore.analysis.trial.simulation.kubelets import KubeletAnswer, Kubelets
from kaicore.analysis.trial.simulation.outcome import Outcome, PodOutcome, evicted_pod, outcome_of
from kaicore.analysis.trial.simulation.resource_claims import DisruptionController
from kaicore.analysis.trial.simulation.world import World, WorldPod
from kaicore.kube.api.reflector_core import Change, ObjectGone, ObjectKey, ObjectSeen
from kaicore.kube.kinds.facts import Facts
from kaicore.kube.kinds.kind import Kind
from kaicore.kube.kinds.table import BUDGET, NODE, POD, PRIORITY_CLASS, TOPOLOGY
from kaicore.kube.normalize.gpu_shares import ReservationSettings
from kaicore.kube.normalize.gpu_shares import reservation_pod as made_by_binder
from kaicore.kube.normalize.node import normalize_topology
from kaicore.kube.normalize.pod import OWN_ANNOTATIONS, normalize_pod
from kaicore.kube.wire.objects import Named, PodObject
from kaicore.kube.wire.resources import PODS, ObjectT
from kaicore.ledger.log.memory import MemoryLog
from kaicore.rules.deciding.cycle_input import next_due
from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.decisions import ClearReason
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.observation import annotated_placement, binding_annotations, observation, zones_of
from kaicore.rules.events.payloads import (
    EvictionDecided,
    GpuClosed,
    GpuOpened,
    GroupSourceObserved,
    NodeCharged,
    Payload,
    PlacementObserved,
    PodBound,
    PodEvicted,
    PodPlaced,
    RepairRequested,
)
from kaicore.rules.groups.dialects.table import GATES
from kaicore.rules.model.gpu_share import GPU, GPU_GROUP_LABEL, GpuPart, gpu_memory, groups_of, reservation_name
from kaicore.rules.model.group import GroupSource, source_key
from kaicore.rules.model.placement import (
    MEMORY_GROUPS_OBSERVED,
    OBSERVED_ANNOTATION,
    RANK_ANNOTATION,
    ContainerPlacement,
    Placement,
    Provenance,
)
from kaicore.rules.model.pod import Pod
from kaicore.rules.numa.explain import impossible_holding, most_held, zone_limits
from kaicore.rules.objects.made import successor
from kaicore.rules.objects.mappings import Object, derived_uid
from kaicore.rules.objects.wire import DEFAULT_SCHEDULER, seconds
from kaicore.rules.state.cluster_state import ClusterState


def parts_of(pod: Pod, state: ClusterState) -> tuple[GpuPart, ...]:
    """Return the parts of GPUs that a running pod of the input has; none where it has no share or names no groups."""
    node = state.columns.facts[state.columns.row(pod.node_name)] if pod.node_name else None
    if pod.gpu_share is None or node is None:
        return ()
    part = pod.gpu_share.part_of(gpu_memory(node.labels))
    return tuple(GpuPart(group, part, pod.gpu_share.mib) for group in groups_of(pod.labels))


def opened_for(
    parts: tuple[GpuPart, ...], pod: Pod, state: ClusterState, find: Callable[[str], Object | None], *, namespace: str
) -> Iterator[GpuOpened]:
    """Yield what opens the GPUs of a running pod that are not open yet.

    Args:
        find: returns the reservation pod of a group that is in the input; None where there is none.
        namespace: of reservation pods that are not in the input.
    """
    for part in parts:
        if part.group not in state.shared_gpus.groups:
            there = find(part.group)
            name = reservation_name(pod.node_name, part.group)
            meta = {"namespace": namespace, "name": name} if there is None else there["metadata"]
            yield GpuOpened(pod.node_name, part.group, meta["namespace"], meta["name"], "")


def is_reservation(pod: Object) -> bool:
    """Tell whether a pod of the input holds a GPU for sharing, by its label and what it asks for."""
    labels = pod["metadata"].get("labels") or {}
    limits = [(one.get("resources") or {}).get("limits") or {} for one in pod["spec"].get("containers") or ()]
    return GPU_GROUP_LABEL in labels and any(GPU in one for one in limits)


def reservation_pod(opened: GpuOpened) -> Object:
    """Return the reservation pod that the binder makes for a GPU, as it is once it runs."""
    pod = made_by_binder(ReservationSettings(image=""), opened)
    pod["metadata"]["uid"] = derived_uid("", "Pod", opened.namespace, opened.name)
    pod["spec"]["schedulerName"] = DEFAULT_SCHEDULER
    return pod | {"status": {"phase": "Running"}}


def closed_groups(state: ClusterState) -> list[tuple[GpuClosed, str]]:
    """Return what closes the GPUs of which no pod has a part any more, each with the uid of its reservation pod."""
    return [
        (GpuClosed(group.opened.node, name, "Unused"), group.uid)
        for name, group in sorted(state.shared_gpus.groups.items())
        if not group.parts and not group.closed
    ]


#: What a simulation's cluster and shard are called in its log.
CLUSTER, SHARD = "simulated", "default"

#: Microseconds from one cycle to the next.
CYCLE_US = 1_000_000

#: How many times time is waited for, where it is not said how many cycles to run: two queues may take from each other
#: whenever a minimum runtime is over, for ever.
MOST_WAITS = 100

_SCHEDULER, _BINDER = f"scheduler/{SHARD}/simulation", "binder"

#: Events read back at once.
_PAGE = 10_000


async def simulate(
    world: World,
    config: EngineConfig,
    *,
    kubelets: Kubelets | None = None,
    cycles: int | None = None,
    wait: bool = False,
    policies: PolicyBook = NO_POLICIES,
    on_cycle: Callable[[int], None] = lambda _: None,
) -> Outcome:
    """Simulate a world.

    Raises msgspec.ValidationError: the kubelets gave an answer that is none.

    Args:
        world: without problems; warnings are added to it.
        kubelets: answer each bind; without them every bind succeeds.
        cycles: how many; by default until nothing changes.
        wait: when nothing changes, go on with what only waits for time, until that is none either.
        policies: the code of those that the settings name.
        on_cycle: is called with how many cycles have been run, after each.
    """
    run = Simulation(world, config, kubelets=kubelets, policies=policies)
    await run.begin()
    count = waits = 0
    while cycles is None or count < cycles:
        count += 1
        changed = await run.cycle()
        on_cycle(count)
        if changed:
            continue
        waits += 1
        more = wait and (cycles is not None or waits <= MOST_WAITS) and run.wait()
        if not more and (wait or cycles is None):
            break
    return outcome_of(
        run.state,
        cycles=count,
        config=config,
        placed=run.placed,
        evicted=run.evicted,
        seconds=run.elapsed_us // 1_000_000,
    )


class Simulation:
    """A simulation step by step; its log and its state can be looked at in between."""

    def __init__(
        self,
        world: World,
        config: EngineConfig,
        *,
        kubelets: Kubelets | None = None,
        policies: PolicyBook = NO_POLICIES,
    ) -> None:
        """Args: see `simulate`."""
        self.log = MemoryLog(lambda: self._now)
        self.state = ClusterState(CLUSTER)
        #: Pods that cycles have evicted, as they were then.
        self.evicted: list[PodOutcome] = []
        #: What cycles decided last of each pod that they placed, by its uid.
        self.placed: dict[str, PodPlaced] = {}
        self._world = world
        self._config = config
        self._policies = policies
        self._kubelets = kubelets
        self._now = world.now
        self._facts = Facts(CLUSTER)
        self._surroundings = world.surroundings.copy()
        self._pods = {pod.wire.metadata.uid: pod.object for pod in world.pods}
        self._due = self._wake = 0
        #: Pods with a gate of their controller, by uid: without it, and the key of the group that is waited for.
        self._gated: dict[str, tuple[PodObject, str]] = {}
        #: Uids of pods with kept room that was given up once: the same would only come again.
        self._given_up: set[str] = set()
        self._disruption = DisruptionController(world.surroundings.budgets(), self._pods.get)

    async def begin(self) -> None:
        """Record the world: classes, nodes, zones, queues, groups, then pods in the order in which nodes took them."""
        world = self._world
        units = [self._seen(PRIORITY_CLASS, one) for one in world.priority_classes.values()]
        namespaces = {pod.wire.metadata.namespace for pod in world.pods}
        units += [self._seen(kind, wire) for kind, wire in self._surroundings.recorded(namespaces)]
        units += [self._seen(NODE, wire) for _, wire in world.nodes.values()]
        units += [self._seen(TOPOLOGY, wire) for _, wire in world.topologies.values()]
        units += [
            self._seen(kind, wire) for kind, wire in (*world.queues, *world.network_topologies, *world.group_sources)
        ]
        units += [self._made_up(source) for source in world.missing_owners]
        await self._append(units)
        world.warnings += self.state.network_topologies.problems()
        if self._kubelets is not None:
            for name, (node, _) in world.nodes.items():
                topology = world.topologies.get(name)
                world.warnings += self._kubelets.add_node(node, None if topology is None else topology[0])
        for pod in sorted(world.pods, key=_arrival):
            await self._append(self._history(pod))
            if self._kubelets is not None and _holds(pod.wire):
                entry = self.state.pods[pod.wire.metadata.uid]
                # What the state does not believe is not known of the kubelet either.
                record = (pod.observed if entry.observed else None) or (pod.predicted if entry.predicted else None)
                zones = [{"zone": zone.zone, "amount": zone.amount} for zone in (record.zones if record else ())]
                warnings = self._kubelets.add_running(pod.object, zones)
                world.warnings += warnings
                if not warnings:
                    # Where there are kubelets there is an exporter: what they gave a pod that no record tells is known.
                    placement = msgspec.convert(self._kubelets.held(pod.object), KubeletAnswer).placement
                    if _resources(placement.containers) - _resources(() if record is None else (record,)):
                        await self._append([self._observed(pod.wire, placement, "exporter")])
        await self._append([self._seen(BUDGET, budget) for budget in self._disruption.new(self.state)])
        await self._append(self._ungated())

    async def cycle(self) -> bool:
        """Run a cycle and bind what it placed; return whether another one might decide more."""
        revision = self.state.revision
        self._now = max(self._now + CYCLE_US, self._wake)
        proposal = decide(
            self.state, self._config, shard=SHARD, now=self._now, actor=_SCHEDULER, policies=self._policies
        )
        await self._append(proposal.units)
        for opened in proposal.result.decisions:
            if isinstance(opened, GpuOpened):
                await self._append(self._reserve(opened))
        for decision in proposal.result.placements:
            self.placed[decision.uid] = decision
            await self._append([*self._bind_claims(decision), *self._bind(decision)])
        gone: tuple[EvictionDecided | RepairRequested, ...] = (*proposal.result.evictions, *proposal.result.repairs)
        for eviction in gone:
            await self._append(self._evict(eviction))
        await self._append(self._ungated())
        for closed, uid in closed_groups(self.state):
            await self._append(self._close(closed, uid))
        if gone or proposal.result.placements:
            await self._append([self._seen(BUDGET, budget) for budget in self._disruption.changed(self.state)])
        self._due = proposal.result.due
        given_up = (one.uid for one in proposal.result.cleared if one.reason == ClearReason.GAVE_UP)
        self._given_up.update(given_up)
        return bool(self.state.waiting) and (bool(proposal.result.placements) or self.state.revision != revision)

    def wait(self) -> bool:
        """Have the next cycle when something has waited long enough; return whether there is anything of that kind."""
        due = next_due(self.state, self._config, now=self._now, due=self._due, given_up=self._given_up)
        if due is None:
            return False
        self._wake = due
        return True

    @property
    def elapsed_us(self) -> int:
        """The simulated time that has passed."""
        return self._now - self._world.now

    async def _append(self, units: Sequence[Unit | None]) -> None:
        await self.log.append(CLUSTER, [unit for unit in units if unit is not None])
        while events := await self.log.read(CLUSTER, after=self.state.position, limit=_PAGE):
            self.state.fold_all(events)

    def _seen(self, kind: Kind[ObjectT], wire: ObjectT) -> Unit | None:
        return self._changed(kind, ObjectSeen(wire))

    def _made_up(self, source: GroupSource) -> Unit:
        event = NewEvent(
            id=derived_id(CLUSTER, "GroupSourceObserved", source.key),
            stream=f"group/{source.key}",
            payload=GroupSourceObserved(source),
            actor="simulation",
            occurred_at=self._now,
            subject=f"{source.namespace}/{source.name}",
        )
        return Unit((event,))

    def _changed(self, kind: Kind[ObjectT], change: Change[ObjectT]) -> Unit | None:
        return self._facts.translate(kind, change, now=self._now)

    # What was before.

    def _history(self, pod: WorldPod) -> list[Unit | None]:
        """Return the facts of a pod of the input.

        A prediction that stands on a pod was once a decision, and is recorded as that: the pod waits, is placed, and is
        then seen on its node. An observation that stands there is taken as ingest takes it.
        """
        wire = pod.wire
        units: list[Unit | None] = []
        node, meta = wire.spec.node_name or "", wire.metadata
        predicted = pod.predicted
        if predicted is not None and not (node and _holds(wire) and self._believed(pod, node, predicted)):
            predicted = None
        parts = parts_of(normalize_pod(wire), self.state) if node and _holds(wire) else ()
        units += self._opened(parts, wire)
        if predicted is not None or parts:
            waiting = msgspec.structs.replace(wire.spec, node_name=None)
            units.append(self._seen(POD, msgspec.structs.replace(wire, spec=waiting)))
            containers = () if predicted is None else annotated_placement(predicted).containers
            placed = PodPlaced(
                uid=meta.uid,
                namespace=meta.namespace,
                name=meta.name,
                node=node,
                cycle="",
                pod_class="",
                placement=None if predicted is None else Placement(Provenance.PREDICTED, containers),
                gpus=parts,
            )
            units.append(
                Unit(
                    (
                        self._event(f"pod/{meta.uid}", placed, _SCHEDULER, wire, at=_came(wire)),
                        self._event(f"node/{node}", NodeCharged(node, "", (meta.uid,)), _SCHEDULER, wire),
                    )
                )
            )
        units.append(self._seen(POD, self._gate(wire)))
        if pod.observed is not None and node and _holds(wire) and self._believed(pod, node, pod.observed):
            units.append(self._observed(wire, annotated_placement(pod.observed), "annotation"))
        return units

    def _opened(self, parts: tuple[GpuPart, ...], wire: PodObject) -> Iterator[Unit]:
        if not parts:
            return
        reservations = {
            (one["metadata"].get("labels") or {}).get(GPU_GROUP_LABEL, ""): one
            for one in self._pods.values()
            if is_reservation(one)
        }
        namespace = self._config.gpu_reservation_namespace
        for opened in opened_for(parts, normalize_pod(wire), self.state, reservations.get, namespace=namespace):
            yield Unit((self._event(f"node/{opened.node}", opened, _SCHEDULER, wire, of=opened.group),))

    def _believed(self, pod: WorldPod, node: str, record: ContainerPlacement) -> bool:
        """True if a record's zones are the node's, and pod and zones can hold it; a warning if not."""
        topology = self._world.topologies.get(node)
        limits = zone_limits(normalize_topology(topology[1])) if topology is not None else {}
        subject = f"Pod {pod.wire.metadata.namespace}/{pod.wire.metadata.name}"
        placement = annotated_placement(record)
        strange = sorted({*(zone.zone for zone in record.zones), *zones_of(placement)} - limits.keys())
        if strange:
            problem = (
                f"{subject}: its placement names {', '.join(strange)}, "
                f"of which the NodeResourceTopology of {node} knows nothing"
            )
        else:
            most = most_held(normalize_pod(pod.wire))
            problem = str(impossible_holding(placement, subject=subject, most=most, zones=limits) or "")
        if problem:
            self._world.warnings.append(f"{pod.where}: {problem}; the placement is not believed")
        return not problem

    # What happens now.

    def _gate(self, wire: PodObject) -> PodObject:
        """Return a pod with the gate that its controller keeps on it, as long as it does."""
        meta, spec = wire.metadata, wire.spec
        for kind, gate in GATES:
            name = (meta.labels or {}).get(gate.after, "")
            if name and not spec.node_name:
                others = [one for one in spec.scheduling_gates or () if one.name != gate.name]
                free = msgspec.structs.replace(wire, spec=msgspec.structs.replace(spec, scheduling_gates=others))
                self._gated[meta.uid] = free, source_key(kind, meta.namespace, name)
                gated = msgspec.structs.replace(spec, scheduling_gates=[*others, Named(gate.name)])
                return msgspec.structs.replace(wire, spec=gated)
        return wire

    def _ungated(self) -> list[Unit | None]:
        """Take gates off pods when the groups that they wait for have their minimum."""
        workloads, freed = self.state.workload_index.workloads, []
        for uid, (_, key) in self._gated.items():
            before = workloads.get(key)
            if before is not None and before.satisfied(before.counts):
                freed.append(uid)
        return [self._seen(POD, self._gated.pop(uid)[0]) for uid in freed]

    def _reserve(self, opened: GpuOpened) -> list[Unit | None]:
        """Make the reservation pod of a GPU as the binder does, and let the kubelet answer."""
        pod = reservation_pod(opened)
        wire = PODS.decode(_encode(pod))
        self._pods[wire.metadata.uid] = pod
        units = [self._seen(POD, wire)]
        if self._kubelets is not None:
            answer = msgspec.convert(self._kubelets.admit(pod), KubeletAnswer)
            if answer.refusal is not None:
                return self._refused(pod, answer)
            units.append(self._observed(wire, answer.placement, "exporter"))
        return units

    def _close(self, closed: GpuClosed, uid: str) -> list[Unit | None]:
        """Close a GPU that nobody has a part of, and delete its reservation pod, as the binder does."""
        pod = self._pods.get(uid)
        wire = PODS.decode(_encode(pod or reservation_pod(self.state.shared_gpus.groups[closed.group].opened)))
        event = self._event(f"node/{closed.node}", closed, _BINDER, wire, of=closed.group)
        if pod is None:
            return [Unit((event,))]
        if self._kubelets is not None:
            self._kubelets.remove(pod)
        return [Unit((event,)), self._gone(wire)]

    def _bind_claims(self, decision: PodPlaced) -> list[Unit | None]:
        """Bind a pod's claims to the volumes chosen for them; one that is to be provisioned stays as it is."""
        units: list[Unit | None] = []
        for claim, volume in sorted(self.state.pods[decision.uid].volumes.items()):
            bound = self._surroundings.bind((decision.namespace, claim), volume)
            units += [self._seen(kind, wire) for kind, wire in bound]
        return units

    def _bind(self, decision: PodPlaced) -> list[Unit | None]:
        """Bind a pod as the binder does, and let the kubelet answer."""
        pod = self._pods[decision.uid]
        metadata, spec = dict(pod["metadata"]), {**pod["spec"], "nodeName": decision.node}
        if annotations := binding_annotations(decision):
            metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
        pod = self._pods[decision.uid] = {**pod, "metadata": metadata, "spec": spec}
        bound = PodBound(decision.uid, decision.namespace, decision.name, decision.node)
        wire = PODS.decode(_encode(pod))
        units: list[Unit | None] = [
            Unit((self._event(f"pod/{decision.uid}", bound, _BINDER, wire),)),
            self._seen(POD, wire),
        ]
        if self._kubelets is None:
            return units
        answer = msgspec.convert(self._kubelets.admit(pod), KubeletAnswer)
        if answer.refusal is not None:
            return units + self._refused(pod, answer)
        status = {**(pod.get("status") or {}), "phase": "Running"}
        wire = PODS.decode(_encode({**pod, "status": status}))
        units.append(self._seen(POD, wire))
        placement = answer.placement
        if decision.placement is not None or any(item.zones or item.spans for item in placement.containers):
            units.append(self._observed(wire, placement, "exporter"))
        return units

    def _refused(self, pod: Object, answer: KubeletAnswer) -> list[Unit | None]:
        """A refused pod is failed for good; where it has a controller, that makes another."""
        assert answer.refusal is not None
        message = f"Pod was rejected: {answer.refusal.message}"
        status = {"phase": "Failed", "reason": answer.refusal.reason, "message": message}
        wire = PODS.decode(_encode({**pod, "status": status}))
        units = [self._seen(POD, wire)]
        made, claims = self._successor(pod)
        if made is not None and made.metadata.name == wire.metadata.name:
            # A controller that wants the same name again deletes the failed pod first.
            units.append(self._gone(wire))
        return units if made is None else [*units, *claims, self._seen(POD, made)]

    def _evict(self, eviction: EvictionDecided | RepairRequested) -> list[Unit | None]:
        """An evicted pod is gone; where it has a controller, that makes another."""
        pod = self._pods[eviction.uid]
        wire = PODS.decode(_encode(pod))
        self.evicted.append(evicted_pod(self.state.pods[eviction.uid], eviction))
        if self._kubelets is not None:
            self._kubelets.remove(pod)
        evicted = PodEvicted(eviction.uid, eviction.namespace, eviction.name, eviction.node)
        units = [Unit((self._event(f"pod/{eviction.uid}", evicted, _BINDER, wire),)), self._gone(wire)]
        made, claims = self._successor(pod)
        return units if made is None else [*units, *claims, self._seen(POD, made)]

    def _gone(self, wire: PodObject) -> Unit | None:
        meta = wire.metadata
        return self._changed(POD, ObjectGone(ObjectKey(meta.namespace, meta.name), meta.uid, ""))

    def _successor(self, pod: Object) -> tuple[PodObject | None, list[Unit | None]]:
        """Return the pod that the controller of one that ended makes, None for none, and facts of its claims."""
        if not any(owner.get("controller") for owner in pod["metadata"].get("ownerReferences") or ()):
            return None, []
        after, claims = self._surroundings.resource_claims_of(successor(pod))
        after["metadata"]["creationTimestamp"] = datetime.fromtimestamp(self._now // 1_000_000, tz=UTC).isoformat()
        for annotation in {*OWN_ANNOTATIONS, OBSERVED_ANNOTATION, MEMORY_GROUPS_OBSERVED, RANK_ANNOTATION}:
            (after["metadata"].get("annotations") or {}).pop(annotation, None)
        wire = PODS.decode(_encode(after))
        self._pods[wire.metadata.uid] = after
        return wire, [self._seen(kind, claim) for kind, claim in claims]

    def _observed(self, wire: PodObject, placement: Placement, source: str) -> Unit:
        meta, node = wire.metadata, wire.spec.node_name or ""
        payload = PlacementObserved(meta.uid, meta.namespace, meta.name, node, placement, source)
        return Unit((observation(CLUSTER, payload, previous=None, occurred_at=self._now),))

    def _event(
        self, stream: str, payload: Payload, actor: str, wire: PodObject, *, at: int | None = None, of: str = ""
    ) -> NewEvent:
        meta = wire.metadata
        return NewEvent(
            id=derived_id(CLUSTER, type(payload).__name__, of or meta.uid, str(self._now)),
            stream=stream,
            payload=payload,
            actor=actor,
            occurred_at=self._now if at is None else at,
            subject=f"{meta.namespace}/{meta.name}",
        )


_encode = msgspec.json.Encoder().encode


def _resources(containers: Iterable[ContainerPlacement]) -> set[str]:
    amounts = [zone.amount for item in containers for zone in item.zones]
    amounts += [span.amount for item in containers for span in (*item.spans, *item.blocks)]
    return {name for amount in amounts for name in amount}


def _holds(wire: PodObject) -> bool:
    return bool(wire.spec.node_name) and wire.status.phase not in ("Succeeded", "Failed")


def _came(wire: PodObject) -> int | None:
    """Return when a pod came to its node, or at the latest when it was created; microseconds since the epoch."""
    time = seconds(wire.status.start_time) or seconds(wire.metadata.creation_timestamp)
    return None if time is None else time * 1_000_000


def _arrival(pod: WorldPod) -> tuple[bool, str, str, str]:
    """Order pods as their kubelets took them up; then those that wait."""
    meta, status = pod.wire.metadata, pod.object.get("status") or {}
    created = "" if meta.creation_timestamp is None else meta.creation_timestamp.isoformat()
    since = str(status.get("startTime") or created.replace("+00:00", "Z"))
    return not pod.wire.spec.node_name, since, meta.namespace, meta.name
