"""Queues of KAI and Kueue from manifests: what stands for what, and what is refused."""

import json
from functools import partial

import pytest
from kaicore.errors import InvalidObject
from kaicore.kube.api.reflector_core import ObjectGone, ObjectKey, ObjectSeen
from kaicore.kube.kinds.facts import Facts
from kaicore.kube.kinds.table import queue_kind, subject_of_fact
from kaicore.rules.events.payloads import QueueDeleted, QueueObserved
from kaicore.rules.model.queue import FlavorQuota, Queue, QueueShare, ResourceFlavor
from kaicore.rules.queues.tree import UNLIMITED, QueueTree
from kaicore.yaml_text import load_yaml

from tests.given.work.losses import normalized_by

GI = 2**30


read = partial(normalized_by, queue_kind)


def test_queue_of_kai_is_normalized() -> None:
    queue = read("""
        apiVersion: scheduling.run.ai/v2
        kind: Queue
        metadata: {name: team-a, uid: u, creationTimestamp: "2026-01-01T00:00:00Z"}
        spec:
          parentQueue: research
          priority: 200
          preemptMinRuntime: 10m
          resources:
            cpu: {quota: 32000, limit: -1, overQuotaWeight: 1}
            memory: {quota: 1000, limit: 2000, overQuotaWeight: 2.5}
            gpu: {quota: 0.29, limit: 16.5}
    """)
    assert queue == Queue(
        name="team-a",
        uid="u",
        origin="Queue.scheduling.run.ai",
        parent="research",
        shares={
            "cpu": QueueShare(quota=32000, limit=None),
            "memory": QueueShare(quota=10**9, limit=2 * 10**9, weight=2500),
            "gpu": QueueShare(quota=0, limit=16, weight=0, quota_milli=290, limit_milli=500),
        },
        priority=200,
        created_at=1767225600,
        preempt_min_runtime_us=600_000_000,
    )


def test_what_a_queue_of_kai_leaves_out_is_nothing() -> None:
    queue = read("{apiVersion: scheduling.run.ai/v2, kind: Queue, metadata: {name: a}}")
    nothing = QueueShare(limit=0, weight=0)
    assert queue.shares == {"cpu": nothing, "memory": nothing, "gpu": nothing}
    assert queue.priority == 100


CLUSTER_QUEUE = """
    apiVersion: kueue.x-k8s.io/v1beta1
    kind: ClusterQueue
    metadata: {name: team-a}
    spec:
      namespaceSelector: {}
      cohort: research
      fairSharing: {weight: 500m}
      preemption: {reclaimWithinCohort: Any}
      resourceGroups:
      - coveredResources: [cpu, memory]
        flavors:
        - name: on-demand
          resources:
          - {name: cpu, nominalQuota: 9, borrowingLimit: 1, lendingLimit: 4}
          - {name: memory, nominalQuota: 36Gi}
        - name: spot
          resources:
          - {name: cpu, nominalQuota: "1500m", borrowingLimit: 500m}
          - {name: memory, nominalQuota: 4Gi, borrowingLimit: 1Gi}
"""


def test_a_cluster_queue_has_the_sums_over_its_flavors() -> None:
    queue = read(CLUSTER_QUEUE)
    assert (queue.name, queue.parent, queue.only_named) == ("ClusterQueue/team-a", "Cohort/research", True)
    assert queue.shares == {
        # Of spot everything is lent.
        "cpu": QueueShare(quota=10500, borrowing=1500, lendable=5500, weight=500),
        "memory": QueueShare(quota=40 * GI, weight=500),
    }
    assert queue.flavors == (
        FlavorQuota("on-demand", {"cpu": 9000, "memory": 36 * GI}),
        FlavorQuota("spot", {"cpu": 1500, "memory": 4 * GI}),
    )
    assert (queue.may_preempt, queue.may_reclaim, queue.reclaims_lower) == (False, True, False)
    lower = read(CLUSTER_QUEUE.replace("Any", "LowerPriority"))
    assert (lower.may_preempt, lower.may_reclaim, lower.reclaims_lower) == (False, True, True)
    assert read(CLUSTER_QUEUE.replace("v1beta1", "v1beta2").replace("cohort:", "cohortName:")) == queue


