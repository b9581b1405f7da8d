"""Run times of pods, by a log."""

import pytest
from kaicore.rules.deciding.forecast.runs import RunHistory
from kaicore.rules.events import payloads
from kaicore.rules.model.pod import Owner
from kaicore.rules.state.indexes.past_runs import Basis, name_pattern, run_keys

from tests.given.cluster.factory import pod
from tests.given.work.past_runs import SECOND, PastRuns


def lengths(history: RunHistory, basis: Basis = Basis.CLUSTER, key: str = "") -> list[float]:
    """Seconds; of those that were cut short negative."""
    return [round(run.duration_us / SECOND) * (1 if run.ended else -1) for run in history.runs(basis, key)]


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("train-7", "train-#"),
        ("train-llama-7b-20261101", "train-llama-7b-#"),
        ("worker12", "worker#"),
        ("backup-28391820-x7k2p", "backup-#-#"),
        ("web-7c5ddbdf54-bqxzt", "web-#-#"),
        ("bench-small", "bench-small"),
        ("train", "train"),
    ],
)
def test_names_of_one_pattern_differ_only_in_what_changes_from_run_to_run(name: str, pattern: str) -> None:
    assert name_pattern(name) == pattern


def test_runs_are_alike_by_owner_then_by_requests_then_by_queue() -> None:
    one, same = (run_keys(pod(f"a-{n}", cpu=2, owner=Owner("Job", f"train-{n}", f"u{n}"))) for n in range(2))
    assert one == same
    other = run_keys(pod("b", cpu=4, owner=Owner("Job", "train-1", "u")))
    assert other[Basis.OWNER] == one[Basis.OWNER]
    assert other[Basis.CLASS] != one[Basis.CLASS]
    assert other[Basis.QUEUE] == one[Basis.QUEUE] == "default"


def test_a_run_ends_with_its_pod_whether_that_succeeds_fails_or_is_deleted() -> None:
    cluster = PastRuns()
    cluster.ran("a-1", 60)
    cluster.ran("a-2", 90, phase="Failed")
    gone = cluster.add_pod(pod("a-3", phase="Running", node_name="n", start_time=cluster.now // SECOND))
    cluster.after(30)
    cluster.delete_pod(gone)
    assert lengths(cluster.history()) == [60, 90, 30]
    assert cluster.history().ended == 3


def test_a_run_that_was_cut_short_by_an_eviction_did_not_end() -> None:
    cluster = PastRuns()
    victim = cluster.add_pod(pod("a", phase="Running", node_name="n", start_time=cluster.now // SECOND))
    evicted = payloads.EvictionDecided(victim.uid, "default", "a", "n", "default/1", "Pod/default/a", "Preempted")
    cluster.record(f"pod/{victim.uid}", evicted)
    cluster.after(30)
    cluster.delete_pod(victim)
    assert lengths(cluster.history()) == [-30]
    assert cluster.history().ended == 0


def test_a_pod_that_its_kubelet_refused_never_ran() -> None:
    cluster = PastRuns()
    cluster.add_pod(pod("a", phase="Failed", reason="TopologyAffinityError", node_name="n", start_time=1_700_000_000))
    assert cluster.history().ended == 0


def test_pods_of_a_gang_that_begin_and_end_together_are_one_run() -> None:
    cluster = PastRuns()
    owner = Owner("Job", "train-1", "uid-job")
    start = cluster.now // SECOND
    pods = [
        cluster.add_pod(pod(f"train-1-{n}", owner=owner, phase="Running", node_name="n", start_time=start))
        for n in range(8)
    ]
    cluster.after(600)
    for one in pods:
        cluster.see(one, phase="Succeeded")
    cluster.ran("train-1-again", 60, owner=owner)
    assert lengths(cluster.history()) == [600, 60]


def test_pods_of_one_owner_that_run_one_after_the_other_are_runs_of_their_own() -> None:
    cluster = PastRuns()
    owner = Owner("Job", "array", "uid-job")
    for number in range(4):
        cluster.ran(f"array-{number}", 20, owner=owner)
    assert lengths(cluster.history()) == [20, 20, 20, 20]


def test_a_run_that_was_older_than_the_log_counts_from_the_age_at_which_the_log_begins() -> None:
    cluster = PastRuns()
    start = cluster.now // SECOND - 3600
    old = cluster.add_pod(pod("old", phase="Running", node_name="n", start_time=start))
    cluster.after(60)
    cluster.see(old, phase="Succeeded")
    (run,) = cluster.history().runs(Basis.CLUSTER, "")
    assert (run.duration_us // SECOND, run.entered_us // SECOND) == (3660, 3600)


def test_a_pod_seen_finished_twice_ran_once() -> None:
    cluster = PastRuns()
    one = cluster.add_pod(pod("a", phase="Running", node_name="n", start_time=cluster.now // SECOND))
    cluster.after(60)
    cluster.see(one, phase="Succeeded")
    cluster.after(600)
    cluster.see(one, labels={"seen": "again"})
    assert lengths(cluster.history()) == [60]
