"""The outcome of manifests on a cluster, and that nothing else changes."""

import time
from pathlib import Path
from typing import Any

import pytest
from kaicore.analysis.trial.simulation import read_world
from kaicore.analysis.trial.simulation.manifest_text import Reading, read_text
from kaicore.analysis.trial.submission.answers import Prospect, SubmitAnswer, SubmittedGroup
from kaicore.analysis.trial.submission.submit import submit
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.events import payloads
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.rules.model.node import Taint
from kaicore.rules.model.pod import Namespace, PriorityClass, Toleration
from kaicore.rules.state.fork import fork
from kaicore.rules.state.snapshot import encode_state
from kaicore.runtime.policies.loading import load_policy

from tests.given.cluster.devices import DRIVER, devices, read_class
from tests.given.cluster.factory import amounts, node, pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.groups import job as see_job
from tests.given.work.past_runs import SECOND, PastRuns
from tests.given.work.workloads import OWNER

_ZONE = amounts(cpu=16, memory=64, gpu=4)


def job(
    name: str, *, pods: int = 1, gpus: int = 4, least: int = 1, scheduler: str = "kai-ledger", more: str = ""
) -> str:
    return f"""
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}, annotations: {{kai.scheduler/batch-min-member: "{least}"}}, {more}}}
spec:
  parallelism: {pods}
  completions: {pods}
  template:
    spec:
      restartPolicy: Never
      schedulerName: {scheduler}
      containers:
      - {{name: main, image: x, resources: {{limits: {{cpu: 2, memory: 8Gi, nvidia.com/gpu: {gpus}}}}}}}
---
"""


def ask(cluster: PastRuns, text: str, **given: Any) -> SubmitAnswer:
    reading = Reading()
    read_text(reading, "manifests", text.encode(), is_json=False, named=True)
    assert not reading.problems
    body = encode_state(cluster.state)
    given = {"now": cluster.now, **given}
    answer = submit(fork(cluster.state), reading.objects, cluster.history(), **given)
    assert encode_state(cluster.state) == body
    return answer


def only(answer: SubmitAnswer) -> SubmittedGroup:
    (group,) = answer.groups
    return group


def cluster_of(nodes: int, *, history: int = 0) -> PastRuns:
    cluster = PastRuns()
    cluster.have_run("train", [300.0] * history)
    cluster.add_nodes(nodes, _ZONE)
    return cluster


def fill(cluster: PastRuns, count: int, **spec: Any) -> None:
    start = cluster.now // SECOND
    for number in range(count):
        cluster.add_pod(pod(f"train-{number}", cpu=2, memory=8, gpu=4, **({"owner": OWNER} | spec)))
    for decision in cluster.cycle().placements:
        cluster.see(cluster.state.pods[decision.uid].pod, node_name=decision.node, phase="Running", start_time=start)


def test_a_job_with_room_would_start_now_on_the_nodes_and_zones_that_the_next_cycle_chooses() -> None:
    group = only(ask(cluster_of(2), job("big", pods=2, least=2)))
    assert (group.verdict, group.message) == (Prospect.STARTS_NOW, "its 2 pods would start now")
    assert {one.node for one in group.pods} == {"n0", "n1"}
    assert [one.zones for one in group.pods] == [["node-0"], ["node-0"]]
    assert (group.kind, group.name, group.minimum) == ("Job.batch", "big", 2)
    assert (group.reasons, group.start, group.no_start) == ([], None, "")


def test_a_job_that_finds_room_for_some_pods_says_how_many() -> None:
    group = only(ask(cluster_of(2), job("wide", pods=3)))
    assert (group.verdict, group.message) == (Prospect.STARTS_NOW, "2 of its 3 pods would start now")
    assert sorted(one.status for one in group.pods) == ["Pending", "Placed", "Placed"]
    assert group.notes == [
        "it is no gang: its pods start one by one; 2 of 3 started, and hold 4 cpu, 16Gi memory, 8 nvidia.com/gpu. "
        'If they need each other, annotate the Job with kai.scheduler/batch-min-member: "3": they start together then, '
        "or not at all"
    ]
    assert only(ask(cluster_of(2), job("wide", pods=3, least=3))).notes == []


def test_a_gang_without_room_says_what_is_short_and_when_it_is_likely_to_start() -> None:
    cluster = cluster_of(2, history=20)
    fill(cluster, 1)
    cluster.after(60)
    answer = ask(cluster, job("gang", pods=2, least=2))
    group = only(answer)
    assert group.verdict is Prospect.WAITS
    assert not answer.good
    assert {reason.code for reason in group.reasons} >= {"GangDoesNotFit", "InsufficientResource"}
    assert group.start is not None
    assert group.start.p50_seconds is not None
    assert 235 <= group.start.p50_seconds <= 255
    assert group.start.text.startswith("may start in about 4 min; this is no forecast: no past forecast was checked")
    assert group.start.p50 is not None


