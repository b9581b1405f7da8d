"""Lists, and the rows of Jobs, Deployments, groups, queues and nodes."""

from typing import Any

import msgspec
import pytest
from kaicore.analysis.ask.answers import GroupRow, NodeRow, RowSelection, Why, inapplicable_filters
from kaicore.analysis.ask.explanations import why_node, why_owner, why_queue
from kaicore.analysis.ask.listing import group_called, list_pods, list_queues, list_rows, summary
from kaicore.analysis.ask.projections.projection import Projection
from kaicore.analysis.json_spelling import spelled, time_text
from kaicore.rules.events import payloads
from kaicore.rules.model.pod import Owner
from kaicore.rules.model.queue import Queue, QueueShare
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import gpus_asked

from tests.given.cluster.factory import amounts, pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.groups import source
from tests.given.work.workloads import Workloads
from tests.unit.groups.test_sources import JOB, PYTORCH, SIGS

ZONE = amounts(cpu=16, memory=64, gpu=4)


@pytest.fixture
def cluster() -> Workloads:
    """Two nodes; team-a's job runs on one of them, its other pod waits, as does a gang; a pod was rejected."""
    made = Workloads().add_node("n1", ZONE, ZONE)
    made.add_node("n2", ZONE, ready=False)
    for name, parent in (("company", ""), ("team-a", "company"), ("default", "")):
        shares = {"nvidia.com/gpu": QueueShare(quota=4)}
        made.record(
            f"queue/{name}",
            payloads.QueueObserved(
                Queue(
                    name=name,
                    uid=f"uid-{name}",
                    resource_version="1",
                    origin="Queue.scheduling.run.ai",
                    parent=parent,
                    shares=shares,
                )
            ),
        )
    job = Owner("Job", "train", "uid-job")
    labels = {"kai.scheduler/queue": "team-a"}
    runs = made.add_pod(pod("train-0", cpu=4, memory=8, gpu=4, owner=job, labels=labels))
    made.cycle()
    made.run(runs)
    made.add_pod(pod("train-1", cpu=4, memory=8, gpu=9, owner=job, labels=labels))
    web = {"pod-template-hash": "6d4b9"}
    made.add_pod(pod("web-6d4b9-x", cpu=1, memory=1, owner=Owner("ReplicaSet", "web-6d4b9", "uid-rs"), labels=web))
    made.gang("gang", 3, cpu=1, memory=1, gpu=4)
    made.cycle()
    rejected = made.add_pod(pod("unlucky", cpu=1, memory=1, node_name="n1"))
    made.see(rejected, phase="Failed", reason="TopologyAffinityError", message="Pod was rejected: …")
    return made


def known(why: Why | None) -> Why:
    assert why is not None
    return why


def names(cluster: Workloads, kind: str, **wanted: Any) -> list[str]:
    return [row.name for row in list_rows(cluster.state, kind, RowSelection(**wanted)) if not hasattr(row, "cycle")]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"pending": True}, ["gang-0", "gang-1", "gang-2", "train-1"]),
        ({"rejected": True}, ["unlucky"]),
        ({"queue": "team-a"}, ["train-0", "train-1"]),
        ({"queue": "company"}, ["train-0", "train-1"]),
        ({"node": "n1"}, ["train-0", "unlucky", "web-6d4b9-x"]),
        ({"namespace": "other"}, []),
        ({"name": "train-1"}, ["train-1"]),
    ],
)
def test_pods_are_listed_by_what_is_wanted(cluster: Workloads, wanted: dict[str, Any], expected: list[str]) -> None:
    assert names(cluster, "pods", **wanted) == expected


@pytest.mark.parametrize(
    ("kind", "wanted", "wrong"),
    [
        ("nodes", {"pending": True, "queue": "team-a"}, ["pending", "queue"]),
        ("nodes", {"rejected": True, "node": "n1", "limit": 3}, []),
        ("queues", {"rejected": True, "pending": True}, ["rejected"]),
        ("cycles", {"node": "n1"}, ["node"]),
    ],
)
def test_a_filter_that_rows_do_not_have_is_named(kind: str, wanted: dict[str, Any], wrong: list[str]) -> None:
    """It let all through, as if all nodes waited."""
    assert inapplicable_filters(kind, RowSelection(**wanted)) == wrong


def test_a_pods_row_says_how_it_stands(cluster: Workloads) -> None:
    rows = {row.name: row for row in list_pods(cluster.state, RowSelection())}
    assert {name: row.status for name, row in rows.items()} == {
        "train-0": "Running",
        "train-1": "Pending",
        "web-6d4b9-x": "Placed",
        "unlucky": "Rejected",
        **dict.fromkeys(("gang-0", "gang-1", "gang-2"), "Pending"),
    }
    assert rows["train-0"].zones == ["node-0"] or rows["train-0"].zones == ["node-1"]
    assert (rows["train-0"].queue, rows["unlucky"].queue) == ("team-a", "default")
    assert "9 needed" in rows["train-1"].message
    assert rows["unlucky"].message == "TopologyAffinityError"
    assert rows["gang-0"].group.endswith("/default/gang")
    assert rows["web-6d4b9-x"].group == ""


