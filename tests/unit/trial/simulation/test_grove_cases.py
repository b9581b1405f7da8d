"""Cases of Grove's own tests of gangs and of topology, restated: a PodCliqueSet and nodes in, what has started out.

Source: Grove (ai-dynamo/grove, August 2026), operator/e2e/tests: gang_scheduling_test.go, startup_ordering_test.go and
topology_test.go.
"""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.work.provisioning import ProvisioningConfig

from tests.given.cluster.fabric import label_topology, nodes
from tests.given.logs.simulating import GPU, brief, document_of, world_of

CPU_NODE = (
    "apiVersion: v1\nkind: Node\nmetadata: {{name: n{}}}\nstatus: {{allocatable: {{cpu: 1, memory: 1Gi, pods: 9}}}}\n"
)


def clique(name: str, replicas: int, least: int = 0, *, pack: str = "", resource: str = GPU) -> str:
    pod_spec = f"{{containers: [{{name: c, resources: {{limits: {{{resource}: 1}}}}}}]}}"
    spec = f"spec: {{replicas: {replicas}, minAvailable: {least or replicas}, podSpec: {pod_spec}}}"
    return f"{{name: {name}, {_packed(pack)}{spec}}}"


def scaling_group(name: str, replicas: int, least: int, cliques: str, *, pack: str = "") -> str:
    return f"{{name: {name}, {_packed(pack)}replicas: {replicas}, minAvailable: {least}, cliqueNames: [{cliques}]}}"


def clique_set(cliques: list[str], groups: list[str], *, replicas: int = 1, pack: str = "") -> str:
    template = f"{_packed(pack)}cliques: [{', '.join(cliques)}], podCliqueScalingGroups: [{', '.join(groups)}]"
    head = "apiVersion: grove.io/v1alpha1\nkind: PodCliqueSet\nmetadata: {name: w}\n"
    return f"{head}spec: {{replicas: {replicas}, template: {{{template}}}}}\n"


def _packed(pack: str) -> str:
    kind, _, level = pack.partition(" ")
    return f"topologyConstraint: {{topologyName: dc, pack: {{{kind}: {level}}}}}, " if pack else ""


def started(folder: Path, *texts: str) -> dict[str, str]:
    """Nodes of the pods that have one, by the pods' names."""
    found = brief(document_of(world_of("---\n".join(texts), folder)))
    return {name: where for name, where in found.items() if not where.startswith("Pending")}


#: Of the set: two a; a scaling group of one b and three c. `all` starts whole, of `few` one of each part is enough.
#: Replicas of the set and of the scaling group, nodes for one pod each, in steps, and how many pods of each part have
#: started in the end.
#: Grove's gate holds further replicas of a scaling group back until those that its gang needs have a node.
GANGS = [
    ("all", 1, 2, "9", ""),
    ("all", 1, 2, "10", "0-a 2, 0-x-0 4, 0-x-1 4"),
    ("all", 1, 3, "10", "0-a 2, 0-x-0 4, 0-x-1 4"),
    ("all", 1, 3, "13", "0-a 2, 0-x-0 4, 0-x-1 4"),
    ("all", 1, 3, "14", "0-a 2, 0-x-0 4, 0-x-1 4, 0-x-2 4"),
    ("all", 2, 2, "10", "0-a 2, 0-x-0 4, 0-x-1 4"),
    ("all", 2, 2, "20", "0-a 2, 0-x-0 4, 0-x-1 4, 1-a 2, 1-x-0 4, 1-x-1 4"),
    ("all", 2, 3, "28", "0-a 2, 0-x-0 4, 0-x-1 4, 0-x-2 4, 1-a 2, 1-x-0 4, 1-x-1 4, 1-x-2 4"),
    ("few", 1, 2, "3", "0-a 1, 0-x-0 2"),
    ("few", 1, 2, "3 5", "0-a 1, 0-x-0 2, 0-x-1 2"),
    ("few", 1, 2, "3 5 10", "0-a 2, 0-x-0 4, 0-x-1 4"),
    ("few", 1, 3, "3 7", "0-a 1, 0-x-0 2, 0-x-1 2, 0-x-2 2"),
    ("few", 1, 3, "3 7 14", "0-a 2, 0-x-0 4, 0-x-1 4, 0-x-2 4"),
    ("few", 2, 2, "6 10", "0-a 1, 0-x-0 2, 0-x-1 2, 1-a 1, 1-x-0 2, 1-x-1 2"),
    ("few", 2, 2, "6 10 20", "0-a 2, 0-x-0 4, 0-x-1 4, 1-a 2, 1-x-0 4, 1-x-1 4"),
    ("few", 2, 3, "6 14", "0-a 1, 0-x-0 2, 0-x-1 2, 0-x-2 2, 1-a 1, 1-x-0 2, 1-x-1 2, 1-x-2 2"),
    ("few", 2, 3, "6 14 28", "0-a 2, 0-x-0 4, 0-x-1 4, 0-x-2 4, 1-a 2, 1-x-0 4, 1-x-1 4, 1-x-2 4"),
    ("few", 1, 2, "2", ""),
    ("few", 2, 2, "6", "0-a 1, 0-x-0 2, 1-a 1, 1-x-0 2"),
    ("few", 2, 3, "6", "0-a 1, 0-x-0 2, 1-a 1, 1-x-0 2"),
]


