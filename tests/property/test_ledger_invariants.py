"""Whatever happens, in whatever order: the accounts are right, nothing is promised twice, and replay agrees."""

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from kai_ingest.projection import IngestProjection
from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.observation import charging
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount
from kaicore.rules.model.pod import ContainerKind, QosClass
from kaicore.rules.model.quantity import is_memory
from kaicore.rules.numa.kubelet.masks import zones_of
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import Stage
from kaicore.rules.state.promises import PromiseCheck
from kaicore.rules.state.snapshot import decode_state, encode_state
from msgspec.structs import replace

from tests.given.cluster.factory import Cluster, amounts, container, pod, topology
from tests.given.examples import examples
from tests.given.logs.replaying import replayed

POLICIES = ("single-numa-node", "restricted", "best-effort", "none")

zones = st.lists(
    st.builds(amounts, cpu=st.integers(2, 16), memory=st.integers(4, 64), gpu=st.integers(0, 4), nic=st.integers(0, 2)),
    min_size=1,
    max_size=4,
)
nodes = st.lists(
    st.tuples(zones, st.sampled_from(POLICIES), st.sampled_from(("container", "pod"))), min_size=1, max_size=3
)
asked = st.fixed_dictionaries(
    {"cpu": st.sampled_from((0.5, 1, 2, 3, 5, 8, 12, 20)), "memory": st.sampled_from((0, 1, 8, 20, 60))},
    optional={"gpu": st.integers(0, 6), "nic": st.integers(0, 2)},
)
kinds = st.sampled_from((ContainerKind.APP, ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR))
pods = st.tuples(
    st.lists(st.tuples(kinds, asked), min_size=1, max_size=3),
    st.sampled_from((QosClass.GUARANTEED, QosClass.GUARANTEED, QosClass.BURSTABLE)),
    st.integers(0, 1),
)


@dataclass(frozen=True)
class Step:
    what: str
    pick: int
    detail: Any = None


happenings = st.builds(
    Step,
    st.sampled_from(
        (
            "delete",
            "start",
            "finish",
            "terminate",
            "reject",
            "bind-fails",
            "observe",
            "observe-elsewhere",
            "foreign",
            "cordon",
            "published",
            "reshape",
            "restart",
        )
    ),
    st.integers(0, 99),
)
rounds = st.tuples(
    st.lists(st.tuples(st.integers(1, 4), pods), min_size=1, max_size=3),
    st.one_of(
        st.builds(Step, st.just("cycle"), st.integers(0, 99)),
        st.builds(Step, st.just("late-cycle"), st.integers(0, 99), st.lists(happenings, max_size=4)),
    ),
    st.lists(st.builds(Step, st.just("bound"), st.integers(0, 99)), max_size=4),
    st.lists(happenings, max_size=4),
)


@st.composite
def stories(draw: st.DrawFn) -> list[Step]:
    """Rounds of new pods, a cycle, and what becomes of its decisions."""
    steps: list[Step] = []
    for added, cycle, bound, happened in draw(st.lists(rounds, min_size=1, max_size=6)):
        steps += [Step("pod", 0, spec) for copies, spec in added for _ in range(copies)]
        steps += [cycle, *bound, *happened]
    return [*steps, Step("cycle", 0)]


tight_nodes = st.lists(
    st.tuples(
        st.lists(st.builds(amounts, cpu=st.integers(2, 6), memory=st.just(64)), min_size=2, max_size=2),
        st.sampled_from(POLICIES),
        st.sampled_from(("container", "pod")),
    ),
    min_size=1,
    max_size=2,
)
small = st.tuples(
    st.lists(
        st.tuples(kinds, st.fixed_dictionaries({"cpu": st.integers(1, 4), "memory": st.integers(1, 8)})),
        min_size=1,
        max_size=2,
    ),
    st.just(QosClass.GUARANTEED),
    st.just(0),
)
shown = st.builds(
    Step,
    st.sampled_from(("observe-elsewhere", "observe-elsewhere", "foreign", "reshape", "start", "finish")),
    st.integers(0, 99),
)