def test_groups_are_listed_without_the_pods_of_their_own(cluster: Workloads) -> None:
    rows = [row for row in list_rows(cluster.state, "groups", RowSelection()) if isinstance(row, GroupRow)]
    (gang,) = [row for row in rows if row.name == "gang"]
    assert (gang.minimum, gang.waiting, gang.running) == (3, 3, 0)
    assert gang.message
    asked = [entry for uid, entry in cluster.state.pods.items() if entry.group == gang.key]
    assert float(gang.gpus) * 1000 == sum(map(gpus_asked, asked)) > 0
    assert gang.created_at == time_text(min(entry.pod.created_at for entry in asked) * 1_000_000)
    assert not [row for row in rows if row.kind == "Pod"]
    asked_for = [group_called(cluster.state, "default", name) for name in ("gang", "gang-0", "web-6d4b9-x")]
    assert asked_for == [f"; did you mean '{gang.kind.partition('.')[0].lower()}/default/gang'?", "", ""]


def test_queue_of_work_that_names_none_is_the_same_in_all_lists(cluster: Workloads) -> None:
    given = {row.name: row.queue for row in list_pods(cluster.state, RowSelection())}
    assert {given["gang-0"], given["train-0"], given["unlucky"]} == {"default", "team-a"}
    groups = [row for row in list_rows(cluster.state, "groups", RowSelection()) if isinstance(row, GroupRow)]
    assert {row.name: row.queue for row in groups} == {
        row.name: given[next(name for name in given if name.startswith(row.name))] for row in groups
    }
    history = Projection(ClusterState(cluster.state.cluster), ())
    for event in cluster.events:
        history.take(event)
    assert {row.name: row.queue for row in history.changes().pods} == given


def test_a_queues_row_counts_what_is_below_it(cluster: Workloads) -> None:
    rows = {row.name: row for row in list_queues(cluster.state, RowSelection())}
    assert (rows["company"].running, rows["company"].waiting) == (1, 1)
    (gpu,) = [item for item in rows["team-a"].resources if item.resource == "nvidia.com/gpu"]
    assert (gpu.quota, gpu.allocated, gpu.requested) == ("4", "4", "13")


def test_a_nodes_row_tells_its_use_by_zone(cluster: Workloads) -> None:
    rows = {row.name: row for row in list_rows(cluster.state, "nodes", RowSelection()) if isinstance(row, NodeRow)}
    assert (rows["n1"].status, rows["n2"].status) == ("Ready", "NotReady")
    assert rows["n1"].pods == 2
    used = [item.used for zone in rows["n1"].zones for item in zone.resources if item.resource == "nvidia.com/gpu"]
    assert sorted(used) == ["0", "4"]
    assert names(cluster, "nodes", name="n2") == ["n2"]


def test_a_job_is_explained_by_its_pods(cluster: Workloads) -> None:
    why = known(why_owner(cluster.state, "Job", "default", "train"))
    assert why.verdict == "2 pods: 1 running, 1 waiting"
    assert why.uid == "uid-job"
    assert [row.name for row in why.pods] == ["train-1", "train-0"], "those that wait first"
    assert why.reasons
    assert all(reason.pods == 1 for reason in why.reasons)
    assert why_owner(cluster.state, "Job", "other", "train") is None


@pytest.mark.parametrize(
    ("manifest", "kind", "verdict"),
    [
        (
            JOB + "{suspend: true}",
            "Job",
            "has no pods: it is suspended; its controller makes them when it is resumed",
        ),
        (
            PYTORCH + "{runPolicy: {suspend: true}, pytorchReplicaSpecs: {Worker: {replicas: 8}}}",
            "PyTorchJob",
            "has no pods: it is suspended; its controller makes them when it is resumed",
        ),
        (JOB + "{}", "Job", "has no pods: its controller has made none yet, or they are gone"),
        (
            PYTORCH + "{pytorchReplicaSpecs: {Worker: {replicas: 8}}}",
            "PyTorchJob",
            "has no pods, nor has any other PyTorchJob: is a controller of the kind PyTorchJob running?",
        ),
        (SIGS.replace("name: g", "name: j") + "{minMember: 2}", "PodGroup", "has no pods: none that is there names it"),
    ],
)
def test_what_has_no_pods_says_why(cluster: Workloads, manifest: str, kind: str, verdict: str) -> None:
    made = source(manifest)
    cluster.record(f"group/{made.key}", payloads.GroupSourceObserved(made))
    why = known(why_owner(cluster.state, kind, made.namespace, "j"))
    assert why.verdict == verdict