@pytest.mark.parametrize("case", GANGS)
def test_gangs_start_as_in_groves_cases(tmp_path: Path, case: tuple[str, int, int, str, str]) -> None:
    kind, replicas, parts, steps, expected = case
    least = {"all": (2, 3, 2), "few": (1, 1, 1)}[kind]
    cliques = [
        clique("a", 2, least[0], resource="cpu"),
        clique("b", 1, resource="cpu"),
        clique("c", 3, least[1], resource="cpu"),
    ]
    workload = clique_set(cliques, [scaling_group("x", parts, least[2], "b, c")], replicas=replicas)
    found: dict[str, str] = {}
    running: list[str] = []
    for count in map(int, steps.split()):
        world = world_of("---\n".join([*map(CPU_NODE.format, range(count)), *running, workload]), tmp_path)
        found = {name: node for name, node in brief(document_of(world)).items() if not node.startswith("Pending")}
        running = [
            json.dumps(one.object | {"spec": one.object["spec"] | {"nodeName": found[name]}}) + "\n"
            for one in world.pods
            if (name := one.wire.metadata.name) in found
        ]
    parts_started = Counter(re.sub(r"^w-(\d-(?:a|x-\d)).*", r"\1", name) for name in found)
    assert ", ".join(f"{part} {number}" for part, number in sorted(parts_started.items())) == expected


#: How cliques start, what the last of three says it starts after, and which pods wait on their nodes for which cliques.
#: All have a node at once, as a gang: Grove's init container waits, and no gate.
ORDERS = [
    ("AnyOrder", "[]", {}),
    ("InOrder", "[]", {"0-x-0-b": "0-a", "0-x-0-c": "0-x-0-b", "0-x-1-c": "0-x-1-b"}),
    ("Explicit", "[a, b]", {"0-x-0-c": "0-a 0-x-0-b", "0-x-1-c": "0-x-1-b"}),
]


@pytest.mark.parametrize(("order", "after", "expected"), ORDERS)
def test_pods_that_start_after_others_have_a_node_and_wait_there(
    tmp_path: Path, order: str, after: str, expected: dict[str, str]
) -> None:
    cliques = [clique(name, 1, resource="cpu") for name in "abc"]
    cliques[2] = cliques[2].replace("spec: {", f"spec: {{startsAfter: {after}, ", 1)
    text = clique_set(cliques, [scaling_group("x", 2, 1, "b, c")]).replace(
        "template: {", f"template: {{cliqueStartupType: CliqueStartupType{order}, "
    )
    world = world_of("---\n".join([*map(CPU_NODE.format, range(5)), text]), tmp_path)
    waits = {}
    for one in world.pods:
        for container in one.object["spec"].get("initContainers", ()):
            parents = " ".join(arg.removeprefix("--podcliques=w-") for arg in container["args"])
            waits[one.wire.metadata.name.rpartition("-")[0].removeprefix("w-")] = parents
    assert waits == expected
    assert not any(where.startswith("Pending") for where in brief(document_of(world)).values())


