"""Whatever stands in a field of a manifest, it is simulated or it is named: nothing else happens."""

import asyncio
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from kai_apiserver.kinds.metadata import validate_metadata
from kai_apiserver.kinds.small_kinds import NO_RULES, RULES
from kai_apiserver.resources.types import Mismatch, decode
from kai_fleet.offline import OfflineKubelets
from kaicore.analysis.trial.simulation import Located, read_world, simulate
from kaicore.rules.engine.config import EngineConfig
from kaicore.yaml_text import load_yaml_all

from tests.given.examples import examples
from tests.given.logs.simulating import node, pod, record

TEMPLATE = """{metadata: {labels: {app: d}}, spec: {nodeSelector: {a: b}, tolerations: [{key: a, operator: Exists}],
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions:
[{key: a, operator: In, values: [b]}]}]}}}, volumes: [{name: v}], initContainers: [{name: i, restartPolicy: Always}],
containers: [{name: m, ports: [{containerPort: 80, hostPort: 80}],
resources: {limits: {nvidia.com/gpu: 1}, requests: {cpu: 1}}}]}}"""
OWNER = "---\napiVersion: {}\nkind: {}\nmetadata: {{name: {}, annotations: {{{}: rack}}}}\nspec: {}\n"
OWNERS = [
    ("batch/v1", "Job", "{parallelism: 2, completions: 3, completionMode: Indexed, template: POD}"),
    ("apps/v1", "Deployment", "{replicas: 1, template: POD}"),
    ("apps/v1", "DaemonSet", "{template: POD}"),
    (
        "apps/v1",
        "StatefulSet",
        "{ordinals: {start: 1}, volumeClaimTemplates: [{metadata: {name: c}}], template: POD}",
    ),
    (
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        "{replicatedJobs: [{name: a, dependsOn: [{name: b, status: Ready}], template: {spec: {template: POD}}}]}",
    ),
    (
        "batch.volcano.sh/v1alpha1",
        "Job",
        "{minAvailable: 1, queue: q, priorityClassName: x, schedulerName: kai-ledger, policies: [{event: PodEvicted, "
        "action: RestartJob}], volumes: [{volumeClaimName: c}], tasks: [{name: w, replicas: 1, template: POD}]}",
    ),
    (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        "{leaderWorkerTemplate: {size: 2, subGroupPolicy: {subGroupSize: 1}, workerTemplate: POD, "
        "leaderTemplate: POD}}",
    ),
    (
        "kubeflow.org/v1",
        "PyTorchJob",
        "{runPolicy: {suspend: false}, pytorchReplicaSpecs: {Master: {template: POD}, Worker: {template: POD}}}",
    ),
    (
        "kubeflow.org/v2beta1",
        "MPIJob",
        "{mpiReplicaSpecs: {Launcher: {template: POD}, Worker: {replicas: 1, template: POD}}}",
    ),
    (
        "ray.io/v1",
        "RayJob",
        "{submitterPodTemplate: POD, rayClusterSpec: {enableInTreeAutoscaling: true, headGroupSpec: {template: POD}, "
        "workerGroupSpecs: [{groupName: g, replicas: 1, minReplicas: 0, maxReplicas: 3, template: POD}]}}",
    ),
]
EXCLUSIVE = {
    "JobSet": "alpha.jobset.sigs.k8s.io/exclusive-topology",
    "LeaderWorkerSet": "leaderworkerset.sigs.k8s.io/exclusive-topology",
}
OBJECTS: list[dict[str, Any]] = list(
    load_yaml_all(
        node()
        + node("n2", policy="restricted")
        + pod("a", spec="nodeName: n1", status="{phase: Running}", metadata=record("observed", node_0="cpu: 1"))
        + pod("b", spec="priorityClassName: x, schedulingGates: [{name: g}]")
        + "---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: x}\nvalue: 3\n"
        + "".join(
            OWNER.format(version, kind, kind.lower(), EXCLUSIVE.get(kind, "a"), spec.replace("POD", TEMPLATE))
            for version, kind, spec in OWNERS
        )
    )
)
JUNK = [
    None,
    0,
    -1,
    1.5,
    "x",
    "",
    [],
    {},
    [1],
    {"a": 1},
    True,
    2**40,
    10**30,
    [None],
    "\0",
    {"a": None},
    "1Ei",
    [[]],
    [{}],
]