def test_a_cluster_queue_says_for_whom_it_borrows_and_where_its_rules_are() -> None:
    borrowing = "{policy: LowerPriority, maxPriorityThreshold: 3}"
    text = CLUSTER_QUEUE.replace("{reclaimWithinCohort: Any}", f"{{borrowWithinCohort: {borrowing}}}")
    annotated = "labels: {tier: low}, annotations: {kueue.x-k8s.io/preemption-config-name: r}"
    queue = read(text.replace("{name: team-a}", f"{{name: team-a, {annotated}}}"))
    assert (queue.borrows_from_lower, queue.most_priority_lent) == (True, 3)
    assert (queue.rules_in, queue.labels) == ("PreemptionConfig/r", {"tier": "low"})
    assert not read(CLUSTER_QUEUE.replace("Any", "Any, borrowWithinCohort: {policy: Never}")).borrows_from_lower


def test_a_rule_of_preemption_that_makes_no_sense_is_lost_alone() -> None:
    lost: list[InvalidObject] = []
    config = read(
        """
        apiVersion: kueue.x-k8s.io/v1alpha1
        kind: PreemptionConfig
        metadata: {name: r}
        spec:
          rules:
          - {name: a, activationPolicy: {trigger: Sometimes}}
          - {name: b, candidateSelectors: [{scope: Everywhere}]}
          - {name: c, preemptorSelector: {matchExpressions: [{key: k, operator: invalid}]}}
          - {name: d, activationPolicy: {trigger: Always}, candidateSelectors: [{scope: AnyClusterQueue}]}
          - {name: e, candidateSelectors: [{scope: AnyClusterQueue, priority: {mode: Boosted, comparison: LessThan}}]}
        """,
        lost.append,
    )
    assert [error.field for error in lost] == [
        "spec.rules[0].activationPolicy.trigger",
        "spec.rules[1].candidateSelectors[0].scope",
        "spec.rules[2].preemptorSelector.matchExpressions[0].operator",
    ]
    assert [(rule.name, rule.unsupported) for rule in config.rules] == [
        ("d", ""),
        ("e", "candidateSelectors[0].priority.mode Boosted"),
    ]


def test_of_a_flavor_without_quota_and_anything_to_borrow_nothing_is_used() -> None:
    text = CLUSTER_QUEUE.replace('nominalQuota: "1500m"', "nominalQuota: 0")
    assert read(text).flavors[1].quotas == {"cpu": 0, "memory": 4 * GI}, "cpu is borrowed"
    assert read(text.replace("borrowingLimit: 500m", "borrowingLimit: 0")).flavors[1].quotas == {"memory": 4 * GI}
    assert read(text.replace("cohort: research", "")).flavors[1].quotas == {"memory": 4 * GI}


def test_a_cluster_queue_without_cohort_borrows_nothing() -> None:
    queue = read(CLUSTER_QUEUE.replace("cohort: research", ""))
    assert queue.parent == ""
    assert queue.shares["memory"].borrowing == 0


@pytest.mark.parametrize(
    ("selector", "namespaces", "problem"),
    [
        ("{}", (), ""),
        ("null", (), "a namespaceSelector that is null, and selects no namespace"),
        ("{matchLabels: {kubernetes.io/metadata.name: ml}}", ("ml",), ""),
        (
            "{matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [ml, dev]}]}",
            ("dev", "ml"),
            "",
        ),
        ("{matchLabels: {team: a}}", (), "a namespaceSelector by the label team"),
        ("{matchExpressions: [{key: team, operator: Exists}]}", (), "a namespaceSelector by team Exists"),
    ],
)
def test_cluster_queue_takes_work_of_the_selected_namespaces(
    selector: str, namespaces: tuple[str, ...], problem: str
) -> None:
    queue = read(CLUSTER_QUEUE.replace("namespaceSelector: {}", f"namespaceSelector: {selector}"))
    assert queue.namespaces == namespaces
    assert queue.unsupported == ((problem,) if problem else ())


def test_a_cluster_queues_unsupported_demand_makes_its_work_wait() -> None:
    queue = read(CLUSTER_QUEUE.replace("cohort: research", "admissionChecks: [provision], stopPolicy: Hold".replace(
        ", ", "\n      ")))  # fmt: skip
    assert queue.unsupported == ("admission checks",)
    assert queue.stopped


@pytest.mark.parametrize(
    ("status", "controlled"),
    [
        ("{}", False),
        ("{conditions: null}", False),
        ("{conditions: [{type: Active, status: 'True'}]}", True),
        ("{conditions: [{type: Active, status: 'False', reason: Stopped}]}", True),
    ],
)
def test_a_cluster_queue_is_kueues_where_kueue_writes_its_status(status: str, controlled: bool) -> None:
    assert read(f"{CLUSTER_QUEUE.rstrip()}\n    status: {status}\n").controlled == controlled


