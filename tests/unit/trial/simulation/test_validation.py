"""Objects that an API server would refuse are errors with their place; dropped parts are warnings."""

from pathlib import Path

import pytest

from tests.given.logs.simulating import GPU, brief, document_of, node, pod, world_of

NODE_AFFINITY = (
    "affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: "
    "[{{matchExpressions: [{{key: a, operator: {}, values: [b]}}]}}]}}}}}}"
)
BAD_AFFINITY = NODE_AFFINITY.format("Almost")
SPREAD = "topologySpreadConstraints: [{{maxSkew: {}, topologyKey: a, whenUnsatisfiable: {}}}]"
DEPLOYMENT = "---\napiVersion: apps/v1\nkind: {}\nmetadata: {{name: d}}\nspec: {}\n"
TEMPLATE = "template: {metadata: {labels: {a: b}}, spec: {containers: [{name: m}]}}"


def using(resources: str) -> str:
    return f"---\napiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{{name: m, {resources}}}]}}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (pod("a", spec="tolerations: [{operator: Bogus}]"), "spec.tolerations[0].operator: is none of"),
        (pod("a", spec="tolerations: [{operator: Equal}]"), "spec.tolerations[0].operator: must be Exists where"),
        (pod("a", spec="tolerations: [{key: a, effect: Never}]"), "spec.tolerations[0].effect: is none of"),
        (pod("a", spec=BAD_AFFINITY), "matchExpressions[0].operator: is none of In, NotIn"),
        (pod("a", spec=NODE_AFFINITY.format("Gt")), "matchExpressions[0].values: not values of Gt: ('b',)"),
        (pod("a", spec=SPREAD.format(0, "DoNotSchedule")), "spec.topologySpreadConstraints[0].maxSkew: not from 1"),
        (pod("a", spec=SPREAD.format(1, "X")), "topologySpreadConstraints[0].whenUnsatisfiable: neither"),
        (pod("a", spec="restartPolicy: Whenever"), "spec.restartPolicy: is none of Always, OnFailure, Never: 'Wh"),
        (pod("a", status="{phase: Dancing}"), "status.phase: is none of"),
        (pod("a", spec="nodeSelector: {a: 'not one'}"), "spec.nodeSelector[a]: not a label's value: 'not one'"),
        (pod("a", spec="hostNetwork: 'yes'"), "spec.hostNetwork: must be true or false: 'yes'"),
        (pod("'A B/..'"), "metadata.name: not a name"),
        (pod("a", metadata="namespace: A_b"), "metadata.namespace: not the name of a namespace"),
        (pod("a").replace("apiVersion: v1", "apiVersion: v7"), "apiVersion: there is no Pod but of v1: 'v7'"),
        (
            using(f"resources: {{limits: {{{GPU}: 1500m}}}}"),
            f"resources.limits[{GPU}]: must be a whole number: '1500m'",
        ),
        (
            using(f"resources: {{requests: {{{GPU}: 1}}, limits: {{{GPU}: 2}}}}"),
            f"spec.containers[0].resources.requests[{GPU}]: must be as much as the limit of 2: 1",
        ),
        (using("resources: {limits: {gpu: 1}}"), "spec.containers[0].resources.limits: not a resource of containers"),
        (node().replace("cpu: 16", "cpu: -1"), "Node n1: status.allocatable[cpu]: negative quantity: '-1'"),
        (
            "{apiVersion: v1, kind: Node, metadata: {name: n}, spec: {taints: [{key: a, effect: Soon}]}}",
            "Node n: spec.taints[0].effect: is none of",
        ),
        (
            DEPLOYMENT.format("Deployment", f"{{selector: {{matchLabels: {{a: c}}}}, {TEMPLATE}}}"),
            "d: spec.template.metadata.labels: the owner's selector does not select them: {'a': 'b'}",
        ),
        (
            DEPLOYMENT.format("StatefulSet", f"{{replicas: 0, {TEMPLATE.replace('name: m', 'name: M')}}}"),
            "StatefulSet default/d: spec.template.spec.containers[0].name: a container's name",
        ),
        (
            DEPLOYMENT.format("DaemonSet", "{template: {spec: {containers: [{name: m}], " + BAD_AFFINITY + "}}}"),
            "DaemonSet default/d: spec.template.spec.affinity.nodeAffinity.required",
        ),
        (
            "{apiVersion: batch/v1, kind: Job, metadata: {name: j}, spec: {template: {spec: {restartPolicy: Always, "
            "containers: [{name: m}]}}}}",
            "Job default/j: spec.template.spec.restartPolicy: pods of a Job have OnFailure or Never: 'Always'",
        ),
    ],
)
def test_what_an_api_server_would_refuse_is_named(tmp_path: Path, text: str, problem: str) -> None:
    (named,) = world_of(text, tmp_path).problems
    assert problem in str(named)
    assert str(named).startswith(f"{tmp_path}/m.yaml, document ")