def test_a_job_that_holds_for_some_pods_what_others_wait_for_is_said_to_be_no_gang(cluster: Workloads) -> None:
    made = source(JOB + "{parallelism: 2}")
    cluster.record(f"group/{made.key}", payloads.GroupSourceObserved(made))
    owner = Owner("Job", "j", made.uid, "batch/v1")
    for number in range(3):
        cluster.add_pod(pod(f"j-{number}", cpu=9, owner=owner))
    cluster.cycle()
    why = known(why_owner(cluster.state, "Job", "default", "j"))
    assert [one.node for one in why.pods] == ["", "n1", "n1"]
    (note,) = why.notes
    assert note.startswith("it is no gang: its pods start one by one; 2 of 3 started, and hold 18 cpu.")
    assert 'kai.scheduler/batch-min-member: "3"' in note


def test_a_deployment_is_found_by_its_replica_sets_name(cluster: Workloads) -> None:
    why = known(why_owner(cluster.state, "Deployment", "default", "web"))
    assert why.verdict == "1 pod: 1 placed, being bound"
    assert why_owner(cluster.state, "Deployment", "default", "we") is None


def test_a_pod_group_is_explained_with_its_minimum(cluster: Workloads) -> None:
    why = known(why_owner(cluster.state, "PodGroup", "default", "gang"))
    assert why.group is not None
    assert why.group.minimum == 3
    assert why.reasons[0].pods == 3
    assert [row.name for row in why.pods] == ["gang-0", "gang-1", "gang-2"]


def test_a_queue_is_explained_with_its_account_and_who_waits_in_it(cluster: Workloads) -> None:
    why = known(why_queue(cluster.state, "company"))
    assert why.queue is not None
    assert why.verdict == "2 pods: 1 running, 1 waiting"
    assert [row.name for row in why.pods] == ["train-1", "train-0"]
    assert why_queue(cluster.state, "nosuch") is None


def test_a_node_is_explained_with_its_zones_and_pods(cluster: Workloads) -> None:
    why = known(why_node(cluster.state, "n1"))
    assert why.node is not None
    assert why.verdict == "Ready, holds 2 pods"
    assert [row.name for row in why.pods] == ["train-0", "web-6d4b9-x"]
    unready = known(why_node(cluster.state, "n2"))
    assert "is not ready" in unready.notes
    assert why_node(cluster.state, "n3") is None


def test_json_is_camel_case_with_hexadecimal_hashes_and_leaves_peoples_own_names_alone() -> None:
    event = payloads.PodPlaced(
        uid="u", namespace="ns", name="p", node="n", pod_class="c", cycle="default/1", rejected_here_before=2
    )
    answer = spelled({"event": event, "my_label": b"\x01\xff"})
    assert isinstance(answer, dict)
    assert answer["my_label"] == "01ff"
    assert answer["event"]["rejectedHereBefore"] == 2
    assert answer["event"]["podClass"] == "c"


def test_every_key_of_every_answer_is_camel_case(cluster: Workloads) -> None:
    state = cluster.state
    answers = [
        summary(state),
        why_owner(state, "Job", "default", "train"),
        why_queue(state, "team-a"),
        why_node(state, "n1"),
        *(row for kind in ("pods", "groups", "queues", "nodes") for row in list_rows(state, kind, RowSelection())),
    ]
    for key in _keys(msgspec.to_builtins(answers)):
        assert "_" not in key, key


def _keys(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(key for item in value.values() for key in _keys(item))]
    return [key for item in value for key in _keys(item)] if isinstance(value, list) else []


def test_queue_of_work_that_names_none_is_listed_and_explained_with_how_to_name_another() -> None:
    cluster = Workloads().add_node("n1", cpu=64, gpu=8)
    cluster.record("queue/a", payloads.QueueObserved(queue("a", quota=4)))
    assert names(cluster, "queues") == ["a"], "no work names none"
    cluster.full(cluster.add_pod(pod("one", cpu=1, gpu=4)))
    rows = {row.name: row for row in list_queues(cluster.state, RowSelection())}
    (gpu,) = rows["default"].resources
    assert (rows["default"].kind, rows["default"].running, gpu.quota, gpu.allocated) == ("", 1, "0", "4")
    why = known(why_queue(cluster.state, "default"))
    assert why.notes == [
        "is the queue of work that names none, which is no object and has no quota; "
        "a label on its pods gives it another queue, such as kai.scheduler/queue=a, "
        "and a Queue called default takes its place"
    ]