def test_a_cohort_pools_and_may_have_a_parent() -> None:
    cohort = read("""
        apiVersion: kueue.x-k8s.io/v1beta1
        kind: Cohort
        metadata: {name: research}
        spec:
          parent: company
          resourceGroups:
          - coveredResources: [cpu]
            flavors: [{name: f, resources: [{name: cpu, nominalQuota: 2}]}]
    """)
    assert (cohort.name, cohort.parent, cohort.pooled) == ("Cohort/research", "Cohort/company", True)
    assert cohort.shares == {"cpu": QueueShare(quota=2000)}
    queue = read(CLUSTER_QUEUE)
    tree = QueueTree({one.name: one for one in (cohort, queue)})
    numbers = [tree.find(name) for name in ("Cohort/company", "Cohort/research", "ClusterQueue/team-a")]
    assert [tree.paths[number or 0] for number in numbers] == [(0,), (2, 0), (3, 2, 0)]
    cpu = tree.resources.index("cpu")
    assert [tree.quotas[number or 0][cpu] for number in numbers] == [12500, 12500, 10500]
    assert [tree.limits[number or 0][cpu] for number in numbers] == [12500, UNLIMITED, 12000]


def test_a_local_queue_is_another_name_for_its_cluster_queue() -> None:
    queue = read("""
        apiVersion: kueue.x-k8s.io/v1beta2
        kind: LocalQueue
        metadata: {name: user-queue, namespace: ml}
        spec: {clusterQueue: team-a}
    """)
    assert (queue.name, queue.alias_of) == ("ml/user-queue", "ClusterQueue/team-a")


def test_a_flavor_keeps_its_node_labels_and_its_topology() -> None:
    flavor = read("""
        apiVersion: kueue.x-k8s.io/v1beta1
        kind: ResourceFlavor
        metadata: {name: spot, uid: u}
        spec: {nodeLabels: {instance: spot}, topologyName: dc}
    """)
    assert flavor == ResourceFlavor("spot", "u", "", {"instance": "spot"}, topology="dc")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{kind: Queue, spec: {reclaimMinRuntime: soon}}", "spec.reclaimMinRuntime"),
        ("{kind: Queue, spec: {preemptMinRuntime: -5s}}", "spec.preemptMinRuntime"),
        ("{kind: LocalQueue, spec: {}}", "spec.clusterQueue"),
        ("{kind: ClusterQueue, spec: {fairSharing: {weight: -1}}}", "spec.fairSharing.weight"),
    ],
)
def test_what_is_impossible_is_named(text: str, field: str) -> None:
    document = load_yaml(text)
    group = "scheduling.run.ai/v2" if document["kind"] == "Queue" else "kueue.x-k8s.io/v1beta1"
    document |= {"apiVersion": group, "metadata": {"name": "a"}}
    with pytest.raises(InvalidObject) as refused:
        read(json.dumps(document))
    assert (refused.value.subject, refused.value.field) == (f"{document['kind']} a", field)


@pytest.mark.parametrize(
    ("group", "kind", "key", "name"),
    [
        ("scheduling.run.ai/v2", "Queue", ObjectKey("", "a"), "a"),
        ("kueue.x-k8s.io/v1beta1", "ClusterQueue", ObjectKey("", "a"), "ClusterQueue/a"),
        ("kueue.x-k8s.io/v1beta1", "Cohort", ObjectKey("", "a"), "Cohort/a"),
        ("kueue.x-k8s.io/v1beta1", "LocalQueue", ObjectKey("ml", "a"), "ml/a"),
    ],
)
def test_queues_are_facts(group: str, kind: str, key: ObjectKey, name: str) -> None:
    row = queue_kind(group, kind)
    assert row is not None
    metadata = {"name": key.name, "namespace": key.namespace, "uid": "u", "resourceVersion": "1"}
    document = {"apiVersion": group, "kind": kind, "metadata": metadata, "spec": {"clusterQueue": "c"}}
    facts = Facts("c")
    seen = facts.translate(row, ObjectSeen(row.resource.at("v1").decode(json.dumps(document).encode())), now=1)
    assert seen is not None
    payload = seen.events[0].payload
    assert isinstance(payload, QueueObserved)
    assert (payload.queue.name, seen.events[0].stream) == (name, f"queue/{name}")
    assert subject_of_fact(payload) == (row.name, key, payload.queue)
    gone = facts.translate(row, ObjectGone(key, "u", "2"), now=2)
    assert gone is not None
    assert gone.events[0].payload == QueueDeleted(uid="u", name=name)
    assert subject_of_fact(gone.events[0].payload) == (row.name, key, None)
