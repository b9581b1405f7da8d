"""Random groups with topology constraints: whatever happens, no required domain is left, and cycles come to rest."""

from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.deciding.cycle_input import cycle_input
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.events import payloads
from kaicore.rules.model.group import PodSet, SliceLayer, TopologyConstraint
from kaicore.rules.model.node import KAI_TOPOLOGY, TopologyDefinition, TopologyLevel
from kaicore.rules.topology.placing.request import NO_LEVEL, GroupTopology

from tests.given.cluster.factory import amounts
from tests.given.examples import examples
from tests.given.work.workloads import OWNER
from tests.property.test_engine_invariants import Step, Story, protection, queues, specs_of, tell


def asks(required: str = "", preferred: str = "", size: int = 0, at: str = "") -> TopologyConstraint:
    return TopologyConstraint("dc", required, preferred, slices=(SliceLayer(size, at),) if size else ())


constraints = st.sampled_from(
    [
        None,
        asks("row"),
        asks("host"),
        asks(preferred="host"),
        asks("row", "host"),
        asks("row", size=2, at="host"),
        asks(size=2, at="row"),
    ]
)
zones = st.lists(
    st.builds(amounts, cpu=st.integers(4, 12), memory=st.integers(8, 32), gpu=st.integers(1, 4)), min_size=1, max_size=2
)
nodes = st.lists(st.tuples(zones, st.sampled_from(("single-numa-node", "restricted", "none"))), min_size=2, max_size=6)
specs = specs_of(gpus=3, topology=constraints, inner=constraints)
groups = st.tuples(st.integers(1, 4), st.integers(0, 4), st.just(0), specs)
rounds = st.tuples(
    st.lists(groups, min_size=1, max_size=3),
    st.lists(
        st.builds(
            Step,
            st.sampled_from(("go", "fail", "delete", "delete", "time", "recreate", "restart", "nominate")),
            st.integers(0, 99),
        ),
        max_size=4,
    ),
)


class TopologyStory(Story):
    """A story of groups with constraints on rows and hosts."""

    def __init__(self, layout: list[Any], shares: dict[str, Any] | None, guard: tuple[int | None, int]) -> None:
        super().__init__(layout, shares, guard)
        levels = tuple(TopologyLevel(name, (name,)) for name in ("row", "host"))
        definition = TopologyDefinition(KAI_TOPOLOGY, "dc", "uid-dc", "1", levels)
        self.cluster.record("topology/dc", payloads.TopologyDefinitionObserved(definition))

    def group(self, count: int, least: int, others: int, spec: dict[str, Any]) -> None:
        spec = dict(spec)
        inner = spec.pop("inner")
        if inner is None or others:
            super().group(count, least, others, spec)
            return
        topology = spec.pop("topology")
        if topology is not None and topology.slices:
            topology = asks(topology.required)
        self.count += 1
        name = f"g{self.count}"
        sets = (
            PodSet(topology=topology, min_sets=1 if least > 2 else None),
            *(PodSet(leaf, min_pods=min(least, count), topology=inner) for leaf in "ab"),
        )
        self.cluster.gang(name, 0, sets=sets)
        for leaf in "ab":
            annotations = {"pod-group-name": name}
            labels = {**spec["labels"], **self.queue_labels(), "kai.scheduler/subgroup-name": leaf}
            more = {**spec, "labels": labels, "annotations": annotations, "owner": OWNER}
            self.cluster.subgroup(leaf, name, count, **more)

    def _nominate(self, pick: int) -> None:
        """Another scheduler keeps room; not for a part of a gang of sub-groups, which that tells nothing about."""
        alone = {uid for uid in self.state.waiting if not self.state.pods[uid].pod_set}
        entry = self._picked(pick, self.state.waiting)
        if entry is not None and entry.pod.uid in alone:
            super()._nominate(pick)

    def cycle(self) -> CycleResult:
        result = super().cycle()
        self.required_domains_hold()
        return result

    def required_domains_hold(self) -> None:
        """The pods that run, and those for which room is kept, are where their sets require."""
        given = cycle_input(self.state, EngineConfig(), now=self.cluster.now)
        for workload in self.state.workload_index.workloads.values():
            found = given.topology_of(workload.group) if workload.constrained else None
            if not isinstance(found, GroupTopology):
                continue
            where: dict[str, list[str]] = {}
            for member in workload.active.values():
                where.setdefault(workload.leaf(member), []).append(member.node)
            for member in workload.waiting.values():
                if member.nomination is not None and not member.nomination.foreign:
                    where.setdefault(workload.leaf(member), []).append(member.nomination.node)
            for one in workload.group.sets:
                constraint = found.constraints.get(one.name)
                if constraint is not None and constraint.required != NO_LEVEL:
                    inside = [one.name] if one.name in where else where if one is workload.group.sets[0] else []
                    rows = [self.state.columns.row(node) for leaf in inside for node in where[leaf]]
                    self.share_a_domain(found, constraint.required, rows)

    def share_a_domain(self, found: GroupTopology, level: int, rows: Iterable[int]) -> None:
        domains = {int(found.tree.of_rows[level][row]) for row in rows}
        assert len(domains) <= 1
        assert -1 not in domains


@settings(max_examples=examples(25), deadline=None)
@given(nodes, queues, protection, st.lists(rounds, min_size=1, max_size=4))
def test_no_required_domain_is_left(
    layout: list[Any], queues: dict[str, Any] | None, protection: tuple[int | None, int], story: list[Any]
) -> None:
    tell(TopologyStory(layout, queues, protection), rounds_of=story)