@st.composite
def storms(draw: st.DrawFn) -> list[Step]:
    """Tight nodes, pods that are bound at once, and cycles with facts between their input and their record."""
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 3))):
        steps += [Step("pod", 0, spec) for spec in draw(st.lists(small, min_size=1, max_size=3))]
        steps += [Step("cycle", 0), *(Step("bound", 0) for _ in range(4))]
        steps += [Step("pod", 0, spec) for spec in draw(st.lists(small, min_size=1, max_size=3))]
        steps += [Step("late-cycle", 0, draw(st.lists(shown, min_size=1, max_size=4)))]
    return steps


class Story:
    """A cluster to which the steps happen."""

    def __init__(self, layout: list[Any], *, compares_indexes: bool = False) -> None:
        self.cluster = Cluster()
        self.cluster.compares_indexes = compares_indexes
        self.count = 0
        self.layout = {f"n{index}": spec for index, spec in enumerate(layout)}
        #: What facts have brought that no decision answers for.
        self.brought: set[str] = set()
        self.ingest = IngestProjection()
        for name, (held, policy, scope) in self.layout.items():
            self.cluster.add_node(name, *held, policy=policy, scope=scope)

    @property
    def state(self) -> ClusterState:
        return self.cluster.state

    def entry(self, pick: int, *stages: Stage) -> Any:
        entries = [self.state.pods[uid] for uid in sorted(self.state.pods) if self.state.pods[uid].stage in stages]
        return entries[pick % len(entries)] if entries else None

    def fact(self, stream: str, payload: payloads.Payload, *, charges: str = "") -> None:
        """Record a fact as its writer does: one that charges a node moves the node's stream with it."""
        number = str(len(self.cluster.events))
        event = NewEvent(derived_id("fact", number), stream, payload, "test", self.cluster.now)
        unit = Unit((event,))
        self.cluster.append((charging(unit, charges) if charges else unit,))

    def take(self, step: Step) -> None:
        getattr(self, "_" + step.what.replace("-", "_"))(step)

    def _pod(self, step: Step) -> None:
        containers, qos, priority = step.detail
        ordered = sorted(enumerate(containers), key=lambda item: item[1][0] is ContainerKind.APP)
        self.count += 1
        self.cluster.add_pod(
            pod(
                f"p{self.count}",
                *(container(f"c{index}", kind, **spec) for index, (kind, spec) in ordered),
                qos=qos,
                priority=priority,
                created_at=self.count,
            )
        )

    def _cycle(self, _: Step) -> None:
        self.cluster.cycle()

    def _late_cycle(self, step: Step) -> None:
        """A cycle with a record after something else has happened: some decisions are stale."""
        proposal = decide(self.state, EngineConfig(), shard="default", now=self.cluster.now, actor="scheduler")
        for happened in step.detail:
            self.take(happened)
        self.cluster.append(proposal.units)

    def _restart(self, _: Step) -> None:
        saved = encode_state(self.state)
        self.cluster.state = decode_state(saved)
        assert encode_state(self.state) == saved

    def _delete(self, step: Step) -> None:
        if entry := self.entry(step.pick, *Stage):
            self.cluster.delete_pod(entry.pod)

    def _status(self, entry: Any, **status: Any) -> None:
        self.cluster.add_pod(replace(entry.pod, node_name=entry.node, **status))

    def _start(self, step: Step) -> None:
        if entry := self.entry(step.pick, Stage.BOUND):
            self._status(entry, phase="Running")

    def _finish(self, step: Step) -> None:
        if entry := self.entry(step.pick, Stage.BOUND):
            self._status(entry, phase="Succeeded")

    def _terminate(self, step: Step) -> None:
        if entry := self.entry(step.pick, Stage.PLACED, Stage.BOUND):
            self._status(entry, deletion_at=1)

    def _reject(self, step: Step) -> None:
        if entry := self.entry(step.pick, Stage.BOUND):
            reason = "TopologyAffinityError"
            self._status(entry, phase="Failed", reason=reason)
            rejected = payloads.PodRejected(entry.pod.uid, "default", entry.pod.name, entry.node, reason)
            self.cluster.record(f"pod/{entry.pod.uid}", rejected)

    def _bind_fails(self, step: Step) -> None:
        if entry := self.entry(step.pick, Stage.PLACED):
            failed = payloads.BindFailed(entry.pod.uid, "default", entry.pod.name, entry.node, 500, "InternalError")
            self.cluster.record(f"pod/{entry.pod.uid}", failed)

    def _bound(self, step: Step) -> None:
        if entry := self.entry(step.pick, Stage.PLACED):
            bound = payloads.PodBound(entry.pod.uid, "default", entry.pod.name, entry.node)
            self.cluster.record(f"pod/{entry.pod.uid}", bound)

    def _observe(self, step: Step) -> None:
        """A prediction is observed, or half of it elsewhere."""
        entry = self.entry(step.pick, Stage.BOUND)
        if entry is None or entry.predicted is None:
            return
        containers = entry.predicted.containers
        if step.pick % 2:
            held = {"cpu": 1000}
            containers = (ContainerPlacement(containers[0].container, zones=(ZoneAmount("node-0", held),)),)
        self._see(entry, Placement(Provenance.OBSERVED, containers))

    def _observe_elsewhere(self, step: Step) -> None:
        """All that was predicted is observed, each zone's part on the next zone."""
        entry = self.entry(step.pick, Stage.BOUND)
        if entry is None or entry.predicted is None:
            return
        count = len(self.layout[entry.node][0])
        after = {f"node-{zone}": f"node-{(zone + 1) % count}" for zone in range(count)}
        moved = tuple(
            ContainerPlacement(one.container, zones=tuple(ZoneAmount(after[z.zone], z.amount) for z in one.zones))
            for one in entry.predicted.containers
        )
        self._see(entry, Placement(Provenance.OBSERVED, moved))

    def _see(self, entry: Any, placement: Placement) -> None:
        for event in self.cluster.events[self.ingest.position :]:
            self.ingest.apply(event)
        charges = self.ingest.charges(self.ingest.pods[entry.pod.uid], placement)
        seen = payloads.PlacementObserved(entry.pod.uid, "default", entry.pod.name, entry.node, placement)
        self.fact(f"pod/{entry.pod.uid}", seen, charges=entry.node if charges else "")
        self.brought |= {"zones"}

    def _foreign(self, step: Step) -> None:
        """A pod is on a node without any decision; of one that was seen waiting, zones are predicted."""
        self.count += 1
        node = f"n{step.pick % len(self.layout)}"
        one = pod(f"f{self.count}", cpu=1 + step.pick % 4, memory=1, scheduler_name="other", node_name=node)
        if step.pick % 3:
            waiting = msgspec.structs.replace(one, node_name="")
            self.fact(f"pod/{one.uid}", payloads.PodObserved(waiting))
        self.fact(f"pod/{one.uid}", payloads.PodObserved(one), charges=node)
        self.brought |= {"zones", "nodes"}

    def _reshape(self, step: Step) -> None:
        """A node's zones have another CPU for pods than before."""
        name = f"n{step.pick % len(self.layout)}"
        held, policy, scope = self.layout[name]
        less = [{**zone, "cpu": max(0, zone["cpu"] - 1000 * (step.pick % 3))} for zone in held]
        self.fact(
            f"nrt/{name}",
            payloads.TopologyObserved(topology(name, *less, policy=policy, scope=scope, capacity={"cpu": 16_000})),
            charges=name,
        )
        self.brought |= {"zones"}

    def _cordon(self, step: Step) -> None:
        name = f"n{step.pick % len(self.layout)}"
        fact = self.state.columns.facts[self.state.columns.rows[name]]
        assert fact is not None
        fields = {field: getattr(fact, field) for field in fact.__struct_fields__}
        changed = type(fact)(**(fields | {"unschedulable": not fact.unschedulable}))
        self.cluster.record(f"node/{name}", payloads.NodeObserved(changed))

    def _published(self, step: Step) -> None:
        name = f"n{step.pick % len(self.layout)}"
        held, policy, scope = self.layout[name]
        published = topology(name, *held, policy=policy, scope=scope)
        before = self.state.columns.topologies[self.state.columns.rows[name]]
        lasts = before is not None and before.lasting() == published.lasting()
        self.fact(f"nrt/{name}", payloads.TopologyObserved(published), charges="" if lasts else name)