RACK, BLOCK, HOST = "required rack", "required block", "required kubernetes.io/hostname"
#: What is asked for; how many pods start; and by a part of their names, where those that share it are together: 1 in a
#: block, 2 in a rack, 3 on a node.
PLACES = [
    (
        "cliques, each with a place of its own",
        clique_set([clique("r", 3, pack=RACK), clique("b", 4, pack=BLOCK)], []),
        7,
        {"0-r": 2, "0-b": 1},
    ),
    (
        "the set alone",
        clique_set([clique("w", 1), clique("r", 2)], [scaling_group("x", 2, 2, "w")], pack=RACK),
        4,
        {"0": 2},
    ),
    (
        "scaling groups alone",
        clique_set([clique("w", 2), clique("r", 2)], [scaling_group("x", 2, 2, "w", pack=RACK)]),
        6,
        {"0-x-0": 2, "0-x-1": 2},
    ),
    ("a clique alone", clique_set([clique("w", 2, pack=HOST)], []), 2, {"0-w": 3}),
    ("the set, and a clique without a place", clique_set([clique("w", 4)], [], pack=BLOCK), 4, {"0-w": 1}),
    ("no place at all", clique_set([clique("w", 2), clique("r", 2)], []), 4, {}),
    (
        "three levels",
        clique_set(
            [clique("p", 2, pack=HOST), clique("d", 2, pack=HOST)],
            [scaling_group("x", 2, 2, "p, d", pack=RACK)],
            pack=BLOCK,
        ),
        8,
        {"0": 1, "0-x-0": 2, "0-x-1": 2, "0-x-0-p": 3, "0-x-0-d": 3, "0-x-1-p": 3, "0-x-1-d": 3},
    ),
    ("the set and a clique", clique_set([clique("w", 2, pack=HOST)], [], pack=BLOCK), 2, {"0-w": 3}),
    (
        "further replicas of a scaling group",
        clique_set([clique("w", 2)], [scaling_group("x", 3, 1, "w", pack=RACK)], pack=BLOCK),
        6,
        {"0-x-0": 2, "0-x-1": 2, "0-x-2": 2},
    ),
    (
        "scaling groups and cliques",
        clique_set([clique("w", 2, pack=HOST)], [scaling_group("x", 2, 2, "w", pack=RACK)]),
        4,
        {"0-x-0": 3, "0-x-1": 3},
    ),
    (
        "many replicas, few of them at once",
        clique_set([clique("w", 1), clique("v", 1)], [scaling_group("x", 8, 3, "w, v", pack=HOST)]),
        16,
        {f"0-x-{number}": 3 for number in range(8)},
    ),
    ("more than any rack takes", clique_set([clique("w", 5)], [], pack=RACK), 0, {}),
    (
        "a rack for each replica of the set",
        clique_set([clique("w", 2)], [], replicas=2, pack=RACK),
        4,
        {"0-w": 2, "1-w": 2},
    ),
    (
        "prefill, decode and a router",
        clique_set(
            [clique(name, 1) for name in ("dw", "dl", "pw", "pl")] + [clique("r", 2)],
            [scaling_group("d", 2, 1, "dw, dl", pack=RACK), scaling_group("p", 2, 1, "pw, pl", pack=RACK)],
            pack=BLOCK,
        ),
        10,
        {"0-d-0": 2, "0-d-1": 2, "0-p-0": 2, "0-p-1": 2},
    ),
    (
        "two of these, with three levels",
        clique_set(
            [clique("dw", 1), clique("pw", 2, pack=HOST), clique("r", 1)],
            [scaling_group("d", 2, 1, "dw", pack=RACK), scaling_group("p", 1, 1, "pw", pack=RACK)],
            replicas=2,
            pack=BLOCK,
        ),
        10,
        {"0-p-0": 3, "1-p-0": 3, "0-d-0": 2, "1-d-0": 2},
    ),
    (
        "preferred places",
        clique_set(
            [clique("w", 1), clique("r", 1, pack="preferred kubernetes.io/hostname")],
            [scaling_group("x", 2, 1, "w", pack="preferred kubernetes.io/hostname")],
            pack=BLOCK,
        ),
        3,
        {"0": 1},
    ),
]


@pytest.mark.parametrize(
    ("workload", "count", "together"), [case[1:] for case in PLACES], ids=[case[0] for case in PLACES]
)
def test_parts_are_together_as_in_groves_cases(
    tmp_path: Path, workload: str, count: int, together: dict[str, int]
) -> None:
    found = started(tmp_path, nodes(), label_topology("kai.scheduler/v1alpha1"), workload)
    assert len(found) == count
    for part, level in together.items():
        # The nodes' names are block, rack and host: two blocks of two racks of two nodes, for two pods each.
        assert len({where[:level] for name, where in found.items() if name.startswith(f"w-{part}-")}) == 1, part


ROLE = """apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {{name: {role}, namespace: default}}
spec:
  replicas: {replicas}
  leaderWorkerTemplate:
    size: {size}
    workerTemplate:
      metadata: {{labels: {{llm-d.ai/role: {role}}}}}
      spec: {{containers: [{{name: c, resources: {{limits: {{cpu: 1}}}}}}]}}
"""


@pytest.mark.parametrize(
    ("count", "expected"), [(2, "prefill 2"), (5, "decode 3, prefill 2"), (7, "decode 3, prefill 4")]
)
def test_roles_of_llm_d_start_replica_by_replica_each_as_a_whole(tmp_path: Path, count: int, expected: str) -> None:
    roles = (ROLE.format(role="decode", replicas=1, size=3), ROLE.format(role="prefill", replicas=2, size=2))
    found = started(tmp_path, *(CPU_NODE.format(number) for number in range(count)), *roles)
    by_role = Counter(name.split("-")[0] for name in found)
    assert ", ".join(f"{role} {number}" for role, number in sorted(by_role.items())) == expected


def test_an_autoscaler_is_asked_for_the_nodes_of_whole_parts(tmp_path: Path) -> None:
    """The gang of the first part runs; the second part and the third are asked for, each as a whole."""
    cliques = [clique("b", 1, resource="cpu"), clique("c", 3, resource="cpu")]
    workload = clique_set(cliques, [scaling_group("x", 3, 1, "b, c")])
    config = EngineConfig(provisioning=ProvisioningConfig("best-effort-atomic-scale-up.autoscaling.x-k8s.io"))
    world = world_of("---\n".join([*(CPU_NODE.format(number) for number in range(6)), workload]), tmp_path)
    asked = Counter(
        re.sub(r"^w-0-(x-\d).*", r"\1", one["name"])
        for one in document_of(world, config)["pods"]
        if "WaitsForProvisioning" in {reason["code"] for reason in one["reasons"]}
    )
    assert asked == {"x-1": 4, "x-2": 4}
