"""Replicas of a shard in any interleaving: nothing twice, nothing beyond a limit, every group owned, replay equal."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.deciding.decide import decide
from kaicore.rules.deciding.share import Share
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.model.replicas import turns
from kaicore.rules.state.cluster_state import ClusterState, GroupOwners
from kaicore.rules.state.pods.pod_entry import Stage
from kaicore.rules.state.promises import PromiseCheck
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import amounts, pod
from tests.given.cluster.hierarchy import queue
from tests.given.examples import examples
from tests.given.logs.replaying import replayed
from tests.given.processes.replicas import Replicas
from tests.given.work.workloads import OWNER, Workloads

NAMES = ("r0", "r1", "r2", "r3")
#: Of a limit on GPUs in a queue, and of one on two queues together.
LIMIT, BOTH = 3, 5


@dataclass(frozen=True)
class Step:
    what: str
    pick: int = 0
    size: int = 1


steps = st.lists(
    st.one_of(
        st.builds(Step, st.just("pod"), st.integers(0, 3), st.integers(1, 3)),
        st.builds(Step, st.just("gang"), st.integers(0, 3), st.integers(2, 4)),
        st.builds(Step, st.sampled_from(("begin", "begin", "begin", "end", "end", "end")), st.integers(0, 3)),
        st.builds(Step, st.sampled_from(("die", "join", "bind", "finish", "delete", "restart")), st.integers(0, 99)),
    ),
    min_size=10,
    max_size=60,
)


class Story:
    """A cluster, its replicas, and what happens to them."""

    def __init__(self, layout: list[int]) -> None:
        self.cluster = Workloads()
        self.replicas = Replicas(self.cluster, EngineConfig(consolidate_groups=4))
        self.live = {"r0", "r1"}
        self.count = 0
        for number, gpus in enumerate(layout):
            zone = amounts(cpu=16, memory=64, gpu=gpus)
            self.cluster.add_node(f"n{number}", zone, zone)
        for one in (
            queue("both", quota=4, limit=BOTH),
            queue("left", "both", quota=2),
            queue("right", "both", quota=2),
            queue("tight", quota=2, limit=LIMIT),
            queue("free", quota=1),
        ):
            self.cluster.record(f"queue/{one.name}", payloads.QueueObserved(one))
        self.replicas.list(sorted(self.live))

    def take(self, step: Step) -> None:
        getattr(self, f"_{step.what}")(step)
        self.check_limits()
        self.check_owners()

    def _spec(self, step: Step) -> dict[str, Any]:
        queue = ("left", "right", "tight", "free")[step.pick]
        return {
            "labels": {"kai.scheduler/queue": queue},
            "priority": 50 if step.size < 3 else 125,
            "cpu": 1,
            "memory": 1,
            "gpu": 1,
            # Every other one has just been created: it is left to wait for other replicas.
            "created_at": self.cluster.now // 1_000_000 if self.count % 2 else self.count,
        }

    def _pod(self, step: Step) -> None:
        self.count += 1
        self.cluster.add_pod(pod(f"p{self.count}", owner=OWNER, **self._spec(step)))

    def _gang(self, step: Step) -> None:
        self.count += 1
        self.cluster.gang(f"g{self.count}", step.size, **self._spec(step))

    def _begin(self, step: Step) -> None:
        name = NAMES[step.pick]
        if name in self.live and name not in self.replicas.begun:
            self.replicas.begin(name)

    def _end(self, step: Step) -> None:
        name = NAMES[step.pick]
        if name in self.replicas.begun:
            self.replicas.end(name)

    def _die(self, step: Step) -> None:
        """A replica is found dead, which may still append what it had begun."""
        if len(self.live) > 1:
            self.live.discard(sorted(self.live)[step.pick % len(self.live)])
            self.replicas.list(sorted(self.live))

    def _join(self, step: Step) -> None:
        self.live.add(NAMES[step.pick % len(NAMES)])
        self.replicas.list(sorted(self.live))

    def _entry(self, step: Step, *stages: Stage) -> Any:
        pods = self.cluster.state.pods
        entries = [pods[uid] for uid in sorted(pods) if pods[uid].stage in stages]
        return entries[step.pick % len(entries)] if entries else None

    def _bind(self, step: Step) -> None:
        for uid in sorted(self.cluster.state.pods):
            entry = self.cluster.state.pods[uid]
            if entry.stage is Stage.PLACED:
                bound = payloads.PodBound(uid, entry.pod.namespace, entry.pod.name, entry.node)
                self.cluster.record(f"pod/{uid}", bound)

    def _delete(self, step: Step) -> None:
        if entry := self._entry(step, *Stage):
            self.cluster.delete_pod(entry.pod)

    def _finish(self, step: Step) -> None:
        if entry := self._entry(step, Stage.BOUND):
            self.cluster.delete_pod(entry.pod)

    def _restart(self, _: Step) -> None:
        saved = encode_state(self.cluster.state)
        self.cluster.state = decode_state(saved)
        assert encode_state(self.cluster.state) == saved

    def check_limits(self) -> None:
        """No queue has more than its limit, whoever of the replicas charged it."""
        accounts = self.cluster.state.queue_accounts(self.replicas.config, now=self.cluster.now)
        tree = accounts.tree
        for number, one in enumerate(tree.queues):
            for place, used in enumerate(accounts.used[number]):
                assert used <= tree.limits[number][place], (one.name, used)

    def check_owners(self) -> None:
        """The owners of waiting groups, as kept from one look to the next, equal those of a full look."""
        state = self.cluster.state
        kept = {name: set(Share(state, f"default/{name}").pending()) for name in NAMES}
        owners, state.group_owners = state.group_owners, GroupOwners()
        assert kept == {name: set(Share(state, f"default/{name}").pending()) for name in NAMES}
        state.group_owners = owners

    def settle(self) -> None:
        """Everything begun is appended, evicted pods go, and the replicas go on until nothing changes any more."""
        for name in sorted(self.replicas.begun):
            self.replicas.end(name)
        for _ in range(40):
            before = len(self.cluster.events)
            for name in sorted(self.live):
                self.replicas.begin(name)
            due = [proposal.result.due for proposal in self.replicas.begun.values() if proposal.result.due]
            for name in sorted(self.replicas.begun):
                self.replicas.end(name)
            self._bind(Step("bind"))
            for entry in list(self.cluster.state.pods.values()):
                if entry.eviction is not None:
                    self.cluster.delete_pod(entry.pod)
            self.check_limits()
            if any(event.type in {"PodPlaced", "PodDeleted"} for event in self.cluster.events[before:]):
                continue
            if not due:
                return
            self.cluster.now = max(self.cluster.now, min(due))
        raise AssertionError("it never settles")


@settings(max_examples=examples(60), deadline=None)
@given(layout=st.lists(st.integers(1, 3), min_size=1, max_size=4), happened=steps)
def test_replicas_promise_nothing_twice_and_replay_alike(layout: list[int], happened: list[Step]) -> None:
    story = Story(layout)
    for step in happened:
        story.take(step)
    story.settle()
    state = story.cluster.state
    whole = decide(state, story.replicas.config, shard="default", now=story.cluster.now, actor="scheduler")
    assert not whole.result.placements, "one scheduler for all of it would start more"
    promises = PromiseCheck(ClusterState("test"))
    for event in story.cluster.events:
        promises.take(event)
    assert promises.report.twice == []
    assert state.replicas["default"] == tuple(sorted(story.live))
    shares = [Share(state, f"default/{name}") for name in story.live]
    for key in state.workload_index.workloads:
        assert sum(share.has(key) for share in shares) == 1
    report = replayed(story.cluster.events)
    assert report.differences == []
    assert report.cycles == sum(event.type == "CycleCompleted" for event in story.cluster.events)


def _on_two_nodes(created_s: Mapping[str, int]) -> tuple[Replicas, str, str]:
    """Two replicas, the nodes that come to each first, small and large, and more pods than go on the small one.

    Both replicas know the nodes: they have left pods waiting that fit nowhere. The pods of each replica were created so
    many seconds ago.
    """
    cluster = Workloads()
    replicas = Replicas(cluster)
    replicas.list(["r0", "r1"])
    names = [f"n{number}" for number in range(20)]
    mine = (turns(names, ("r0", "r1"), "r0") == 0).tolist()
    small, large = names[mine.index(True)], names[mine.index(False)]
    for name, gpus in ((small, 1), (large, 20)):
        zone = amounts(cpu=64, memory=64, gpu=gpus)
        cluster.add_node(name, zone, zone)
    for number in range(12):
        cluster.add_pod(pod(f"no{number}", owner=OWNER, cpu=1, memory=1, gpu=50))
    assert replicas.cycle("r0") == replicas.cycle("r1") == 0
    for number in range(12):
        one = cluster.add_pod(pod(f"p{number}", owner=OWNER, cpu=1, memory=1, gpu=1))
        replica = Share(cluster.state, "default/r0").owner(cluster.state.pods[one.uid].group)
        cluster.see(one, created_at=cluster.now // 1_000_000 - created_s[replica])
    return replicas, small, large


def _nodes(replicas: Replicas, name: str) -> set[str]:
    assert replicas.begin(name)
    return {one.node for one in replicas.begun[name].result.placements}


@pytest.mark.parametrize(
    ("r0", "r1", "decided", "taken"),
    [
        pytest.param(1, 0, False, False, id="young pods leave them to a replica that is filling them"),
        pytest.param(0, 0, True, True, id="young pods get those of a replica that has decided"),
        pytest.param(30, 30, False, False, id="waiting pods leave them to a replica that fills them with pods as old"),
        pytest.param(30, 40, True, True, id="waiting pods get them once a replica has left its older pods waiting"),
        pytest.param(30, 20, False, True, id="waiting pods take them from a replica with younger ones"),
        pytest.param(30, 61, False, True, id="waiting pods take them from one that has not decided for a minute"),
    ],
)
def test_nodes_of_another_replica_are_taken_by_how_long_the_pods_of_both_have_waited(
    r0: int, r1: int, decided: bool, taken: bool
) -> None:
    replicas, small, large = _on_two_nodes({"r0": r0, "r1": r1})
    assert not decided or replicas.cycle("r1")
    assert _nodes(replicas, "r0") == ({small, large} if taken else {small})
    assert taken or _nodes(replicas, "r1") == {large}