def check_accounts(state: ClusterState, *, brought: set[str]) -> None:
    """The columns are the sums of what the pods are charged with; no zone and no node has more unless facts say so."""
    columns, zoned = state.columns, state.columns.zones
    whole, held = np.zeros_like(columns.used), np.zeros_like(zoned.used)
    blocks, assigned = np.zeros_like(columns.used), np.zeros_like(zoned.assignments)
    for entry in state.pods.values():
        if entry.charged:
            row = columns.rows[entry.node]
            for resource, amount in entry.requests.items():
                whole[row, columns.resources[resource]] += amount
            for zone, resource, amount in entry.zone_charge.amounts:
                held[row, zone, zoned.resources[resource]] += amount
            for block in entry.zone_charge.blocks:
                blocks[row, columns.resources[block.resource]] += block.size
                assigned[row, list(zones_of(block.mask))] += 1
        assert entry.charged == (entry.stage in (Stage.PLACED, Stage.BOUND))
    assert (columns.used == whole).all()
    for resource, column in zoned.resources.items():
        if not is_memory(resource):
            assert (zoned.used[:, :, column] == held[:, :, column]).all()
        elif resource in columns.resources:
            assert (zoned.used[:, :, column].sum(axis=1) == blocks[:, columns.resources[resource]]).all()
    assert (zoned.assignments == assigned).all()
    assert ((zoned.cells != 0) == (assigned > 0)).all()
    assert (columns.releasing <= columns.used).all()
    if "nodes" not in brought:
        assert (columns.used <= columns.allocatable).all() or not columns.present.all()
    if "zones" not in brought:
        assert (zoned.used <= zoned.allocatable).all()


