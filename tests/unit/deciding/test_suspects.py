"""Suspect nodes: which nodes fail what is put on them, and which work fails by itself."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from kaicore.rules.deciding.replay import KNOWN_BEFOREHAND, Replay
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.placement.pod_class import WorkKind
from kaicore.rules.events.payloads import NodeCleared, NodeObserved, NodeSuspected
from kaicore.rules.model.pod import Owner
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import decode_state, encode_state
from msgspec.structs import replace

from tests.factory import node, pod
from tests.workloads import Workloads

_SECOND_US = 1_000_000
_ALL = ("",)
CONFIG = EngineConfig()


class Fleet(Workloads):
    """Nodes `n0`, `n1`, … of one GPU; pods end one after the other before the next comes, first on `n0`.

    Attributes:
        bad: nodes that kill each pod within five seconds.
        broken: works that fail likewise wherever they are.
    """

    def __init__(self, nodes: int = 5, *, bad: Sequence[str] = (), broken: Sequence[str] = ()) -> None:
        super().__init__()
        self.bad, self.broken, self._pods = set(bad), set(broken), 0
        for number in range(nodes):
            self.add_node(f"n{number}", cpu=8, gpu=1)

    def start(self, work: str, config: EngineConfig = CONFIG, **spec: Any) -> str:
        """A pod of a work comes and starts; returns its node, empty where it gets none."""
        self._pods += 1
        spec = {"cpu": 1, "gpu": 1, "created_at": self.now // _SECOND_US} | spec
        self.last = self.add_pod(pod(f"{work}-{self._pods}", owner=Owner("Job", work, f"uid-{work}"), **spec))
        self.cycle(config)
        where = self.state.pods[self.last.uid].node
        if where:
            self.run(self.last)
        return where

    def end(self, *, failed: bool, after_s: int) -> None:
        """The last pod ends."""
        self.now += after_s * _SECOND_US
        self.see(self.last, phase="Failed" if failed else "Succeeded")
        self.delete_pod(self.last)

    def try_one(self, work: str, config: EngineConfig = CONFIG, **spec: Any) -> str:
        """A pod of a work comes, and ends if it starts; returns its node."""
        where = self.start(work, config, **spec)
        failed = where in self.bad or work in self.broken
        if where:
            self.end(failed=failed, after_s=5 if failed else 90)
        else:
            self.delete_pod(self.last)
        return where

    def seen(self, name: str, **changed: Any) -> None:
        """The watcher sees a node changed."""
        self.record(f"node/{name}", NodeObserved(replace(node(name, cpu=8, gpu=1), **changed)))

    def suspects(self) -> dict[str, tuple[str, ...]]:
        """The works for which nodes are suspect; none named where all of the kind are kept off."""
        return {one.suspected.node: one.suspected.works for one in self.state.node_trials.suspects.values()}

    def news(self) -> list[str]:
        """What was recorded of suspect nodes, in order."""
        found = []
        for one in map(self.payload_of, self.events):
            if isinstance(one, NodeSuspected):
                found.append(f"{one.node} suspect")
            elif isinstance(one, NodeCleared):
                found.append(f"{one.node} {one.reason}")
        return found

    @staticmethod
    def payload_of(event: Any) -> Any:
        """What an event says."""
        from kaicore.rules.events.codec import decode_payload  # noqa: PLC0415

        return decode_payload(event)


def known(fleet: Fleet) -> None:
    """The work `a` has run on `n1`."""
    fleet.seen("n0", unschedulable=True)
    assert fleet.start("a") == "n1"
    fleet.end(failed=False, after_s=90)
    fleet.seen("n0")


def tries(*works: str) -> Callable[[Fleet], list[str]]:
    return lambda fleet: [fleet.try_one(work) for work in works]


@pytest.mark.parametrize(
    ("bad", "broken", "works", "where", "suspects"),
    [
        pytest.param("n0", "", "known a a a a b", "n0 n0 n0 n1 n1", {"n0": ()}, id="work that ran elsewhere"),
        pytest.param("n0", "", "a b c a d", "n0 n0 n0 n1 n1", {"n0": ()}, id="three works"),
        pytest.param("n0", "", "a a a b", "n0 n0 n0 n0", {"n0": ("a", "b")}, id="work that was tried nowhere else"),
        pytest.param("n0", "", "a a a a b", "n0 n0 n0 n1 n1", {"n0": ()}, id="then it ran elsewhere"),
        pytest.param("", "a", "a a a b", "n0 n0 n0 n0", {"n0": ("a",)}, id="broken work, before it shows"),
        pytest.param("", "a", "a a a a a a a b", "n0 n0 n0 n1 n1 n1 n2 n0", {}, id="broken work"),
        pytest.param("", "a", "known a a a a a b", "n0 n0 n0 n1 n1 n1", {}, id="work that broke later"),
        pytest.param("", "a", "a b a b a b a b", "n0 n0 n0 n0 n0 n0 n0 n0", {}, id="others last in between"),
        pytest.param(
            "n0 n1",
            "",
            "known a a a a b c d",
            "n0 n0 n0 n1 n1 n1 n1",
            {"n0": (), "n1": ("a", "b", "c", "d")},
            id="no more than a part",
        ),
    ],
)
def test_node_is_suspect_after_failures_in_a_row_that_do_not_follow_the_work(
    bad: str, broken: str, works: str, where: str, suspects: dict[str, tuple[str, ...]]
) -> None:
    fleet = Fleet(bad=bad.split(), broken=broken.split())
    todo = works.split()
    if todo[0] == "known":
        known(fleet)
        todo = todo[1:]
    got = " ".join(fleet.try_one(work) for work in todo)
    assert got == where, fleet.news()
    fleet.try_one("last")
    print(fleet.news())
    assert {name: tuple(one.split("/")[-1] for one in some) for name, some in fleet.suspects().items()} == suspects
