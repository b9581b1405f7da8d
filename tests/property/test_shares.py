"""Random clusters with shares of GPUs: no GPU is opened twice, no part is promised twice, and replays agree."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.events import payloads
from kaicore.rules.model.gpu_share import GPU, GPU_GROUP_LABEL, GPU_INDEX_ANNOTATION, WHOLE, GpuShare
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import Stage
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import amounts, container, pod
from tests.given.examples import examples
from tests.given.logs.invariants import differences
from tests.given.logs.replaying import replayed
from tests.given.work.groups import job
from tests.given.work.workloads import Workloads

ON = EngineConfig(gpu_sharing=True)
NODES = st.lists(
    st.tuples(
        st.lists(st.builds(amounts, cpu=st.integers(4, 12), memory=st.just(32), gpu=st.integers(0, 2)), max_size=2),
        st.sampled_from(("single-numa-node", "restricted", "best-effort", "none")),
        st.sampled_from((0, 0, 20_000, 40_000)),
    ),
    min_size=1,
    max_size=3,
)
SHARE = st.one_of(
    st.none(),
    st.builds(GpuShare, milli=st.sampled_from((100, 250, 333, 500, 700, 999)), devices=st.sampled_from((1, 1, 1, 2))),
    st.builds(GpuShare, mib=st.sampled_from((5_000, 20_000, 30_000)), devices=st.sampled_from((1, 1, 2))),
)
GROUPS = st.tuples(
    st.integers(1, 3),
    st.integers(0, 3),
    st.fixed_dictionaries({"cpu": st.integers(1, 3), "priority": st.integers(0, 3)}),
    SHARE,
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("fail", "end", "reserve", "reserve", "lose", "close", "restart", "go")), st.integers(0, 99)
    ),
    max_size=6,
)
ROUNDS = st.lists(st.tuples(st.lists(GROUPS, max_size=3), STEPS), min_size=1, max_size=5)


class Story:
    """A cluster to which things happen, looked at after every cycle."""

    def __init__(self, layout: list[Any]) -> None:
        self.cluster = Workloads()
        self.cluster.compares_indexes = True
        self.groups = 0
        self.opened: set[str] = set()
        self.reserved = 0
        for number, (zones, policy, memory) in enumerate(layout):
            labels = {"nvidia.com/gpu.memory": str(memory)} if memory else {}
            held = {} if zones else {"cpu": 8, "gpu": 2}
            self.cluster.add_node(f"n{number}", *zones, policy=policy, labels=labels, **held)

    @property
    def state(self) -> ClusterState:
        return self.cluster.state

    def gang(self, count: int, least: int, spec: dict[str, Any], share: GpuShare | None) -> None:
        self.groups += 1
        name = f"g{self.groups}"
        held = {"gpu": 1} if share is None else {"gpu_share": share}
        owner = job(self.cluster, f"j{self.groups}", spec={"backoffLimit": 9})
        least = min(least, count)
        self.cluster.gang(name, count, least=least, created_at=self.groups, owner=owner, **spec, **held)

    def cycle(self) -> CycleResult:
        known = set(self.state.shared_gpus.groups)
        exposed = {group.opened.node: group.opened.group for group in self.state.shared_gpus.exposed}
        result = self.cluster.cycle(ON)
        for decision in result.decisions:
            if isinstance(decision, payloads.GpuOpened):
                assert decision.group not in self.opened, "a GPU group is opened once"
                assert decision.node not in exposed, "its kubelet may give it the GPU that pods share"
                self.opened.add(decision.group)
                known.add(decision.group)
            elif isinstance(decision, payloads.PodPlaced):
                self._has_its_parts(decision, known)
                whole = GPU in self.state.pods[decision.uid].requests
                assert not (whole and decision.node in exposed), "its kubelet may give it the GPU that pods share"
                assert not {part.group for part in decision.gpus} & set(exposed.values())
        self._nothing_is_held_twice()
        return result

    def _has_its_parts(self, placed: payloads.PodPlaced, known: set[str]) -> None:
        share = self.state.pods[placed.uid].pod.gpu_share
        groups = [part.group for part in placed.gpus]
        assert len(set(groups)) == len(groups) == (0 if share is None else share.devices)
        for part in placed.gpus:
            assert share is not None
            group = self.state.shared_gpus.groups[part.group]
            assert part.group in known, "opened before, or earlier in the same append"
            assert (group.opened.node, group.closed) == (placed.node, "")
            memory = int(self._node(placed.node).labels.get("nvidia.com/gpu.memory", 0))
            assert part.milli == (share.milli or -(-share.mib * WHOLE // memory))

    def _nothing_is_held_twice(self) -> None:
        columns = self.state.columns
        for row, name in enumerate(columns.names):
            column = columns.resources.get(GPU)
            if column is not None:
                assert columns.used[row, column] <= columns.allocatable[row, column], name
            assert all(free >= 0 for free, _ in columns.gpus.free(row)), name

    def _node(self, name: str) -> Any:
        return self.state.columns.facts[self.state.columns.row(name)]

    # What happens between cycles.

    def start(self, result: CycleResult) -> None:
        for decision in result.placements:
            if self.state.pods[decision.uid].stage is Stage.PLACED:
                self.cluster.run(self.state.pods[decision.uid].pod)

    def fail(self, pick: int) -> None:
        placed = [entry for entry in self.state.pods.values() if entry.stage is Stage.PLACED and entry.gpus]
        for entry in placed[pick % len(placed) :][:1] if placed else ():
            one = entry.pod
            failed = payloads.BindFailed(
                uid=one.uid,
                namespace=one.namespace,
                name=one.name,
                node=entry.node,
                attempts=1,
                code=409,
                reason="Conflict",
                message="",
            )
            self.cluster.record(f"pod/{one.uid}", failed)

    def end(self, pick: int) -> None:
        running = [entry.pod for entry in self.state.pods.values() if entry.stage is Stage.BOUND and entry.gpus]
        for one in running[pick % len(running) :][:1] if running else ():
            self.cluster.delete_pod(one)

    def reserve(self, pick: int) -> None:
        """The binder has made reservation pods, also anew, and the watcher has seen them, with a GPU or before."""
        for number, (name, group) in enumerate(list(self.state.shared_gpus.groups.items())):
            gone = not group.uid and bool(group.parts)
            silent = bool(group.uid) and not group.found
            if ((gone and self._has_free_gpu(group.opened.node)) or silent) and not group.closed:
                self.reserved += gone or group.planned
                opened = group.opened
                seen: dict[str, Any] = {"namespace": opened.namespace, "node_name": opened.node, "phase": "Running"}
                seen |= {"labels": {GPU_GROUP_LABEL: name}, "scheduler_name": "default-scheduler"}
                known = group.uid if group.uid and not group.planned else f"reservation-{self.reserved}"
                seen |= {"uid": known, "resource_version": str(len(self.cluster.events))}
                if pick % 4:
                    seen["annotations"] = {GPU_INDEX_ANNOTATION: str((pick + number) % 3 // 2)}
                self.cluster.add_pod(pod(opened.name, container("resource-reservation", gpu=1), **seen))

    def _has_free_gpu(self, node: str) -> bool:
        """True if its kubelet admits one more pod that asks for a GPU."""
        columns = self.state.columns
        row, gpu = columns.row(node), columns.resources[GPU]
        return bool(columns.used[row, gpu] < columns.allocatable[row, gpu])

    def lose(self, pick: int) -> None:
        """A reservation pod is deleted by someone."""
        held = [group for group in self.state.shared_gpus.groups.values() if group.uid and not group.planned]
        for group in held[pick % len(held) :][:1] if held else ():
            self.cluster.delete_pod(self.state.pods[group.uid].pod)

    def close(self, pick: int) -> None:
        """The binder closes what no pod has a part of, and deletes the reservation pod afterwards."""
        for name, group in list(self.state.shared_gpus.groups.items()):
            if not group.parts and not group.closed:
                node, uid = group.opened.node, group.uid
                self.cluster.record(f"node/{node}", payloads.GpuClosed(node, name, "Unused"))
                if uid in self.state.pods:
                    self.cluster.delete_pod(self.state.pods[uid].pod)

    def restart(self, pick: int) -> None:
        again = decode_state(encode_state(self.state))
        assert encode_state(again) == encode_state(self.state)
        self.cluster.state = again

    def go(self, pick: int) -> None:
        for entry in list(self.state.pods.values()):
            if entry.evicting:
                self.cluster.delete_pod(entry.pod)

    def check_replay(self) -> None:
        events = self.cluster.events
        assert replayed(events).differences == []
        assert encode_state(ClusterState(self.cluster.cluster).fold_all(events)) == encode_state(self.state)


#: A reservation pod is lost, and made anew, while the last pod that shares its GPU is evicted.
LOST_ON_THE_WAY_OUT = (
    [([amounts(cpu=4, memory=32, gpu=1)], "single-numa-node", 0)],
    [
        ([(1, 0, {"cpu": 1, "priority": 0}, GpuShare(milli=100))], [("reserve", 1)]),
        ([(1, 0, {"cpu": 1, "priority": priority}, None) for priority in (0, 0, 1)], [("lose", 0), ("reserve", 0)]),
    ],
)


@settings(max_examples=examples(120), deadline=None)
@given(NODES, ROUNDS)
@example(*LOST_ON_THE_WAY_OUT)
def test_no_gpu_is_opened_and_no_part_is_promised_twice(layout: Any, rounds: Any) -> None:
    story = Story(layout)
    for groups, steps in rounds:
        for group in groups:
            story.gang(*group)
        result = story.cycle()
        if len(groups) % 2:
            story.start(result)
        for what, pick in steps:
            getattr(story, what)(pick)
    assert differences(story.state) == []
    story.check_replay()


@settings(max_examples=examples(40), deadline=None)
@given(NODES, st.lists(GROUPS, min_size=1, max_size=5))
def test_cycles_with_shares_come_to_rest(layout: Any, groups: Any) -> None:
    story = Story(layout)
    for group in groups:
        story.gang(*group)
    for _ in range(30):
        result = story.cycle()
        story.start(result)
        if not list(result.decisions):
            break
        story.go(0)
        story.reserve(0)
        story.close(0)
    else:
        raise AssertionError("cycles go on deciding")
    story.check_replay()