def check_promises(story: Story) -> None:
    promises = PromiseCheck(ClusterState("test"))
    for event in story.cluster.events:
        promises.take(event)
    assert promises.report.twice == []
    assert promises.report.decisions == sum(event.type == "PodPlaced" for event in story.cluster.events)


@settings(max_examples=examples(300), deadline=None)
@given(tight_nodes, storms())
def test_no_zone_is_promised_twice_whatever_is_told_while_a_cycle_runs(layout: list[Any], sequence: list[Step]) -> None:
    story = Story(layout)
    for step in sequence:
        story.take(step)
    check_promises(story)


def test_a_zone_that_a_pod_may_have_got_instead_is_not_promised_to_it() -> None:
    """A pod moved itself onto a full zone, and one ends while a cycle places another: its kubelet may have known.

    Then the full zone is one of those that the kubelet may have taken, and nothing that the cycle promised.
    """
    story = Story([([amounts(cpu=5, memory=64), amounts(cpu=5, memory=64)], "best-effort", "container")])
    specs = [([(ContainerKind.APP, {"cpu": cpu, "memory": 1})], QosClass.GUARANTEED, 0) for cpu in (2, 1, 4, 1)]
    came, (last,) = [Step("pod", 0, spec) for spec in specs[:3]], [Step("pod", 0, spec) for spec in specs[3:]]
    moves, ends = (
        Step("late-cycle", 0, [Step(what, pick)]) for what, pick in (("observe-elsewhere", 0), ("finish", 1))
    )
    for step in (*came, Step("cycle", 0), *3 * (Step("bound", 0),), moves, last, ends):
        story.take(step)
    (charge,) = (entry.zone_charge for entry in story.state.pods.values() if entry.stage is Stage.PLACED)
    assert (1, "cpu", 1000) in charge.repeated, "what it shows is there"
    check_promises(story)


@settings(max_examples=examples(150), deadline=None)
@given(nodes, stories())
def test_state_replays_and_restores_after_any_history(layout: list[Any], sequence: list[Step]) -> None:
    story = Story(layout, compares_indexes=True)
    for step in sequence:
        story.take(step)
        check_accounts(story.state, brought=story.brought)
    events = story.cluster.events
    check_promises(story)
    assert encode_state(ClusterState("test").fold_all(events)) == encode_state(story.state)
    report = replayed(events)
    assert report.differences == []
    assert report.cycles == sum(event.type == "CycleCompleted" for event in events)