def test_waiting_pods_that_the_same_cycle_places_are_named_for_their_room_counts_as_taken() -> None:
    cluster = cluster_of(1)
    cluster.add_pod(pod("older", cpu=2, memory=8, gpu=4, created_at=cluster.now // SECOND - 60))
    answer = ask(cluster, job("later", gpus=4))
    assert only(answer).verdict is Prospect.WAITS
    assert [(one.name, one.node) for one in answer.others_placed] == [("older", "n0")]


def test_without_history_no_time_is_given() -> None:
    cluster = cluster_of(1)
    fill(cluster, 1)
    group = only(ask(cluster, job("later")))
    assert (group.start, group.no_start) == (
        None,
        "too little history: 0 runs have ended so far, and it takes 20",
    )


def test_what_no_end_of_a_pod_helps_is_not_foretold_and_what_would_help_is_said() -> None:
    group = only(ask(cluster_of(1, history=20), job("huge", gpus=6)))
    assert (group.verdict, group.start) == (Prospect.WAITS, None)
    assert group.no_start == "what is in the way does not pass by itself"
    assert [remedy.code for remedy in group.schedulable_if] == ["FitsIf"]


def test_whom_it_would_have_evicted_is_named_and_it_starts_when_they_are_gone() -> None:
    cluster = cluster_of(1, history=20)
    high = PriorityClass(uid="u", name="high", resource_version="1", value=90)
    cluster.record("priorityclass/high", payloads.PriorityClassObserved(high))
    fill(cluster, 1)
    cluster.cycle(EngineConfig())
    text = job("urgent").replace("schedulerName", "priorityClassName: high\n      schedulerName")
    group = only(ask(cluster, text))
    assert (group.verdict, group.message) == (
        Prospect.STARTS_AFTER_EVICTIONS,
        "would start as soon as 1 pod is evicted for it",
    )
    assert [(one.name, one.node, one.reason) for one in group.evictions] == [("train-0", "n0", "Preempted")]
    assert [(one.status, one.node) for one in group.pods] == [("Nominated", "n0")]
    assert group.start is not None
    assert (group.start.p50_seconds, group.start.p90_seconds) == (30, 30)


def test_the_queues_of_the_cluster_bound_what_is_submitted() -> None:
    cluster = cluster_of(2)
    cluster.record("queue/team", payloads.QueueObserved(queue("team", limit=1)))
    group = only(ask(cluster, job("team-job", more=f"labels: {{{KAI_QUEUE_LABEL}: team}}")))
    assert group.queue == "team"
    assert group.verdict is Prospect.WAITS
    assert [reason.queue for reason in group.reasons] == ["team"]


def test_pods_tolerate_what_admission_adds_in_their_namespace() -> None:
    cluster = cluster_of(0)
    taint = Taint("nvidia.com/gpu", "NoSchedule", "present")
    cluster.record("node/n0", payloads.NodeObserved(node("n0", cpu=8, memory=64, gpu=4, taints=(taint,))))
    submitted = job("train", more="namespace: team")
    assert only(ask(cluster, submitted)).verdict is Prospect.WAITS
    tolerations = (Toleration("nvidia.com/gpu", "Exists"),)
    team = Namespace("uid-team", "team", "1", default_tolerations=tolerations)
    cluster.record("namespace/team", payloads.NamespaceObserved(team))
    assert only(ask(cluster, submitted)).verdict is Prospect.STARTS_NOW


def test_objects_that_make_no_sense_or_are_there_already_are_named_and_the_rest_goes_on() -> None:
    cluster = cluster_of(2)
    fill(cluster, 1, owner=None)
    there, wrong, bound = (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n---\n"
        for name, spec in (
            ("train-0", "containers: [{name: main}]"),
            ("wrong", "containers: [{name: main, resources: {limits: {cpu: 8x}}}]"),
            ("bound", "nodeName: n0, containers: [{name: main}]"),
        )
    )
    answer = ask(cluster, there + wrong + bound + job("fine"))
    assert [problem.partition(": ")[2] for problem in answer.problems] == [
        "Pod default/wrong: spec.containers[0].resources.limits[cpu]: not a Kubernetes quantity: '8x'",
        "Pod default/bound: names its node itself: no scheduler decides on it",
        "Pod default/train-0: is in the cluster already",
    ]
    assert only(answer).verdict is Prospect.STARTS_NOW
    assert not answer.good


def test_a_job_of_a_name_that_is_taken_is_named() -> None:
    cluster = cluster_of(1)
    see_job(cluster, "twice")
    answer = ask(cluster, job("twice"))
    assert answer.groups == []
    assert answer.problems == [
        "manifests, document 1: Job default/twice: metadata.name: is in the cluster already: 'twice'"
    ]


@pytest.mark.parametrize(
    ("scheduler", "verdict"), [("default-scheduler", Prospect.OTHER_SCHEDULER), ("''", Prospect.STARTS_NOW)]
)
def test_pods_of_another_scheduler_are_not_ours_and_pods_of_none_are_taken_for_ours(
    scheduler: str, verdict: Prospect
) -> None:
    answer = ask(cluster_of(1), job("a", scheduler=scheduler))
    assert only(answer).verdict is verdict
    named_none = ["1 pod names no scheduler: answered as if spec.schedulerName were kai-ledger"]
    assert answer.warnings == (named_none if scheduler == "''" else [])


#: Each stands for more than there is time or room for.
MANY = {
    "Job": ("batch/v1", "parallelism: 100000, template: POD", "spec.template.spec"),
    "StatefulSet": ("apps/v1", "replicas: 100000, template: POD", "spec.template.spec"),
    "JobSet": (
        "jobset.x-k8s.io/v1alpha2",
        "replicatedJobs: [{name: j, replicas: 100000,"
        " template: {spec: {parallelism: 0, completions: 0, template: POD}}}]",
        "spec",
    ),
    "LeaderWorkerSet": (
        "leaderworkerset.x-k8s.io/v1",
        "replicas: 100000, leaderWorkerTemplate: {size: 100000, workerTemplate: POD}",
        "spec.leaderWorkerTemplate.workerTemplate.spec",
    ),
    "RayCluster": (
        "ray.io/v1",
        "headGroupSpec: {template: POD},"
        " workerGroupSpecs: [{groupName: g, replicas: 100000, numOfHosts: 100000, template: POD}]",
        "spec.workerGroupSpecs[0].template.spec",
    ),
}


def test_more_pods_than_one_question_may_make_are_refused_and_no_more_are_made() -> None:
    reading = Reading()
    read_text(reading, "m", (job("a", pods=3) + job("b", pods=2) + job("c")).encode(), is_json=False, named=True)
    world = read_world(reading.objects, scheduler_name="kai-ledger", most_pods=4)
    assert [str(problem) for problem in world.problems] == [
        "m, document 2: Job default/b: spec.template.spec: more than 4 pods are made in all: 5",
        "m, document 3: Job default/c: spec: more than 4 pods are made in all: 5",
    ]
    assert len(world.pods) == 3


@pytest.mark.parametrize("kind", MANY)
def test_an_owner_of_too_many_pods_is_refused_before_they_are_made(kind: str) -> None:
    version, spec, field = MANY[kind]
    spec = spec.replace("POD", "{spec: {containers: [{name: main}]}}")
    text = f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{{spec}}}\n"
    reading = Reading()
    read_text(reading, "m", text.encode(), is_json=False, named=True)
    began = time.process_time()
    world = read_world(reading.objects, scheduler_name="kai-ledger", most_pods=100)
    assert [str(problem) for problem in world.problems] == [
        f"m, document 1: {kind} default/a: {field}: more than 100 pods are made in all: 101"
    ]
    assert time.process_time() - began < 1.0


def test_several_jobs_share_what_is_free() -> None:
    answer = ask(cluster_of(1, history=20), job("a") + job("b"))
    assert sorted(group.verdict for group in answer.groups) == [Prospect.STARTS_NOW, Prospect.WAITS]


@pytest.mark.parametrize("claims", [True, False])
def test_devices_are_had_by_claims_of_templates_and_by_extended_resources(claims: bool) -> None:
    cluster = PastRuns()
    devices(cluster, a1=2)
    served = read_class(DRIVER, extendedResourceName="nvidia.com/gpu")
    cluster.record("deviceclass/gpu", payloads.DeviceClassObserved(served))
    text = job("train", pods=3, gpus=1)
    if claims:
        uses = "restartPolicy: Never\n      resourceClaims: [{name: gpu, resourceClaimTemplateName: one}]"
        text = text.replace(", nvidia.com/gpu: 1", "").replace("restartPolicy: Never", uses)
        request = f"{{name: gpu, exactly: {{deviceClassName: {DRIVER}}}}}"
        text += f"""
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {{name: one}}
spec: {{spec: {{devices: {{requests: [{request}]}}}}}}
"""
    group = only(ask(cluster, text))
    assert sum(bool(one.node) for one in group.pods) == 2, group.reasons


def test_template_that_is_not_submitted_along_is_asked_for() -> None:
    uses = "restartPolicy: Never\n      resourceClaims: [{name: gpu, resourceClaimTemplateName: one}]"
    answer = ask(cluster_of(1), job("train").replace("restartPolicy: Never", uses))
    (warning,) = answer.warnings
    assert "ResourceClaimTemplate default/one, which is not given" in warning


def test_shard_with_policies_is_asked_with_their_code_or_a_warning_names_them() -> None:
    cluster = PastRuns()
    cluster.add_node("n0", _ZONE, _ZONE)
    loaded = load_policy(str(Path(__file__).parents[4] / "examples/policies/spot_last.py"))
    cluster.policies = PolicyBook()
    cluster.policies.add(loaded.kind, loaded.setting.digest)
    cluster.cycle(EngineConfig(policies=(loaded.setting,)))
    answer = ask(cluster, job("train"))
    assert only(answer).verdict is Prospect.STARTS_NOW
    assert answer.warnings == [
        "without policies of the shard (no code of them here, or they fail): spot-last",
    ]
    assert ask(cluster, job("train"), policies=cluster.policies).warnings == []