def test_unknown_fields_are_reported_once_for_a_kind(tmp_path: Path) -> None:
    jobs = "".join(
        f"---\napiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {{name: {name}}}\nspec: "
        "{replicatedJobs: [{name: w, replicas: 2, template: {spec: {template: {spec: {nodeSelektor: {a: b}, "
        "containers: [{name: c}]}}}}}]}\n"
        for name in ("j", "k")
    )
    typo = using("resorces: {requests: {cpu: 900}}")
    world = world_of(f"{node()}{typo}{typo.replace('name: a', 'name: b')}{jobs}", tmp_path)
    assert brief(document_of(world))["a"] == "n1"
    where = f"{tmp_path}/m.yaml, document"
    rest = "there is no such field; what it says is not read"
    twice = "(in 2 objects like this)"
    assert world.warnings == [
        f"{where} 3: Pod default/a: spec.containers[0].resorces: {rest}; did you mean 'resources'? {twice}",
        f"{where} 5: JobSet default/j: spec.replicatedJobs[0].template.spec.template.spec.nodeSelektor: {rest}; "
        f"did you mean 'nodeSelector'? {twice}",
    ]


def test_a_device_without_a_limit_is_asked_for_all_the_same(tmp_path: Path) -> None:
    alone = using(f"resources: {{requests: {{{GPU}: 2}}}}")
    world = world_of(f"{node(gpus=2, zones=1)}{alone}{alone.replace('name: a', 'name: b')}", tmp_path)
    assert brief(document_of(world)) == {"a": "n1 node-0", "b": "Pending InsufficientResource"}
    (warning,) = world.warnings
    assert f"a: spec.containers[0].resources.requests[{GPU}]: an API server asks for a limit of as much" in warning


RUNTIME_CLASS = """---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: kata}
handler: kata
overhead: {podFixed: {cpu: 3}}
scheduling: {nodeSelector: {kata: 'yes'}, tolerations: [{key: kata, operator: Exists}]}
"""
KATA_NODES = """---
apiVersion: v1
kind: Node
metadata: {name: plain}
status: {allocatable: {cpu: 64}}
---
apiVersion: v1
kind: Node
metadata: {name: small, labels: {kata: 'yes'}}
spec: {taints: [{key: kata, effect: NoSchedule}]}
status: {allocatable: {cpu: 4}}
"""


def test_a_runtime_class_adds_its_overhead_and_its_nodes(tmp_path: Path) -> None:
    kata = using("resources: {requests: {cpu: 1}}").replace("spec: {", "spec: {runtimeClassName: kata, ")
    world = world_of(KATA_NODES + RUNTIME_CLASS + kata, tmp_path)
    assert (brief(document_of(world)), world.warnings) == ({"a": "small"}, [])
    larger = world_of(KATA_NODES + RUNTIME_CLASS + kata.replace("cpu: 1", "cpu: 2"), tmp_path)
    (waits,) = document_of(larger)["pods"]
    assert [reason["message"] for reason in waits["reasons"]][
        1
    ] == "1 node too small: cpu: 5 needed, 4 in all (such as small)"
    missing = world_of(KATA_NODES + kata, tmp_path)
    assert brief(document_of(missing)) == {"a": "plain"}
    assert missing.warnings == ["RuntimeClass kata: there is none; no overhead and any nodes for pods that name it: 1"]
    contrary = kata.replace("spec: {", "spec: {nodeSelector: {kata: 'no'}, ")
    (problem,) = world_of(KATA_NODES + RUNTIME_CLASS + contrary, tmp_path).problems
    assert "Pod default/a: spec.nodeSelector[kata]: RuntimeClass kata wants yes there: 'no'" in str(problem)


def test_all_faults_of_an_object_are_named_at_once(tmp_path: Path) -> None:
    pod = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: Upper, labels: {a: '-'}}\nspec: {containers: [{name: m, "
        "resources: {requests: {cpu: many}, limits: {nvidia.com/gpu: 1.5}}}]}\n"
    )
    fields = [problem.field for problem in world_of(pod, tmp_path).problems]
    assert len(fields) == len(set(fields)) == 4
    assert {field.partition("[")[0] for field in fields} == {
        "metadata.name",
        "metadata.labels",
        "spec.containers",
    }
    types = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: 7, priority: high, nodeName: [x]}\n"
    problems = [str(problem).split("Pod default/a: ")[1] for problem in world_of(types, tmp_path).problems]
    assert problems == [
        "spec.containers: must be a list: 7",
        "spec.priority: must be a whole number: 'high'",
        "spec.nodeName: must be a text: ['x']",
    ]


def test_a_limit_that_is_no_amount_hides_no_other_fault(tmp_path: Path) -> None:
    """Compared with its request it ended the check: a fault of no object and no field, and none of what came after."""
    bad = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [\n"
        "  {name: a, resources: {requests: {memory: 1Gi}, limits: {memory: abc}}},\n"
        "  {name: a, resources: {requests: {cpu: -1}}}]}\n"
    )
    problems = world_of(bad, tmp_path).problems
    assert all(problem.subject.endswith("Pod default/p") for problem in problems)
    assert [problem.field for problem in problems] == [
        "spec.containers[0].resources.limits[memory]",
        "spec.containers[1].name",
        "spec.containers[1].resources.requests[cpu]",
    ]


def test_a_namespace_adds_what_its_pods_tolerate(tmp_path: Path) -> None:
    annotations = """{scheduler.alpha.kubernetes.io/defaultTolerations: '[{"key": "kata", "operator": "Exists"}]'}"""
    namespace = f"---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: default, annotations: {annotations}}}\n"
    only_small = using("resources: {requests: {cpu: 1}}").replace("spec: {", "spec: {nodeSelector: {kata: 'yes'}, ")
    assert brief(document_of(world_of(KATA_NODES + only_small, tmp_path))) == {
        "a": "Pending NodeSelectorMismatch,UntoleratedTaint"
    }
    assert brief(document_of(world_of(namespace + KATA_NODES + only_small, tmp_path))) == {"a": "small"}
