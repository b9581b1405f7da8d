"""Rows ruled out by the thousand are refused one by one, and a simple pod that is not ruled out is admitted."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.zones.numa_verdicts import NumaVerdicts
from kaicore.rules.model.pod import ContainerKind, QosClass
from kaicore.rules.numa.screen import may_admit

from tests.given.cluster.factory import Cluster, amounts, container, pod
from tests.given.examples import examples

ZONES = st.builds(
    amounts,
    cpu=st.integers(0, 6),
    memory=st.integers(0, 6),
    gpu=st.integers(0, 3),
    nic=st.integers(0, 2),
)
POLICY = st.sampled_from(["single-numa-node", "restricted", "restricted", "best-effort", "none"])
NODES = st.lists(
    st.tuples(st.lists(ZONES, min_size=1, max_size=5), POLICY, st.sampled_from(["container", "pod"])),
    min_size=1,
    max_size=4,
)
REQUEST = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from([0.5, 1, 2, 3, 5, 8]),
        "memory": st.integers(1, 9),
        "gpu": st.integers(0, 5),
        "nic": st.integers(0, 3),
    },
)
KINDS = st.sampled_from([ContainerKind.APP, ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR])
PODS = st.tuples(
    st.lists(st.tuples(KINDS, REQUEST), min_size=1, max_size=3), st.sampled_from([*QosClass, QosClass.GUARANTEED])
)


@settings(max_examples=examples(500), deadline=None)
@given(NODES, st.lists(PODS, max_size=6), PODS)
def test_rows_that_the_screen_rules_out_are_rejected_by_the_walk(layout: Any, before: Any, asked: Any) -> None:
    cluster = Cluster()
    for index, (zones, policy, scope) in enumerate(layout):
        cluster.add_node(f"n{index}", *zones, policy=policy, scope=scope)
    for index, (spec, qos) in enumerate([*before, asked]):
        ordered = sorted(spec, key=lambda item: item[0] is ContainerKind.APP)
        containers = [container(f"c{place}", kind, **request) for place, (kind, request) in enumerate(ordered)]
        cluster.add_pod(pod(f"p{index}", *containers, qos=qos))
        if index < len(before):
            cluster.cycle()
    state = cluster.state
    entry = state.pods[f"uid-p{len(before)}"]
    verdicts = NumaVerdicts(state.columns, state.classes[entry.class_key], EngineConfig())
    rows = np.arange(len(layout))
    screened = may_admit(state.columns.zones, rows, state.classes[entry.class_key].aligned)
    for row in rows.tolist():
        exact, policy = verdicts.admits(row), layout[row][1]
        assert screened[row] or not exact
        simple = len(asked[0]) == 1 and policy in ("single-numa-node", "restricted")
        if simple and not state.columns.zones.cells[row].any():
            assert screened[row] == exact