Path = tuple[str | int, ...]


def fields(value: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from fields(inside, (*path, key))
    elif isinstance(value, list):
        for index, inside in enumerate(value):
            yield from fields(inside, (*path, index))


#: What a manifest must have to be one is the reader's business.
ESSENTIAL: list[Path] = [(), ("apiVersion",), ("kind",), ("metadata",), ("metadata", "name")]
#: Kinds that the simulated API server has rules for, with their collections.
BUILT_IN = {"Node": "nodes", "Pod": "pods", "Job": "jobs.batch", "PriorityClass": "priorityclasses.scheduling.k8s.io"}
FIELDS = [(number, path) for number, item in enumerate(OBJECTS) for path in fields(item) if path not in ESSENTIAL]
BUILT_IN_FIELDS = [
    field
    for field in FIELDS
    if OBJECTS[field[0]]["kind"] in BUILT_IN and ".volcano." not in OBJECTS[field[0]]["apiVersion"]
]


def simulated(wires: list[dict[str, Any]], *, kubelets: bool) -> dict[str, Any] | None:
    """The document, or None where objects are malformed."""
    located = [Located(f"document {number}", item) for number, item in enumerate(wires)]
    world = read_world(located, scheduler_name="kai-ledger")
    if world.problems:
        assert all(problem.field and str(problem).startswith("document ") for problem in world.problems)
        return None
    model = OfflineKubelets() if kubelets else None
    return asyncio.run(simulate(world, EngineConfig(), kubelets=model)).document()


def test_valid_objects_are_simulated() -> None:
    answer = simulated(OBJECTS, kubelets=True)
    assert answer is not None
    assert len(answer["pods"]) == 17


def replaced(field: tuple[int, Path], value: Any) -> list[dict[str, Any]]:
    number, path = field
    changed = deepcopy(OBJECTS)
    place: Any = changed[number]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return changed


def refusals(wire: dict[str, Any]) -> set[str]:
    """Objections of the simulated API server, which shares no rule with `kai simulate`, against an object."""
    rules = RULES.get(BUILT_IN[wire["kind"]], NO_RULES)
    try:
        read, _ = decode(f"V1{wire['kind']}", wire)
    except Mismatch as error:
        return {str(error)}
    if read.get("spec") is None and wire["kind"] != "PriorityClass":
        read["spec"] = {}
    rules.default(read)
    errors = validate_metadata(read["metadata"], BUILT_IN[wire["kind"]]) + rules.validate(read)
    return {f"{error.field}: {error.message}" for error in errors}


@settings(max_examples=examples(200), deadline=None)
@example(field=(0, ("status", "allocatable", "cpu")), junk=10**30, kubelets=True)
@example(field=(4, ("spec", "containers", 0, "resources", "limits", "nvidia.com/gpu")), junk=2**40, kubelets=True)
@given(field=st.sampled_from(FIELDS), junk=st.sampled_from(JUNK), kubelets=st.booleans())
def test_junk_in_any_field_is_named_or_harmless(field: tuple[int, Path], junk: Any, kubelets: bool) -> None:
    simulated(replaced(field, junk), kubelets=kubelets)


@settings(max_examples=examples(300), deadline=None)
@given(field=st.sampled_from(BUILT_IN_FIELDS), junk=st.sampled_from(JUNK))
def test_what_an_api_server_refuses_is_named(field: tuple[int, Path], junk: Any) -> None:
    changed = replaced(field, junk)
    # A manifest may do without what scheduling does not need: images, a Job's restart policy. Of a device without a
    # limit it is clear what is meant.
    news = {one for one in refusals(changed[field[0]]) - refusals(OBJECTS[field[0]]) if "Limit must be set" not in one}
    if news:
        assert simulated(changed, kubelets=False) is None, news


@settings(max_examples=examples(30), deadline=None)
@given(order=st.permutations(OBJECTS))
def test_objects_in_any_order_give_the_same_outcome(order: list[dict[str, Any]]) -> None:
    assert simulated(order, kubelets=False) == simulated(OBJECTS, kubelets=False)
