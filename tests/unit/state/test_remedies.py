"""The time when the pods of a state would become schedulable: worked out once for groups that are alike."""

from kaicore.rules.deciding.why import MOST_SHAPES, StateRemedies
from kaicore.rules.engine.config import EngineConfig

from tests.given.cluster.factory import pod
from tests.given.work.workloads import Workloads


def texts(cluster: Workloads) -> dict[str, list[str]]:
    """The codes of when pods would become schedulable, by pod."""
    answers = StateRemedies(cluster.state, EngineConfig())
    return {entry.pod.name: [reason.code for reason in answers.of(entry)] for entry in cluster.state.pods.values()}


def test_pods_of_a_kind_are_told_the_same() -> None:
    cluster = Workloads().add_node("n1", cpu=8)
    cluster.full(cluster.add_pod(pod("runs", cpu=7)))
    for number in range(3):
        cluster.add_pod(pod(f"new-{number}", cpu=4))
    cluster.add_pod(pod("theirs", cpu=4, scheduler_name="default-scheduler"))
    cluster.cycle()
    both = ["FitsIf", "FitsAfter"]
    assert texts(cluster) == {"runs": [], "theirs": [], "new-0": both, "new-1": both, "new-2": both}


def test_pod_that_is_not_to_start_next_has_no_remedy() -> None:
    cluster = Workloads().add_node("n1", cpu=8)
    cluster.gang("g", 1, least=1, cpu=9)
    cluster.members("g", [1], cpu=10)
    cluster.cycle()
    assert texts(cluster) == {"g-0": ["FitsIf"], "g-1": []}


def test_remedies_are_worked_out_for_a_limited_number_of_shapes() -> None:
    cluster = Workloads().add_node("n1", cpu=1, memory=1)
    for number in range(MOST_SHAPES + 5):
        cluster.add_pod(pod(f"p{number}", cpu=1, memory=2 + number))
    cluster.cycle()
    assert sum(map(bool, texts(cluster).values())) == MOST_SHAPES
