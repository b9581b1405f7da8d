"""Simulations are taken back exactly, in any nesting, and a pod that stays put was never evicted."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.zones.numa_verdicts import NumaVerdicts
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass, class_identity, pod_class
from kaicore.rules.engine.placement.statement import PodCharge, Statement
from kaicore.rules.numa.kubelet.zones import ZoneCharge

from tests.given.cluster.factory import Cluster, amounts, container, pod
from tests.given.examples import examples
from tests.property.test_screen import KINDS, POLICY, REQUEST

Figures = dict[str, Any]

NOTHING = ZoneCharge()
ZONE = amounts(cpu=6, memory=6, gpu=2, nic=2)
NODES = st.lists(st.tuples(st.integers(1, 3), POLICY, st.sampled_from(["container", "pod"])), min_size=1, max_size=2)
PODS = st.lists(st.tuples(KINDS, REQUEST), min_size=1, max_size=2)
STEPS = st.lists(
    st.tuples(st.sampled_from(["place", "place", "evict", "stay", "save", "rollback"]), st.integers(0, 50)),
    max_size=25,
)


def figures(columns: NodeColumns) -> Figures:
    zones = columns.zones
    named = {"used": columns.used, "releasing": columns.releasing}
    named |= {name: getattr(zones, name) for name in ("published", "assignments", "cells", "uncertain")}
    return {name: array.copy() for name, array in (named | {"zones": zones.used}).items()}


def same(one: Figures, other: Figures) -> bool:
    return all((array == other[name]).all() for name, array in one.items())


class Simulation:
    """A statement, and the slow truth: the steps that count, done again from the start."""

    def __init__(self, columns: NodeColumns) -> None:
        self.columns = columns
        self.start = columns.copy()
        self.statement = Statement(columns)
        self.there: list[PodCharge] = []
        self.gone: list[PodCharge] = []
        #: What truly happened: placements and evictions.
        self.story: list[tuple[str, PodCharge]] = []
        self.saved: list[tuple[int, Figures, Any]] = []
        self.count = 0
        #: By pod spec, as a cycle has them: pods of a class share what they ask for, and what they get on like nodes.
        self.classes: dict[str, tuple[PodClass, NumaVerdicts]] = {}

    def place(self, spec: Any, row: int) -> None:
        if repr(spec) not in self.classes:
            containers = [container(f"c{n}", kind, **request) for n, (kind, request) in enumerate(sorted_spec(spec))]
            one = pod("any", *containers)
            pods_class = pod_class(one, class_identity(one))
            numa = NumaVerdicts(self.columns, pods_class, EngineConfig(), self.statement.states)
            self.classes[repr(spec)] = pods_class, numa
        own_class, verdicts = self.classes[repr(spec)]
        if not self.columns.fits(row, own_class.requests) or not verdicts.admits(row):
            return
        predicted = verdicts.predict(row)
        self.count += 1
        asked = PodCharge(f"p{self.count}", row, own_class.requests, predicted.charge if predicted else NOTHING)
        placed = self.statement.place(asked)
        assert placed.same_place(asked), "what is predicted is what is charged"
        self.there.append(placed)
        self.story.append(("place", placed))
        assert (self.columns.zones.used <= self.columns.zones.allocatable).all()

    def evict(self, pick: int) -> None:
        if self.there:
            one = self.there.pop(pick % len(self.there))
            self.statement.evict(one)
            self.gone.append(one)
            self.story.append(("evict", one))

    def stay(self, pick: int) -> None:
        if not self.gone:
            return
        one = self.gone[pick % len(self.gone)]
        before = figures(self.columns)
        never = [step for step in self.story if step != ("evict", one)]
        if self.statement.stays_put(one):
            self.story = never
            self.gone.remove(one)
            self.there.append(one)
            assert same(figures(self.columns), figures(self.truth()))
            assert (self.columns.zones.used <= self.columns.zones.allocatable).all()
        else:
            assert same(figures(self.columns), before)

    def truth(self) -> NodeColumns:
        columns = self.start.copy()
        for what, pod_charge in self.story:
            row, zones = pod_charge.row, columns.zones
            if what == "place":
                columns.charge(row, pod_charge.requests)
                charge = zones.charge(row, pod_charge.charge)
                assert charge.split == pod_charge.charge.split
                zones.assume(row, charge)
            else:
                columns.charge(row, pod_charge.requests, sign=-1)
                zones.release(row, pod_charge.charge)
                zones.assume(row, pod_charge.charge, sign=-1)
        return columns

    def save(self) -> None:
        memory = (list(self.there), list(self.gone), list(self.story))
        self.saved.append((self.statement.savepoint(), figures(self.columns), memory))

    def rollback(self, pick: int) -> None:
        if self.saved:
            del self.saved[pick % len(self.saved) + 1 :]
            savepoint, before, memory = self.saved.pop()
            self.statement.rollback(savepoint)
            assert same(figures(self.columns), before)
            self.there, self.gone, self.story = memory


def sorted_spec(spec: Any) -> Any:
    return sorted(spec, key=lambda item: item[0] == "app")


@settings(max_examples=examples(400), deadline=None)
@given(NODES, st.lists(PODS, min_size=3, max_size=6), STEPS)
def test_statement_takes_back_any_nesting_exactly(layout: Any, pods: Any, steps: Any) -> None:
    cluster = Cluster()
    for index, (zones, policy, scope) in enumerate(layout):
        cluster.add_node(f"n{index}", *[ZONE] * zones, policy=policy, scope=scope)
    simulation = Simulation(cluster.state.columns.copy())
    first = figures(simulation.columns)
    for what, pick in steps:
        if what == "place":
            simulation.place(pods[pick % len(pods)], pick % len(layout))
        elif what == "save":
            simulation.save()
        else:
            getattr(simulation, what)(pick)
        assert same(figures(simulation.columns), figures(simulation.truth()))
    simulation.statement.rollback(0)
    assert same(figures(simulation.columns), first)


def test_a_victim_whose_zone_is_taken_moves() -> None:
    simulation = Simulation(Cluster().add_node("n1", ZONE, ZONE).state.columns.copy())
    small = [("app", {"cpu": 2, "gpu": 1})]
    simulation.place(small, 0)
    (victim,) = simulation.there
    simulation.statement.evict(victim)
    nested = simulation.statement.savepoint()
    big = simulation.statement.place(PodCharge("big", 0, amounts(cpu=5), ZoneCharge(((0, "cpu", 5000),))))
    assert not simulation.statement.stays_put(victim), "zone 0 has one CPU left"
    simulation.statement.rollback(nested)
    simulation.statement.place(PodCharge("big", 0, amounts(cpu=5), ZoneCharge(((1, "cpu", 5000),))))
    assert simulation.statement.stays_put(victim)
    assert not big.same_place(victim)
    assert np.array_equal(simulation.columns.zones.used[0, :, simulation.columns.zones.resources["cpu"]], [2000, 5000])
