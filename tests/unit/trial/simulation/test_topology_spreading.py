"""Cases of Kueue's own tests of topology spreading, restated: like work that runs, what comes, and where it goes.

Source: Kueue 0.20 (alpha, TASTopologySpreading), test/integration/singlecluster/tas/tas_topology_spreading_test.go,
pkg/cache/scheduler, pkg/util/tas, and the stories of KEP-13746.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kaicore.rules.groups.kueue import kueue_topology

from tests.given.cluster.fabric import label_topology, nodes
from tests.given.logs.simulating import brief, document_of, pod, world_of

K = "kueue.x-k8s.io"
TOPOLOGY = label_topology(f"{K}/v1beta1")
LIKE = [{"key": "app", "operator": "In", "values": ["main"]}]


def rules(*given: str, like: list[Any] | None = LIKE) -> str:
    """The annotation of rules `<level> <share> [Preferred]`."""
    listed = []
    for one in given:
        level, share, *mode = one.split()
        rule = {"topologyKey": level, "maxShareAllowingPlacement": share}
        listed.append(rule | ({"enforcementMode": mode[0]} if mode else {}))
    return json.dumps({"rules": listed} | ({} if like is None else {"workloadLabelSelectors": like}))


def like_pod(name: str, node: str = "", *, level: str = "", annotation: str = "", app: str = "main") -> str:
    """A pod of like work: one that runs on a node, or one that comes and is to be spread."""
    said = {f"{K}/podset-required-topology": level, f"{K}/podset-topology-spreading": annotation}
    notes = json.dumps({key: value for key, value in said.items() if value})
    where = f"nodeName: {node}" if node else ""
    return pod(
        name,
        metadata=f"labels: {{app: {app}}}, annotations: {notes}",
        spec=where,
        status="{phase: Running}" if node else "{}",
    )


#: The nodes of like work that runs, the rules, the required level, and where three pods that come go one after the
#: other: to a block (`a`, `b`), to a rack of it (`a0`), or nowhere.
CASES = {
    "the other block, as the first has all": ("a00", ["block 0.5"], "block", "b"),
    "the other block, where that is only preferred": ("a00", ["block 0.5 Preferred"], "block", "b"),
    "none, while each block has too much": ("a00 b00", ["block 0.4"], "block", "-"),
    "any, where that is only preferred": ("a00 b00", ["block 0.4 Preferred"], "block", "a"),
    "the one with less, where both have too much": ("a00 a01 b00", ["block 0.3 Preferred"], "block", "b"),
    "one that has some, before one that has none": ("a00 a10", ["rack 0.5"], "rack", "a0"),
    "a part of exactly as much may grow": ("a00 b00", ["block 0.5"], "block", "a"),
    "both levels: the other block": ("a00", ["block 0.5", "rack 0.5"], "rack", "b"),
    "both levels: another rack": ("a00 b00", ["block 0.5", "rack 0.5"], "rack", "a1"),
    "a part of the domain above, not of all": ("a00 a10 b00", ["rack 0.4"], "rack", "b1"),
    "single nodes": ("a00 a01", ["kubernetes.io/hostname 0.4"], "kubernetes.io/hostname", "a11"),
    "nothing runs yet": ("", ["block 0.1"], "block", "a"),
}


@pytest.mark.parametrize(("running", "given", "level", "expected"), CASES.values(), ids=CASES)
def test_like_work_goes_where_it_does_in_kueue(
    tmp_path: Path, running: str, given: list[str], level: str, expected: str
) -> None:
    there = [like_pod(f"w{number}", node) for number, node in enumerate(running.split())]
    others = [
        like_pod("other", "a01", app="other"),
        like_pod("elsewhere", "a11").replace("{name:", "{namespace: x, name:"),
    ]
    comes = like_pod("new", level=level, annotation=rules(*given))
    document = document_of(world_of("---\n".join([nodes(), TOPOLOGY, *there, *others, comes]), tmp_path))
    (new,) = (one for one in document["pods"] if one["name"] == "new")
    if expected == "-":
        assert "none takes any; 2 hold more than their part of like work" in json.dumps(new["reasons"])
    assert (new["node"] or "-").startswith(expected)


def lws(replicas: int, annotation: str, *, size: int = 2) -> str:
    together = {f"{K}/podset-required-topology": "rack", f"{K}/podset-group-name": "g"}
    notes = json.dumps(together | {f"{K}/podset-topology-spreading": annotation})
    container = "{name: c, resources: {limits: {cpu: 1}}}"
    template = f"{{metadata: {{annotations: {notes}}}, spec: {{containers: [{container}]}}}}"
    return (
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: l}\nspec: {"
        f"replicas: {replicas}, leaderWorkerTemplate: {{size: {size}, leaderTemplate: {template},"
        f" workerTemplate: {template}}}}}\n"
    )


#: Racks of one block; the share; groups of a LeaderWorkerSet by rack.
STEADY = [(3, "0.34", 6, [2, 2, 2]), (4, "0.5", 4, [2, 2]), (4, "0.25", 4, [1, 1, 1, 1]), (3, "0.45", 6, [3, 2, 1])]


@pytest.mark.parametrize(("racks", "share", "groups", "expected"), STEADY)
def test_groups_of_a_leader_worker_set_are_spread_over_racks_each_as_one(
    tmp_path: Path, racks: int, share: str, groups: int, expected: list[int]
) -> None:
    text = "---\n".join([nodes(blocks=1, racks=racks), TOPOLOGY, lws(groups, rules(f"rack {share}", like=None))])
    found = brief(document_of(world_of(text, tmp_path)))
    by_group = {name.split("-")[1]: where[:2] for name, where in found.items()}
    assert all(where[:2] == by_group[name.split("-")[1]] for name, where in found.items())
    assert sorted(Counter(by_group.values()).values(), reverse=True) == expected


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        ("{", "has no list of 1 to 2 rules"),
        ('{"rules": []}', "has no list of 1 to 2 rules"),
        (rules("a 0.1", "b 0.1", "c 0.1"), "has no list of 1 to 2 rules"),
        (rules("a 0.1", "a 0.2"), "rule 2 has no topologyKey of its own"),
        (rules("a 0"), "the maxShareAllowingPlacement of rule 1 is not between 0 and 1"),
        (rules("a 1"), "the maxShareAllowingPlacement of rule 1 is not between 0 and 1"),
        (rules("a much"), "the maxShareAllowingPlacement of rule 1 is not between 0 and 1"),
        (rules("a 0.5 Always"), "the enforcementMode of rule 1 is neither Required nor Preferred"),
        (rules("a 0.5", like=[{"key": "app", "operator": "Exists"}]), "workloadLabelSelector is not"),
    ],
)
def test_spreading_that_makes_no_sense_is_refused_with_its_field(annotation: str, problem: str) -> None:
    name = f"{K}/podset-topology-spreading"
    refused = kueue_topology({f"{K}/podset-required-topology": "a", name: annotation}, pods=1)
    assert refused is not None
    assert refused.problem.startswith(f"metadata.annotations[{name}]: ")
    assert problem in refused.problem


@pytest.mark.parametrize(("level", "code"), [("block", "TopologyConstraintInvalid"), ("rack", "TopologyLevelNotFound")])
def test_a_level_below_the_required_one_or_unknown_is_a_reason(tmp_path: Path, level: str, code: str) -> None:
    comes = like_pod("new", level=level, annotation=rules("rack 0.5" if level == "block" else "zone 0.5"))
    found = brief(document_of(world_of("---\n".join([nodes(), TOPOLOGY, comes]), tmp_path)))
    assert found["new"] == f"Pending {code}"
